"""The provider passes the checks that Inspect ships for providers, all of them; and what they do not look at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from inspect_ai.util._sandbox import self_check

from space.serve.private import Served


def _with(served: Served, monkeypatch: pytest.MonkeyPatch, work: Callable[[Any], Any], config: Any = None) -> None:
    from space_inspect.provider import SpaceSandbox

    monkeypatch.setenv("SPACE_API_URL", served.url)
    monkeypatch.setenv("SPACE_API_KEY", served.api_key)

    async def main() -> None:
        made = await SpaceSandbox.sample_init("self-check", config, {})
        try:
            await work(made["default"])
        finally:
            await SpaceSandbox.sample_cleanup("self-check", config, made, False)

    asyncio.run(main())


@pytest.mark.full
@pytest.mark.parametrize("name", self_check.__all__)
def test_a_check_of_inspects_own_passes(served: Served, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    _with(served, monkeypatch, getattr(self_check, name))


def test_a_configuration_is_what_the_sandbox_is(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from space_inspect.provider import Config, configured

    async def look(one: Any) -> None:
        assert (await one.exec(["id", "-un"])).stdout == "root\n"
        assert (await one.exec(["sh", "-c", "echo $A"])).stdout == "b\n"
        assert (await one.connection()).command == f"space shell {one.sandbox.id}"
        missing = await one.exec(["no-such-program"])
        assert (missing.returncode, "no-such-program" in missing.stderr) == (127, True)
        assert Config(**one.config.model_dump()) == one.config

    _with(served, monkeypatch, look, Config(user="root", env={"A": "b"}, memory_mib=256))
    with pytest.raises(TypeError, match="a Config or the name of a TOML file"):
        configured(7)
    with pytest.raises(ValueError, match="extra"):
        Config(tempalte="base")  # type: ignore[call-arg]


def test_what_samples_left_behind_is_taken_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from space import Client
    from space_inspect.provider import SpaceSandbox

    async def leave(_: Any) -> None:
        made = await SpaceSandbox.sample_init("left", None, {})
        await made["default"].client.aclose()
        await SpaceSandbox.cli_cleanup(made["default"].sandbox.id)

    _with(served, monkeypatch, leave)
    with Client(api_url=served.url, api_key=served.api_key) as client:
        assert [one for one in client.sandboxes() if one.phase != "gone" and "inspect" in one.spec.metadata] == []
