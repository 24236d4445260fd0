"""Inspect AI on `space`: a sandbox provider, and the security evaluation with agents as attackers (docs/evaluation.md)."""
