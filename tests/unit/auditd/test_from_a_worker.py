"""What a worker does with its records: those of one turn go as one message, and what is not taken ends what is open."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from space.audit.records import MOST_TOGETHER, Connected, NameDecided, Record, decode_all
from space.core.policy.kept import SIZE, Kept
from space.gateway.outside import Outside
from space.gateway.surroundings import Limits
from space.gateway.worker import Worker
from space.model.errors import Unavailable
from space.rpc.packets import pair
from space.testing.egress import NETWORK

SANDBOX = "sb-" + "a" * 20


_ZYGOTES: list[socket.socket] = []  # a worker ends itself when its zygote does


class Recording:
    def __init__(self) -> None:
        self.failures: list[Exception] = []
        zygote, mine = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _ZYGOTES.append(zygote)
        self.keeper, audit = pair()
        self.outside = Outside(SANDBOX, mine, "", lambda: None, self.failures.append)
        self.outside.replace("audit", audit)
        around = self.outside.surroundings(NETWORK, Kept(memoryview(bytearray(SIZE))), Limits())
        self.record: Callable[[Record], None] = around.record
        self.worker = Worker(around)
        self.keeper.setblocking(False)


def ended(number: int) -> Connected:
    return Connected(sandbox=SANDBOX, id=str(number), name="a.example.com", port=443)


async def test_records_of_one_turn_go_as_one_message_in_their_order() -> None:
    one = Recording()
    told = [ended(number) for number in range(5)]
    for record in told:
        one.record(record)
    await asyncio.sleep(0)
    assert decode_all(one.keeper.recv(65_536)) == (told, 0)
    with pytest.raises(BlockingIOError):
        one.keeper.recv(65_536)


async def test_more_than_one_message_holds_go_as_several() -> None:
    one = Recording()
    told = [ended(number) for number in range(3 * MOST_TOGETHER)]
    for record in told:
        one.record(record)
    await asyncio.sleep(0)
    found = [record for _ in range(3) for record in decode_all(one.keeper.recv(65_536))[0]]
    assert found == told


async def test_a_decision_on_a_name_is_told_before_its_answer_or_there_is_none() -> None:
    one = Recording()
    decided = NameDecided(sandbox=SANDBOX, name="a.example.com", qtype=1)
    one.record(ended(1))
    one.record(decided)
    assert decode_all(one.keeper.recv(65_536)) == ([ended(1), decided], 0)
    one.keeper.close()
    with pytest.raises(Unavailable):
        one.record(decided)


async def test_what_is_not_taken_is_told_once_and_then_refused_at_once() -> None:
    one = Recording()
    one.keeper.close()
    one.record(ended(1))
    await asyncio.sleep(0)
    assert [type(error) for error in one.failures] == [Unavailable]
    with pytest.raises(Unavailable):
        one.record(ended(2))
    keeper, audit = pair()
    one.outside.replace("audit", audit)
    one.record(ended(3))
    assert decode_all(keeper.recv(65_536)) == ([ended(3)], 0)
    one.record(ended(4))
    await asyncio.sleep(0)
    assert decode_all(keeper.recv(65_536)) == ([ended(4)], 0)
