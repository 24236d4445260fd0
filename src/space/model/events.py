"""What happened to a tenant's sandboxes, as `GET /v1/events` tells it and webhooks deliver it.

Ids grow, with holes; an event is told once it is committed, in the order of the ids. A stream holds other lines besides:

    {"kind": "heartbeat", "id": N}   everything up to N was told: where to ask from after a break. The first line of a stream that follows
    {"kind": "gap", "oldest": N}     what lay between the asked `after` and N is kept no longer; the events from N on follow
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from space.model.credentials import CredentialAlarm
from space.model.egress import Ask, PolicyStatus

EventKind = Literal[
    "created", "phase", "changed", "checkpointed", "rolled_back", "forked", "out_of_memory",
    "egress_asked", "egress_policy", "egress_worker_ended", "credential_alarm", "deleted",
    "template_built", "template_failed", "template_deleted",
]  # fmt: skip
EVENT_KINDS: tuple[str, ...] = get_args(EventKind)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. at: UNIX seconds. revision, phase, reason: the sandbox's after it.

    created: it is wanted. phase: it went from `from_phase` to `phase`. changed: the caller set `fields` anew. checkpointed, rolled_back: an
    instant of it was kept, or it is what it was at one (`checkpoint`). forked: `children` were asked for, of one instant of it.
    out_of_memory: the guest's kernel killed `count` more processes, the last of them `process`. egress_asked: a request waits for a
    person's word (`ask`). egress_policy: which policy says what may leave it, or whether the machine decides by it, is another (`policy`).
    egress_worker_ended: the process that served its traffic crashed `count` more times, the last for `detail`; the next packet begins
    another. credential_alarm: something went wrong `count` more times with a credential that it uses (`alarm`).
    deleted: it is gone (or its creation was refused), and nothing follows. template_built,
    template_failed, template_deleted: of no sandbox (`sandbox` and
    `phase` are empty) but of the `template` (name:tag); detail: its digest, or the reason.
    """

    id: int
    at: float
    kind: EventKind
    sandbox: str
    revision: int
    phase: str
    reason: str | None = None
    from_phase: str | None = None
    fields: Sequence[str] | None = None
    count: int | None = None
    process: str | None = None
    ask: Ask | None = None
    policy: PolicyStatus | None = None
    detail: str | None = None
    template: str | None = None
    checkpoint: str | None = None
    children: Sequence[str] | None = None
    alarm: CredentialAlarm | None = None
