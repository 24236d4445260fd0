"""A SimNode's lives: suspended, stopped, woken, copied, by the real table of transitions. Memory that is stored is a flag.

node.life.refuse_wake = NoCapacity("full")    # the next wakes are refused, and the sandbox stays as it is
node.life.fail_wake = "its guest is silent"   # the next lives begin and fall back
node.life.without_vmm = True                  # stored memory cannot be gone on from: Conflict with the hint `cold`
node.life.hold = asyncio.Event()              # transitions stop half way (suspending, waking, ...) until it is set
node.life.hold_fork = asyncio.Event()         # children stay at `preparing` until it is set
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from space.core.lifecycle.table import Accept, Ignore, Refuse, Request, answer
from space.model.errors import Conflict, InvalidArgument, NotFound, SpaceError
from space.model.sandbox import Phase
from space.rpc import life_api
from space.rpc import node_api as api
from space.rpc.session import Data, Stream
from space.testing.simfiles import SimFiles

if TYPE_CHECKING:
    from space.testing.simnode import SimNode, SimSandbox

STORED_BYTES = 48 << 20
CHECKPOINT_BYTES = 32 << 20


class SimLife:
    """Part of a SimNode's verbs. baked: (tenant, template, cpus, memory) of each bake, in order."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self.refuse_wake: SpaceError | None = None
        self.fail_wake: str | None = None
        self.fail_suspend: str | None = None
        self.without_vmm = False
        self.hold: asyncio.Event | None = None
        self.hold_fork: asyncio.Event | None = None
        self.lost = 0  # bytes that its exports count and do not send
        self._sent: dict[bytes, SimSandbox] = {}  # by the file that it went out as
        self.baked: list[tuple[str, str, int, int]] = []
        self._instants: dict[str, tuple[SimFiles, dict[str, bytes]]] = {}  # by checkpoint
        self.verbs: dict[str, Callable[[Stream, bytes], Awaitable[None]]] = {
            "pause": self._pause,
            "resume": self._resume,
            "suspend": self._suspend,
            "stop": self._stop,
            "wake": self._wake,
            "checkpoint": self._checkpoint,
            "checkpoints": self._checkpoints,
            "drop_checkpoint": self._drop,
            "rollback": self._rollback,
            "fork": self._fork,
            "bake": self._bake,
            "template_snapshot": self._template,
            "sandbox_export": self._export,
            "sandbox_import": self._import,
        }

    @staticmethod
    def verdict(there: SimSandbox, request: Request) -> Accept | Ignore:
        """What the table says; raises its refusal."""
        verdict = answer(Phase(there.phase), request)
        if isinstance(verdict, Refuse):
            raise verdict.fault(there.create.sandbox)
        return verdict

    @staticmethod
    def bytes_of(there: SimSandbox) -> int:
        """On the disk."""
        return STORED_BYTES * there.stored + sum(one.bytes for one in there.checkpoints.values())

    # -- one after the other ----------------------------------------------------------------------------------------------

    def _move(self, there: SimSandbox, request: Request, reason: str | None = None) -> api.SandboxState:
        verdict = self.verdict(there, request)
        phase = verdict.phase.value if isinstance(verdict, Accept) else there.phase
        return self._node._move(there, phase, reason)

    async def _begin(self, stream: Stream, there: SimSandbox, request: Request) -> bool:
        """Whether there is something to do: into the phase of the transition, where it may be held."""
        if isinstance(self.verdict(there, request), Ignore):
            await self._settled(stream, there)
            return False
        await stream.send_message(self._move(there, request))
        await self._held()
        return self._node.sandboxes.get(there.create.sandbox) is there

    async def _held(self) -> None:
        if self.hold is not None:
            await self.hold.wait()

    async def _settled(self, stream: Stream, there: SimSandbox) -> None:
        if there.phase in (Phase.SUSPENDING, Phase.STOPPING, Phase.WAKING, Phase.STARTING):
            await self._held()
            await asyncio.sleep(0)
        await stream.send_message(self._node._state(there, there.phase))

    def _target(self, request: bytes) -> SimSandbox:
        return self._node._find(msgspec.msgpack.decode(request, type=api.Target).sandbox)

    # -- verbs ------------------------------------------------------------------------------------------------------------

    async def _pause(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(self._move(self._target(request), Request.PAUSE))

    async def _resume(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(self._move(self._target(request), Request.RESUME))

    async def _suspend(self, stream: Stream, request: bytes) -> None:
        there = self._target(request)
        paused = there.phase == Phase.PAUSED
        if not await self._begin(stream, there, Request.SUSPEND):
            return
        if self.fail_suspend is not None:
            await stream.send_message(self._move(there, Request.STOOD if paused else Request.WENT_ON, self.fail_suspend))
            return
        there.stored = True
        await stream.send_message(self._move(there, Request.STORED))

    async def _stop(self, stream: Stream, request: bytes) -> None:
        there = self._target(request)
        if await self._begin(stream, there, Request.STOP):
            self._node._end_processes(there.create.sandbox, "the sandbox was stopped")
            there.stored, there.busy = False, False
            await stream.send_message(self._move(there, Request.HALTED))

    async def _wake(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=life_api.Wake)
        there = self._node._find(asked.sandbox)
        wish = Request.START if asked.cold else Request.WAKE
        self._may_begin(there, asked, wish)
        if there.phase == Phase.SUSPENDED and self.without_vmm and not asked.cold:
            raise Conflict(f"sandbox {asked.sandbox} cannot go on from its snapshot: another VMM is installed", hint="wake it with cold")
        if there.phase == Phase.PAUSED:
            await stream.send_message(self._move(there, wish))
            return
        was_stored = there.stored and not asked.cold
        if await self._begin(stream, there, wish):
            await self._come_up(stream, there, asked, "restore" if was_stored else "cold")

    def _may_begin(self, there: SimSandbox, asked: life_api.Life, wish: Request) -> None:
        if isinstance(self.verdict(there, wish), Accept) and there.phase != Phase.PAUSED:
            if self.refuse_wake is not None:
                raise self.refuse_wake
            if asked.generation <= there.create.generation:
                raise Conflict(
                    f"sandbox {there.create.sandbox} has had generation {there.create.generation}, {asked.generation} is no new life"
                )
            self._node.egress.known(asked.policy)

    async def _come_up(self, stream: Stream, there: SimSandbox, asked: life_api.Life, start: str) -> None:
        if self.fail_wake is not None:
            await stream.send_message(self._move(there, Request.UNWOKEN if there.stored else Request.UNSTARTED, self.fail_wake))
            return
        if start == "cold":
            self._node._end_processes(there.create.sandbox, "the sandbox was started anew")
        env = there.create.env if asked.env is None else asked.env
        there.create = msgspec.structs.replace(there.create, generation=asked.generation, env=env)
        there.traffic.policy, there.traffic.policy_generation = asked.policy, asked.policy_generation
        there.start, there.stored = start, False
        stages = {"slot": 1.0, "disk": 1.0, "spawn": 2.0, "claim": 0.5}
        moved = self._move(there, Request.READY)
        await stream.send_message(msgspec.structs.replace(moved, stages_ms=stages))

    async def _checkpoint(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=life_api.Checkpoint)
        there = self._node._find(asked.sandbox)
        if asked.checkpoint not in there.checkpoints:
            self.verdict(there, Request.CHECKPOINT)
            taken = life_api.Checkpointed(asked.checkpoint, 41.5, CHECKPOINT_BYTES, time.time_ns() // 1000)
            there.checkpoints[asked.checkpoint] = taken
            self._instants[asked.checkpoint] = (there.files.copy(), dict(there.trees))
            self._node._move(there, there.phase)
        await stream.send_message(there.checkpoints[asked.checkpoint])

    async def _checkpoints(self, stream: Stream, request: bytes) -> None:
        await stream.send_message(life_api.CheckpointList(list(self._target(request).checkpoints.values())))

    async def _drop(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=life_api.CheckpointTarget)
        there = self._node._find(asked.sandbox)
        if there.checkpoints.pop(asked.checkpoint, None) is not None:
            self._node._move(there, there.phase)
        await stream.send_message(api.Done())

    async def _rollback(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=life_api.Rollback)
        there = self._node._find(asked.sandbox)
        if asked.checkpoint not in there.checkpoints:
            raise NotFound(f"sandbox {asked.sandbox} has no checkpoint {asked.checkpoint}")
        self._may_begin(there, asked, Request.ROLLBACK)
        if await self._begin(stream, there, Request.ROLLBACK):
            self._node._end_processes(asked.sandbox, "the sandbox was rolled back")
            there.stored = True
            files, trees = self._instants[asked.checkpoint]
            there.files, there.trees = files.copy(), dict(trees)
            await self._come_up(stream, there, asked, "restore")

    async def _fork(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=life_api.Fork)
        parent = self._node._find(asked.sandbox)
        self.verdict(parent, Request.FORK)
        if self._node.refuse_create is not None:
            raise self._node.refuse_create
        for child in asked.children:
            self._node.egress.known(child.policy)
            if child.grants:
                await self._node.credentials.broker().attach_grants(parent.create.tenant, child.sandbox, tuple(child.grants))
        await stream.send_message(life_api.Forked(38.5))
        made = [self._child(parent, child) for child in asked.children]
        for there in made:
            await stream.send_message(self._node._move(there, "preparing"))
        if self.hold_fork is not None:
            await self.hold_fork.wait()
        for there in made:
            if self._node.sandboxes.get(there.create.sandbox) is not there:
                continue
            if self._node.fail_create is not None:
                await stream.send_message(self._node._move(there, "failed", self._node.fail_create))
            else:
                await stream.send_message(self._node._move(there, "running", stages={"slot": 1.0, "disk": 1.0, "spawn": 2.0, "claim": 0.5}))

    def _child(self, parent: SimSandbox, child: life_api.Child) -> SimSandbox:
        node = self._node
        asked = msgspec.structs.replace(
            parent.create,
            sandbox=child.sandbox,
            generation=child.generation,
            policy=child.policy,
            policy_generation=child.policy_generation,
            env=parent.create.env if child.env is None else child.env,
            labels=parent.create.labels if child.labels is None else child.labels,
            grants=list(child.grants),
        )
        if child.sandbox not in node.sandboxes:
            node.sandboxes[child.sandbox] = type(parent)(
                asked, trees=dict(parent.trees), files=parent.files.copy(), traffic=node.egress.begin(asked), start="fork"
            )
            node.created += 1
        return node.sandboxes[child.sandbox]

    async def _bake(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=life_api.Bake)
        self.baked.append((asked.tenant, asked.digest or asked.template, asked.cpus, asked.memory_mib))
        await stream.send_message(api.Done())

    async def _template(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=life_api.TemplateSnapshot)
        there = self._node._find(asked.sandbox)
        self.verdict(there, Request.CHECKPOINT)
        await stream.send_message(self._node.templating.keep(there.create.tenant, asked.name, asked.digest))

    async def _export(self, stream: Stream, request: bytes) -> None:
        there = self._target(request)
        if there.phase != "suspended":
            raise Conflict(f"sandbox {there.create.sandbox} is {there.phase}, and a file is made of one that is suspended")
        data = f"simulated {there.create.sandbox}".encode()
        self._sent[data] = there
        await stream.send(data)
        await stream.send_message(api.Exported("0" * 64, len(data) + self.lost, zlib.crc32(data)), last=True)

    async def _import(self, stream: Stream, request: bytes) -> None:
        asked = msgspec.msgpack.decode(request, type=life_api.Import)
        data = b"".join([bytes(event.payload) async for event in stream if isinstance(event, Data)])
        if data not in self._sent:
            raise InvalidArgument("this is no sandbox that can be imported: it was not stored by this installation")
        made = msgspec.structs.replace(
            self._sent[data].create,
            sandbox=asked.sandbox,
            tenant=asked.tenant,
            generation=1,
            policy="",
            policy_generation=0,
            labels={},
            grants=[],
        )
        there = type(self._sent[data])(made, traffic=self._node.egress.begin(made), start="", stored=True)
        self._node.sandboxes[asked.sandbox] = there
        self._node._move(there, "suspended")
        told = life_api.Imported(made.template, made.cpus, made.memory_mib, made.disk_mib, dict(made.env), STORED_BYTES, made.digest)
        await stream.send_message(told, last=True)
