"""The demonstration: a real library's own tests, in a microVM, with nothing left behind."""
