"""The names of an instance's services, for who looks at them from outside; `space.serve.roles` says what each is."""

from __future__ import annotations

NAMES = ("rootd", "broker", "audit", "dialer", "minter", "gateway", "node", "control", "ingress")
