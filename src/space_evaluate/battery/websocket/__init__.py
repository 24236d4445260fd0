"""WebSockets and other upgrades: a connection that stops being HTTP."""
