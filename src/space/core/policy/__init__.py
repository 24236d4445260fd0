"""What may leave a sandbox: names, addresses, policies, verdicts. Decisions without I/O."""
