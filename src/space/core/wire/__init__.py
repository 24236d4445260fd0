"""The frames of docs/protocol.md without I/O: codec, session state machine, the guest's messages."""
