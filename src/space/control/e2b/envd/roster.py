"""Processes by pid and tag, as E2B's clients name them. The node knows processes by our ids; tags and environments are remembered here.

What is remembered is lost with this control: such processes are found by pid, without a tag.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from space.control.e2b.envd.connect import Fault
from space.control.e2b.envd.process_wire import Selector
from space.control.link import NodeLink, decoded
from space.core.wire.events import Message
from space.model.errors import ProtocolError
from space.rpc.node_api import ProcessInfo, ProcessList, Target

# Of one sandbox: more than the node keeps, and what their environments take.
_MOST_NOTES = 4096
_MOST_BYTES = 4 << 20
_LEAST_BYTES = 200
# A process that has ended can still be connected to for so long.
ENDED_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Note:
    """What a Start said that the node does not keep."""

    tag: str | None
    env: Mapping[str, str]

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        return _LEAST_BYTES + len(self.tag or "") + sum(len(name) + len(value) for name, value in self.env.items())


_NOTHING = Note(None, {})


class Roster:
    """One for all sandboxes."""

    def __init__(self) -> None:
        self._notes: dict[str, dict[str, Note]] = {}
        self._sizes: dict[str, int] = {}

    def note(self, sandbox: str, process: str, tag: str | None, env: Mapping[str, str]) -> None:
        """It was started so."""
        notes = self._notes.setdefault(sandbox, {})
        notes[process] = made = Note(tag, dict(env))
        self._sizes[sandbox] = self._sizes.get(sandbox, 0) + made.size
        while len(notes) > 1 and (len(notes) > _MOST_NOTES or self._sizes[sandbox] > _MOST_BYTES):
            self.take(sandbox, next(iter(notes)))

    def take(self, sandbox: str, process: str) -> Note:
        """What was said of it, which is forgotten."""
        note = self._notes.get(sandbox, {}).pop(process, None)
        if note is None:
            return _NOTHING
        self._sizes[sandbox] -= note.size
        return note

    def noted(self, info: ProcessInfo) -> Note:
        """What is known of it."""
        return self._notes.get(info.sandbox, {}).get(info.process, _NOTHING)

    def forget(self, sandbox: str) -> None:
        """The sandbox has ended."""
        self._notes.pop(sandbox, None)
        self._sizes.pop(sandbox, None)

    async def find(self, link: NodeLink, sandbox: str, selector: Selector | None, *, ended: bool = False) -> ProcessInfo:
        """The process that is meant: of several the youngest, one that runs before one that has ended. Fault not_found.

        ended: one that has ended a moment ago will do.
        """
        if selector is None or (selector.pid is None) == (selector.tag is None):
            raise Fault("invalid_argument", "the process is named by exactly one of pid and tag")
        found = [one for one in await processes(link, sandbox) if self._meant(one, selector)]
        for info in reversed(found):
            if info.state == "running":
                return info
        for info in reversed(found):
            if ended and info.ended_us is not None and time.time() - info.ended_us / 1e6 < ENDED_SECONDS:
                return info
        name = f"pid {selector.pid}" if selector.pid is not None else f"tag {(selector.tag or '')[:64]!r}"
        raise Fault("not_found", f"process with {name} not found")

    def _meant(self, info: ProcessInfo, selector: Selector) -> bool:
        return info.pid == selector.pid if selector.pid is not None else self.noted(info).tag == selector.tag


async def processes(link: NodeLink, sandbox: str) -> list[ProcessInfo]:
    """All that the node knows, the oldest first."""
    found: list[ProcessInfo] = []
    async with await link.open("processes", Target(sandbox), finish=True) as stream:
        async for event in stream:
            if not isinstance(event, Message):
                raise ProtocolError("the node's list of processes is no list of messages")
            found += decoded(event, ProcessList).processes
    return found
