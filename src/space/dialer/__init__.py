"""The process that resolves names, vets addresses and connects: the only one that opens sockets for sandboxes."""
