"""What is asked of the gateway's zygote, over one kind of SEQPACKET socket (the node and root, by the peer's uid); MessagePack, bounded.

The zygote holds what a sandbox's worker will need, forks the worker when something waits at one of the sandbox's listeners, and hands on.
It looks into nothing: policies and messages are bytes to it. What is beside a message is descriptors, in the order that is said here.

| asked | beside it | answer |
|---|---|---|
| Bind | listener, DNS, DNS over TCP, signer, audit, dialer, memory, 1 to 4 cgroup files | Done |
| SetPolicy | a sealed memfd with the policy's document | Done once the living worker holds it; at once where none lives |
| Reconnect | the new socket | Done |
| Say | - | Done |
| End | - | Done once the worker is dead and everything of it closed |
| Describe | - | Standing |

Unasked: WorkerStarted, WorkerEnded, Heard. They are edges; levels are what Describe says.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from space.rpc.asking import Refused
from space.rpc.broker_api import Generation, Id, Sandbox

MOST_MESSAGE = 4096
MOST_POLICY = 8 << 20
MOST_BYTES = 8192  # of one question
MOST_PART = 256  # bindings in one Standing
BEFORE_CGROUPS = 7  # descriptors of Bind
MOST_CGROUPS = 4
Message = Annotated[bytes, Meta(min_length=1, max_length=MOST_MESSAGE)]
What = Literal["signer", "audit", "dialer"]


class _Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    id: Id


class Bind(_Question, frozen=True):
    """What this life of a sandbox needs. Again for the same life: replaced, and its worker ends; a later life ends the earlier one.

    synthetic: the network of the addresses that stand for names. memory: a memfd made by `gateway_client.make_memory`, which the node
    keeps, so that names keep their addresses and budgets stay spent over workers and zygotes. Conflict: another sandbox has the slot, or a
    later life of this one is bound.
    """

    sandbox: Sandbox
    generation: Generation
    slot: Annotated[int, Meta(ge=0, lt=1 << 16)]
    synthetic: Annotated[str, Meta(max_length=18)]


class SetPolicy(_Question, frozen=True):
    """The policy of now on. Refused (InvalidArgument) when the worker cannot read it: then nothing is allowed until the next one.

    A worker that does not answer within a second is killed, and the next one begins with this policy.
    """

    sandbox: Sandbox
    generation: Generation
    policy_generation: Generation


class Reconnect(_Question, frozen=True):
    """Another socket in the place of one whose other end is gone, also for the living worker."""

    sandbox: Sandbox
    generation: Generation
    what: What


class Say(_Question, frozen=True):
    """A message to the living worker (`core.wire.workertalk`); NotFound where none lives."""

    sandbox: Sandbox
    generation: Generation
    message: Message


class End(_Question, frozen=True):
    """That life is over. Idempotent."""

    sandbox: Sandbox
    generation: Generation


class Describe(_Question, frozen=True):
    """What is bound, by slot: up to MOST_PART of those after that one. Answer: Standing."""

    after: Annotated[int, Meta(ge=-1, lt=1 << 16)] = -1


class Done(msgspec.Struct, frozen=True, tag=True):
    """It is so."""

    id: int


class Binding(msgspec.Struct, frozen=True):
    """One. policy_generation: 0 before the first policy. worker_pid: 0 while there is none. refused: why its policy cannot be read."""

    sandbox: str
    generation: int
    slot: int
    policy_generation: int
    worker_pid: int
    refused: str = ""


class Standing(msgspec.Struct, frozen=True, tag=True):
    """more: there are others after the last of these."""

    id: int
    bindings: list[Binding]
    more: bool


class WorkerStarted(msgspec.Struct, frozen=True, tag=True):
    """Something came, and a worker was forked for it."""

    sandbox: str
    generation: int
    pid: int


class WorkerEnded(msgspec.Struct, frozen=True, tag=True):
    """crashed: neither for idleness nor because it was asked to. detail: in words."""

    sandbox: str
    generation: int
    crashed: bool
    detail: str


class Heard(msgspec.Struct, frozen=True, tag=True):
    """A worker's message, at a bounded rate: a worker that says more waits."""

    sandbox: str
    generation: int
    message: bytes


ToControl = Bind | SetPolicy | Reconnect | Say | End | Describe
Answer = Done | Standing | Refused
Unasked = WorkerStarted | WorkerEnded | Heard

CONTROL = msgspec.msgpack.Decoder(ToControl)
encode = msgspec.msgpack.Encoder().encode
