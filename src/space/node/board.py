"""The board: the latest state of every sandbox, with a revision, and those who watch it.

Readers see levels: a watcher that is slow gets the latest state of each sandbox, never a backlog, so that it costs a bounded memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import msgspec

from space.rpc.node_api import SandboxState


class Watch:
    """One watcher's view: iterate it for states, first those there are. It never ends by itself."""

    def __init__(self, states: dict[str, SandboxState]) -> None:
        self._pending = dict(states)
        self._wake = asyncio.Event()
        if self._pending:
            self._wake.set()

    def post(self, state: SandboxState) -> None:
        """A newer state."""
        self._pending.pop(state.sandbox, None)  # the latest change comes last
        self._pending[state.sandbox] = state
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[SandboxState]:
        while True:
            await self._wake.wait()
            while self._pending:
                yield self._pending.pop(next(iter(self._pending)))
            self._wake.clear()


class Board:
    """States by sandbox. Revisions count up over all sandboxes and start at `revision`."""

    def __init__(self, revision: int = 0) -> None:
        self.revision = revision
        self._states: dict[str, SandboxState] = {}
        self._watches: dict[Watch, str | None] = {}

    def publish(self, state: SandboxState) -> SandboxState:
        """Give it the next revision and show it. A state `gone` is shown and then forgotten."""
        self.revision += 1
        state = msgspec.structs.replace(state, revision=self.revision)
        if state.phase == "gone":
            self._states.pop(state.sandbox, None)
        else:
            self._states[state.sandbox] = state
        for watch, only in self._watches.items():
            if only is None or only == state.sandbox:
                watch.post(state)
        return state

    def get(self, sandbox: str) -> SandboxState | None:
        """The latest state, None when there is no such sandbox."""
        return self._states.get(sandbox)

    def states(self) -> list[SandboxState]:
        """All of them."""
        return list(self._states.values())

    @contextmanager
    def watch(self, only: str | None = None) -> Iterator[Watch]:
        """Watch every sandbox, or one."""
        watch = Watch({name: state for name, state in self._states.items() if only in (None, name)})
        self._watches[watch] = only
        try:
            yield watch
        finally:
            del self._watches[watch]
