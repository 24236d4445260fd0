"""What processes that are there already are told: stdin, signals, a terminal's size; and the list of them."""

from __future__ import annotations

import asyncio

from space.control import answers, limits
from space.control.answers import Answer
from space.control.call import Call, ClientGone, flag
from space.control.link import decoded
from space.control.relay import caught
from space.control.services import Services
from space.control.stdin import Spool
from space.control.wire import decode
from space.control.wire_processes import (
    ProcessList,
    SignalRequest,
    StdinInfo,
    WindowRequest,
    check_process_id,
    process_info,
    signal_number,
)
from space.core.wire.events import Message
from space.model.errors import DeadlineExceeded, InvalidArgument, ProtocolError, SpaceError
from space.model.sandbox import MAX_STDIN
from space.rpc import node_api
from space.rpc.node_api import Done, Eof, InputDone, ProcessInfo, ProcessTarget, Resize, Signal, Target
from space.rpc.stream import Stream

_STATES = ("running", "exited", "lost")


async def listed(call: Call, services: Services) -> Answer:
    """GET .../processes."""
    state = call.argument("state")
    if state is not None and state not in _STATES:
        raise InvalidArgument(f"state: {state[:32]!r} is none", hint="one of " + ", ".join(_STATES))
    sandbox = (await services.sandboxes.get(call.tenant, call.params["id"])).id
    found: list[ProcessInfo] = []
    try:
        async with asyncio.timeout(limits.CALL_SECONDS), await services.link.open("processes", Target(sandbox), finish=True) as stream:
            async for event in stream:
                if isinstance(event, Message):
                    found += decoded(event, node_api.ProcessList).processes
    except TimeoutError:
        raise DeadlineExceeded(f"the node did not list the processes within {limits.CALL_SECONDS:g} s") from None
    return answers.value(ProcessList([process_info(one) for one in found if state in (None, one.state)]))


async def get(call: Call, services: Services) -> Answer:
    """GET .../processes/{process}."""
    return answers.value(process_info(await services.link.call("process", await _known(call, services), ProcessInfo)))


async def delete(call: Call, services: Services) -> Answer:
    """DELETE .../processes/{process}."""
    await services.link.call("forget", await _known(call, services), Done)
    return answers.nothing()


async def stdin(call: Call, services: Services) -> Answer:
    """POST .../processes/{process}/stdin."""
    close = flag(call.argument("close"), "close", default=False)
    target = await _running(call, services)
    spool = Spool()
    with services.activity.during(target.sandbox):
        async with await services.link.open("input", target) as stream:
            # The body is read on while the process is slow: its end, or the client's, is seen in time.
            client = asyncio.create_task(caught(lambda: _take(call, spool)))
            feeding = asyncio.create_task(_feed(stream, spool, close=close))
            telling = asyncio.create_task(_told(stream))
            try:
                await asyncio.wait({client, telling}, return_when=asyncio.FIRST_COMPLETED)
                if not telling.done() and (error := client.result()) is not None:
                    raise error
                done = await telling
            finally:
                for task in (client, feeding, telling):
                    task.cancel()
                await asyncio.gather(client, feeding, telling, return_exceptions=True)
                spool.close()
    return answers.value(StdinInfo(done.stdin_bytes))


async def _take(call: Call, spool: Spool) -> None:
    async for piece in call.pieces(MAX_STDIN, "stdin"):
        spool.write(piece)
    spool.end()
    await call.gone()
    raise ClientGone


async def _feed(stream: Stream, spool: Spool, *, close: bool) -> None:
    """A process need not take it; `_told` says so."""
    try:
        async for piece in spool.pieces():
            await stream.send(piece)
        if close:
            await stream.send_message(Eof())
        await stream.close()
    except SpaceError:
        return


async def _told(stream: Stream) -> InputDone:
    async for event in stream:
        if isinstance(event, Message):
            done: InputDone = decoded(event, InputDone)
            return done
    raise ProtocolError("the node ended the input's stream without a count")


async def signal(call: Call, services: Services) -> Answer:
    """POST .../processes/{process}/signal."""
    asked = decode(await call.json(), SignalRequest)
    return await _tell(call, services, Signal(signal_number(asked.signal), asked.all))


async def resize(call: Call, services: Services) -> Answer:
    """POST .../processes/{process}/resize."""
    asked = decode(await call.json(), WindowRequest)
    return await _tell(call, services, Resize(asked.rows, asked.cols))


async def _tell(call: Call, services: Services, message: Signal | Resize) -> Answer:
    target = await _running(call, services)

    async def tell() -> None:
        async with asyncio.timeout(limits.CALL_SECONDS), await services.link.open("input", target) as stream:
            await stream.send_message(message)
            await stream.close()
            await _told(stream)

    with services.activity.during(target.sandbox):
        try:
            await call.while_there(tell())
        except TimeoutError:
            raise DeadlineExceeded(f"the process was not told within {limits.CALL_SECONDS:g} s") from None
    return answers.nothing()


async def _known(call: Call, services: Services) -> ProcessTarget:
    """Of a sandbox that may have ended."""
    sandbox = (await services.sandboxes.get(call.tenant, call.params["id"])).id
    return ProcessTarget(sandbox, check_process_id(call.params["process"]))


async def _running(call: Call, services: Services) -> ProcessTarget:
    """Of a sandbox that runs."""
    await services.sandboxes.usable(call.tenant, call.params["id"])
    return ProcessTarget(call.params["id"], check_process_id(call.params["process"]))
