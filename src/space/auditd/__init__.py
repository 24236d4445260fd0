"""The keeper of the gateway's records: the one process that writes them."""
