"""Names: what the gateway's DNS says, and to whom."""
