"""Agreement: an allowed name as a way to another at its address."""
