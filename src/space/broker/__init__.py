"""The broker: keys that nobody else may hold. So far: certificate authorities, and the key that vouches for records."""
