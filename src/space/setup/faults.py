"""What set-up raises: one class, with the fact in the message and the remedy in the hint."""

from __future__ import annotations

from space.model.errors import SpaceError


class SetupFailed(SpaceError):
    """A step of set-up could not be done on this machine."""

    code, status, title = "setup_failed", 500, "Set-up failed"
