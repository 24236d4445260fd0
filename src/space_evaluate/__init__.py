"""The security evaluation of `space`: techniques that try to get out of a sandbox, and oracles outside (docs/evaluation.md)."""
