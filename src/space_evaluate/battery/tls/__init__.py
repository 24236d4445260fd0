"""TLS: handshakes, versions, sessions."""
