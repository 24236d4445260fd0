"""Credentials: what a guest uses and must never hold."""
