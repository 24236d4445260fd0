"""The minter: exchanges one credential at a time for a token, with endpoints that the operator named."""
