"""Sandboxes' lives through E2B's SDKs: made, found, kept, put to rest, woken, ended."""

from __future__ import annotations

from tests.e2b.stage import Js, Running

import e2b


def test_the_sdks_are_the_newest_that_the_locks_name(server: Running, js: Js) -> None:
    assert hasattr(e2b.Sandbox, "create")
    assert js("return [typeof Sandbox.create, typeof interpreter.Sandbox.create, Object.keys(e2b).length > 20]") == ["function"] * 2 + [
        True
    ]
