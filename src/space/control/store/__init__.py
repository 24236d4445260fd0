"""control's state on disk: sandboxes, keys, idempotency keys. SQLite in WAL mode through SQLAlchemy Core."""
