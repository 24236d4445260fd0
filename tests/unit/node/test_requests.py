"""What the node makes of control's requests: the API request's id in its log lines, and lists in as many messages as they need."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from space.config import logs
from space.model.errors import InvalidArgument, NotFound
from space.model.ids import new_sandbox_id
from space.node import process_verbs
from space.rpc import node_api as api
from space.testing.processlab import lab


class Lines(logging.Handler):
    """What was logged, with the request and the sandbox that a formatter would add."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((logs.request_id.get(), logs.sandbox.get(), record.getMessage()))


async def test_the_line_of_a_refusal_is_found_by_the_id_that_the_client_saw(tmp_path: Path) -> None:
    lines, log = Lines(), logging.getLogger("space.node")
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    try:
        async with lab(tmp_path) as one:
            with pytest.raises(NotFound):
                await one.session.call("process", api.ProcessTarget(one.sandbox, "pr-0000000000000000", request_id="req-seen"))
            with pytest.raises(NotFound):
                await one.session.call("noop", api.Target(new_sandbox_id()))
            with pytest.raises(InvalidArgument, match="request_id"):
                await one.session.call("noop", api.Target(one.sandbox, request_id="two\nlines"))
    finally:
        log.removeHandler(lines)
        log.setLevel(logging.NOTSET)
    refused = [line for line in lines.seen if " refused: " in line[2]]
    assert [line[0] for line in refused] == ["req-seen", "-", "-"]
    assert refused[0][1] == one.sandbox
    assert refused[0][2].startswith("process refused: not_found: ")


def test_a_list_comes_in_pages_that_fit_a_frame() -> None:
    states = [api.SandboxState(new_sandbox_id(), "acme", 1, "running", number, "isolated", "x" * (number % 2000)) for number in range(3000)]
    pages = list(process_verbs.pages(states))
    assert [state for page in pages for state in page] == states
    assert len(pages) > 10
    assert all(len(msgspec.msgpack.encode(api.SandboxList(page))) < 256 << 10 for page in pages)
    assert list(process_verbs.pages([])) == [[]]


async def test_control_has_every_sandbox_of_a_list_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_verbs, "_LIST_BYTES", 100)
    async with lab(tmp_path) as one:
        made = {one.sandbox, await one.create(), await one.create()}
        found: list[str] = []
        messages = 0
        async with await one.session.open("list", api.Empty(), finish=True) as stream:
            async for event in stream:
                found += [each.sandbox for each in msgspec.msgpack.decode(event.payload, type=api.SandboxList).sandboxes]
                messages += 1
        assert (set(found), len(found), messages) == (made, 3, 3)
