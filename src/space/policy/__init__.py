"""Policies as people keep them: files, presets, tables of expectations, and what this machine's package managers use. Enforces nothing."""
