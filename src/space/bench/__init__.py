"""`space bench`: figures beside a baseline that was taken in the same run. `make bench` runs every section."""
