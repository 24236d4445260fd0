"""The broker: keys that nobody else may hold. So far: the certificate authority of the coming gateway."""
