"""Programs that are sent into a builder and run there, under the base template's Python 3.11: standard library only, one file each."""
