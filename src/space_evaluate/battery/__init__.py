"""The techniques: one file each, in a directory for each group."""
