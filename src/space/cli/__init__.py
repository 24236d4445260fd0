"""The command line: over the public API, through the SDK. The server's own commands are imported only when they are called."""
