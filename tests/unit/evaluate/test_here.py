"""`--here` attacks a server that runs: it is asked for by typing its address, and refused while other tenants have sandboxes."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

import space
from space.model.errors import Conflict, InvalidArgument
from space_evaluate import main, runner


class Client:
    """Of a server with sandboxes by tenant; the caller's tenant is `own`."""

    def __init__(self, **sandboxes: int) -> None:
        self.endpoint = SimpleNamespace(url="http://127.0.0.1:1")
        self._sandboxes = sandboxes

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def keys(self) -> list[Any]:
        return [SimpleNamespace(tenant=name) for name in (*self._sandboxes, "own")]

    def quota(self, tenant: str) -> Any:
        return SimpleNamespace(used=SimpleNamespace(sandboxes=self._sandboxes.get(tenant, 0)))

    def sandboxes(self) -> list[int]:
        return list(range(self._sandboxes.get("own", 0)))


def test_it_is_refused_while_other_tenants_have_sandboxes() -> None:
    with pytest.raises(Conflict, match="2 sandboxes of other tenants"), runner.stage_here(Client(own=3, acme=2)):  # type: ignore[arg-type]
        pass
    assert runner.busy(Client(own=3)) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("typed", ["", "yes\n", "http://127.0.0.1\n"])
def test_it_is_refused_unless_its_address_is_typed(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "Client", lambda: Client(own=1))
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(runner, "ground", lambda: pytest.fail("it was begun"))
    with pytest.raises(InvalidArgument, match="not confirmed"):
        main.main(["--here", "--quick", "--technique", "unlisted"])
