"""The E2B face: E2B's control API and what its SDKs ask of a sandbox, translated to our own service functions. No rules of its own."""
