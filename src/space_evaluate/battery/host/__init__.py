"""The host: devices, memory and files, from root in a guest."""
