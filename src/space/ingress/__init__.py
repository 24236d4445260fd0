"""The ingress: strangers' requests to ports of sandboxes, and what servers in sandboxes answer."""
