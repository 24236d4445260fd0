"""Credentials that a sandbox uses and never sees: what a grant says, and where its value goes. Values and bytes; no I/O."""
