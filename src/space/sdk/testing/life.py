"""The lives of the mock server's sandboxes: phases as the server's, instants of files, children of forks, files of suspended ones."""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from space.model.errors import Conflict, InvalidArgument, NotFound
from space.model.ids import new_checkpoint_id
from space.model.sandbox import MIB, Checkpoint, Phase

if TYPE_CHECKING:
    from space.sdk.testing.sandbox import MockSandbox

# What a verb leads to, and from where.
_VERBS: dict[str, tuple[Phase, frozenset[Phase]]] = {
    "pause": (Phase.PAUSED, frozenset({Phase.RUNNING})),
    "resume": (Phase.RUNNING, frozenset({Phase.PAUSED})),
    "suspend": (Phase.SUSPENDED, frozenset({Phase.RUNNING, Phase.PAUSED})),
    "stop": (Phase.STOPPED, frozenset({Phase.RUNNING, Phase.PAUSED, Phase.SUSPENDED})),
    "wake": (Phase.RUNNING, frozenset({Phase.PAUSED, Phase.SUSPENDED, Phase.STOPPED, Phase.FAILED})),
}
_CHECKPOINT_BYTES = 8 * MIB
MOST_CHILDREN = 16


@dataclass(slots=True)
class MockLife:
    """by_rule: a rule put it to rest (`MockServer.rest`), so that a call wakes it."""

    generation: int = 1
    start: str = "cold"
    parent: str | None = None
    by_rule: bool = False
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    instants: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    stored: int = 0

    def shown(self) -> dict[str, Any]:
        """As the API shows it."""
        taken = self.stored + sum(one.bytes for one in self.checkpoints.values())
        return {
            "generation": self.generation,
            "start": self.start,
            "parent": self.parent,
            "snapshot_bytes": taken,
            "checkpoints": len(self.checkpoints),
        }

    def moved(self, before: Phase, phase: Phase) -> None:
        """Into another phase: a life that begins has the next generation."""
        self.stored = _CHECKPOINT_BYTES if phase is Phase.SUSPENDED else 0
        if phase is Phase.RUNNING:
            self.by_rule = False
            if before is not Phase.PAUSED:
                self.generation += 1
                self.start = "restore" if before is Phase.SUSPENDED else "cold"


class Lives:
    """The routes. move: into a phase, with its event. made: keeps a child."""

    def __init__(
        self,
        tell: Callable[..., None],
        move: Callable[[MockSandbox, Phase], None],
        made: Callable[[MockSandbox, dict[str, Any]], MockSandbox],
    ) -> None:
        self._tell = tell
        self._move = move
        self._made = made

    def answer(self, method: str, sandbox: MockSandbox, rest: list[str], body: Callable[[], dict[str, Any]]) -> Any:
        """(status, value), or None when it is no route of a life."""
        match method, rest:
            case "POST", [verb] if verb in _VERBS:
                body()
                return 200, self._verb(sandbox, verb)
            case "POST", ["checkpoint"]:
                return 201, self._checkpoint(sandbox)
            case "GET", ["checkpoints"]:
                return 200, {"checkpoints": [asdict(one) for one in sandbox.life.checkpoints.values()]}
            case "DELETE", ["checkpoints", name]:
                sandbox.life.checkpoints.pop(name, None)
                return 204, None
            case "POST", ["rollback"]:
                return 200, self._rollback(sandbox, str(body().get("checkpoint")))
            case "POST", ["fork"]:
                return 201, {"sandboxes": [child.document() for child in self._fork(sandbox, body())]}
        return None

    def _verb(self, sandbox: MockSandbox, verb: str) -> dict[str, Any]:
        to, origins = _VERBS[verb]
        if sandbox.phase is not to:
            if sandbox.phase not in origins:
                raise Conflict(f"sandbox {sandbox.id} is {sandbox.phase}", hint="wake it first")
            self._move(sandbox, to)
        sandbox.life.by_rule = False
        return sandbox.document()

    def _goes_on(self, sandbox: MockSandbox) -> None:
        if sandbox.phase not in (Phase.RUNNING, Phase.PAUSED):
            raise Conflict(f"sandbox {sandbox.id} is {sandbox.phase}", hint="wake it first")

    def _checkpoint(self, sandbox: MockSandbox) -> dict[str, Any]:
        self._goes_on(sandbox)
        made = Checkpoint(new_checkpoint_id(), time.time(), _CHECKPOINT_BYTES, 20.0)
        sandbox.life.checkpoints[made.id] = made
        sandbox.life.instants[made.id] = (dict(sandbox.files), dict(sandbox.members))
        self._tell("checkpointed", sandbox, checkpoint=made.id)
        return asdict(made)

    def _rollback(self, sandbox: MockSandbox, name: str) -> dict[str, Any]:
        if name not in sandbox.life.checkpoints:
            raise NotFound(f"sandbox {sandbox.id} has no checkpoint {name[:64]}")
        files, members = sandbox.life.instants[name]
        for now, then in ((sandbox.files, files), (sandbox.members, members)):
            now.clear()
            now.update(then)
        for process in sandbox.processes.values():
            process.lose("the sandbox was rolled back")
        if sandbox.phase is not Phase.RUNNING:
            self._move(sandbox, Phase.RUNNING)
        else:
            sandbox.life.generation += 1
        sandbox.life.start = "restore"
        self._tell("rolled_back", sandbox, checkpoint=name)
        return sandbox.document()

    def _fork(self, sandbox: MockSandbox, asked: dict[str, Any]) -> list[MockSandbox]:
        self._goes_on(sandbox)
        count = asked.get("count", 1)
        if not isinstance(count, int) or not 1 <= count <= MOST_CHILDREN:
            raise InvalidArgument(f"count is 1 to {MOST_CHILDREN}, not {count!r}")
        more = {name: asked[name] for name in ("ttl_seconds", "metadata") if asked.get(name) is not None}
        children = []
        for _ in range(count):
            child = self._made(sandbox, copy.deepcopy(sandbox.spec) | more)
            child.life = MockLife(start="fork", parent=sandbox.id)
            child.files.update(sandbox.files)
            child.members.update(sandbox.members)
            children.append(child)
        self._tell("forked", sandbox, children=[child.id for child in children])
        return children


class Parcels:
    """Suspended sandboxes as files: what went out is kept here under the file's words, as no other server takes it. made: as of `Lives`."""

    def __init__(self, made: Callable[[MockSandbox, dict[str, Any]], MockSandbox]) -> None:
        self._made = made
        self._sent: dict[bytes, MockSandbox] = {}

    def sent(self, sandbox: MockSandbox) -> httpx.Response:
        """GET .../file."""
        if sandbox.phase is not Phase.SUSPENDED:
            raise Conflict(f"sandbox {sandbox.id} is {sandbox.phase}, and a file is made of one that is suspended", hint="suspend it first")
        data = f"mock sandbox {secrets.token_hex(16)}".encode()
        self._sent[data] = copy.copy(sandbox)
        self._sent[data].files, self._sent[data].members = dict(sandbox.files), dict(sandbox.members)
        return httpx.Response(200, content=data, headers={"content-type": "application/zstd"})

    def taken(self, data: bytes) -> MockSandbox:
        """POST /v1/sandboxes/file."""
        if data not in self._sent:
            raise InvalidArgument("this is no sandbox that can be imported: it was not stored by this installation")
        former = self._sent[data]
        made = self._made(former, copy.deepcopy(former.spec))
        made.phase, made.expires_at = Phase.SUSPENDED, None
        made.life = MockLife(start="", stored=_CHECKPOINT_BYTES)
        made.files.update(former.files)
        made.members.update(former.members)
        return made
