"""Questions over a packet socket: each its own answer, and no one waits for a side that is gone."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

import msgspec
import pytest

from space.model.errors import NotFound, ProtocolError, Unavailable
from space.rpc import broker_api as api
from space.rpc.asking import Asker, Refused
from space.rpc.packets import Packets, pair, taken


def asker() -> tuple[Asker, socket.socket]:
    theirs, ours = pair()
    theirs.setblocking(False)
    return Asker(ours, api.Answer, who="the other side"), theirs


async def many(one: Asker, count: int) -> list[asyncio.Task[api.PublicKey]]:
    tasks = []
    for _ in range(count):
        number = one.number()
        tasks.append(asyncio.create_task(one.ask(number, api.encode(api.HeadKey(number)), api.PublicKey)))
    await asyncio.sleep(0)
    return tasks


async def test_answers_find_their_questions_in_any_order() -> None:
    one, theirs = asker()
    tasks = await many(one, 3)
    for number in (3, 1, 2, 9):
        theirs.send(api.encode(api.PublicKey(number, bytes([number]))))
    assert [(await task).key for task in tasks] == [b"\1", b"\2", b"\3"]
    refused, odd = await many(one, 2)
    theirs.send(api.encode(Refused(4, "not_found", "no", "hint")))
    theirs.send(api.encode(api.Done(5)))
    with pytest.raises(NotFound, match="no"):
        await refused
    with pytest.raises(ProtocolError, match="Done where PublicKey"):
        await odd
    one.close()
    theirs.close()


@pytest.mark.parametrize("end", ["closes", "sends nonsense"])
async def test_nobody_waits_for_a_side_that_is_gone_also_not_for_room(end: str) -> None:
    one, theirs = asker()
    tasks = await many(one, 5000)  # more than a socket holds
    await asyncio.sleep(0.05)
    if end == "closes":
        theirs.close()
    else:
        theirs.send(b"\xc1")
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(answer) for answer in answers} == {Unavailable}
    theirs.close()


async def test_a_packet_that_is_too_long_and_descriptors_that_nobody_awaits_do_no_harm() -> None:
    theirs, ours = pair()
    got: list[bytes] = []
    gone = asyncio.Event()
    Packets(ours, lambda message, _: got.append(message), gone.set, most=100)
    read, write = socket.socketpair()
    socket.send_fds(theirs, [b"with descriptors"], [read.fileno()] * 3)
    read.close()
    await until(lambda: bool(got))
    assert got == [b"with descriptors"]
    write.setblocking(False)
    assert await asyncio.get_running_loop().sock_recv(write, 1) == b"", "the kernel dropped them: nobody else has the other end"
    theirs.send(bytes(101))
    await gone.wait()
    theirs.close()
    write.close()


def test_a_descriptor_that_is_no_packet_socket_is_not_taken() -> None:
    stream, far = socket.socketpair()
    assert taken(stream.detach()) is None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("")
    listener.listen()
    assert taken(listener.detach()) is None
    memory = os.memfd_create("x")
    assert taken(memory) is None
    far.close()
    theirs, ours = pair()
    kept = taken(theirs.detach())
    assert kept is not None
    kept.close()
    ours.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - a callback
        await asyncio.sleep(0)


def test_an_answer_with_a_key_has_no_repr_of_it() -> None:
    assert "canary" not in repr(api.LeafOf(1, b"chain", b"canary"))
    assert b"canary" in msgspec.msgpack.encode(api.LeafOf(1, b"chain", b"canary"))
