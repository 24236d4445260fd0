"""E2B's control API as data, as `space.control.routes` has ours: the same gates, in the same order. docs/e2b.md lists it."""

from __future__ import annotations

from space.control.route import Route

ROUTES: tuple[Route, ...] = ()
