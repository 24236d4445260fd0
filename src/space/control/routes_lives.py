"""Routes of sandboxes' lives, with their handlers: pause, resume, suspend, stop, wake, checkpoints, rollback, fork."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from space.control import answers, wire
from space.control.answers import Answer
from space.control.call import Call
from space.control.handlers import repeated
from space.control.lives import Wish
from space.control.route import GUEST, IDEMPOTENCY, JSON, SANDBOX, Access, Body, Reply, Route
from space.control.services import Services
from space.control.wire_lives import CheckpointList, ForkedList, ForkRequest, RollbackRequest, WakeRequest
from space.core.lifecycle.table import Request
from space.model.errors import InvalidArgument, NoCapacity, NotFound, SpaceError
from space.model.ids import checkpoint_id
from space.model.sandbox import Checkpoint, SandboxInfo

_INFO = {JSON: SandboxInfo}
_LIFE: tuple[type[SpaceError], ...] = (*GUEST, NoCapacity)


def _asked(request: Request) -> Callable[[Call, Services], Awaitable[Answer]]:
    async def handler(call: Call, services: Services) -> Answer:
        return answers.value(await services.sandboxes.live(call.tenant, call.params["id"], Wish(request)))

    return handler


async def wake(call: Call, services: Services) -> Answer:
    """POST .../wake."""
    asked = wire.decode(await call.json(), WakeRequest)
    wish = Wish(Request.WAKE, "cold" if asked.cold else "")
    return answers.value(await services.sandboxes.live(call.tenant, call.params["id"], wish))


async def rollback(call: Call, services: Services) -> Answer:
    """POST .../rollback."""
    asked = wire.decode(await call.json(), RollbackRequest)
    return answers.value(await services.sandboxes.live(call.tenant, call.params["id"], Wish(Request.ROLLBACK, asked.checkpoint)))


async def fork(call: Call, services: Services) -> Answer:
    """POST .../fork."""
    asked = wire.decode(await call.json(), ForkRequest)
    repeat = repeated(call, msgspec.json.encode(["fork", call.params["id"], asked], order="deterministic"))
    return answers.value(ForkedList(await services.sandboxes.fork(call.tenant, call.params["id"], asked, repeat)), 201)


async def checkpoint(call: Call, services: Services) -> Answer:
    """POST .../checkpoint."""
    entry = await services.sandboxes.wanted(call.tenant, call.params["id"])
    return answers.value(await services.sandboxes.lives.checkpoint(entry), 201)


async def list_checkpoints(call: Call, services: Services) -> Answer:
    """GET .../checkpoints."""
    entry = await services.sandboxes.wanted(call.tenant, call.params["id"])
    return answers.value(CheckpointList(await services.sandboxes.lives.checkpoints(entry.record.id)))


async def delete_checkpoint(call: Call, services: Services) -> Answer:
    """DELETE .../checkpoints/{checkpoint}."""
    entry = await services.sandboxes.wanted(call.tenant, call.params["id"])
    try:
        name = checkpoint_id(call.params["checkpoint"])
    except ValueError as error:
        raise InvalidArgument(str(error), hint="GET .../checkpoints lists those that there are") from None
    await services.sandboxes.lives.drop(entry, name)
    return answers.nothing()


def _verb(name: str, about: str, result: str, request: Request) -> Route:
    return Route(
        "POST", f"{SANDBOX}/{name}", f"{name}_sandbox", about, Access.TENANT, _asked(request), (Reply(200, result, _INFO),), errors=_LIFE
    )


ROUTES: tuple[Route, ...] = (
    _verb("pause", "Stop its processors; its memory stays where it is; idempotent", "It is paused", Request.PAUSE),
    _verb("resume", "Let a paused one's processors run; idempotent", "It runs", Request.RESUME),
    _verb("suspend", "Store its memory and disk, and free what it takes; idempotent", "It is suspended", Request.SUSPEND),
    _verb("stop", "Shut its guest down and keep its disk; idempotent", "It is stopped", Request.STOP),
    Route(
        "POST",
        f"{SANDBOX}/wake",
        "wake_sandbox",
        "Whatever it takes until it runs: resume, restore, or boot from its disk; idempotent",
        Access.TENANT,
        wake,
        (Reply(200, "It runs", _INFO),),
        errors=_LIFE,
        body=Body({JSON: WakeRequest}, required=False),
    ),
    Route(
        "POST",
        f"{SANDBOX}/checkpoint",
        "checkpoint_sandbox",
        "Keep its memory and disk of this instant; it goes on",
        Access.TENANT,
        checkpoint,
        (Reply(201, "It is kept", {JSON: Checkpoint}),),
        errors=_LIFE,
    ),
    Route(
        "GET",
        f"{SANDBOX}/checkpoints",
        "list_checkpoints",
        "Its checkpoints, oldest first",
        Access.TENANT,
        list_checkpoints,
        (Reply(200, "All of them", {JSON: CheckpointList}),),
        errors=GUEST,
        audit=False,
    ),
    Route(
        "DELETE",
        f"{SANDBOX}/checkpoints/{{checkpoint}}",
        "delete_checkpoint",
        "Forget a checkpoint; idempotent",
        Access.TENANT,
        delete_checkpoint,
        (Reply(204, "It is gone", {}),),
        errors=GUEST,
    ),
    Route(
        "POST",
        f"{SANDBOX}/rollback",
        "rollback_sandbox",
        "Make it what it was at a checkpoint, which stays; its present is lost",
        Access.TENANT,
        rollback,
        (Reply(200, "It runs, as it was then", _INFO),),
        errors=(*_LIFE, NotFound),
        body=Body({JSON: RollbackRequest}),
    ),
    Route(
        "POST",
        f"{SANDBOX}/fork",
        "fork_sandbox",
        "Children of one instant of it, which goes on",
        Access.TENANT,
        fork,
        (Reply(201, "They run, all of them (or are what an earlier request with this Idempotency-Key made)", {JSON: ForkedList}),),
        errors=_LIFE,
        headers=(IDEMPOTENCY,),
        body=Body({JSON: ForkRequest}, required=False),
    ),
)
