"""Vetting and connecting over real listeners on loopback, which the tests list as the operator's range."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.policy.addresses import Address, Dialable, Ranges, judge
from space.dialer.connect import Connected, Haste, NotConnected, connect, order
from space.dialer.vet import Checked, NotChecked, Vetter
from space.testing.dnslab import run

_LISTED = (ip_network("127.9.0.0/16"),)
_ADDRESSES = (
    st.ip_addresses(v=4) | st.ip_addresses(v=6) | st.sampled_from(["8.8.8.8", "10.0.0.1", "::ffff:8.8.8.8", "127.9.0.1"]).map(ip_address)
)


_PATIENT = Haste()


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextmanager
def _listening(*addresses: str, backlog: int = 16) -> Iterator[int]:
    """The same port on each of them."""
    sockets: list[socket.socket] = []
    port = 0
    for address in addresses:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((address, port))
        listener.listen(backlog)
        port = listener.getsockname()[1]
        sockets.append(listener)
    try:
        yield port
    finally:
        for listener in sockets:
            listener.close()


def _checked(*addresses: str) -> Checked:
    return Checked(tuple(map(ip_address, addresses)))


def _connect(checked: Checked, port: int, haste: Haste = _PATIENT) -> tuple[Connected | NotConnected, float]:
    ended: list[tuple[Connected | NotConnected, float]] = []

    async def main() -> None:
        before = time.monotonic()
        ended.append((await connect(checked, port, haste), time.monotonic() - before))

    run(main())
    return ended[0]


@given(st.lists(_ADDRESSES, max_size=6), st.frozensets(_ADDRESSES, max_size=3))
def test_an_answer_is_checked_exactly_when_every_address_may_be_dialled(answers: list[Address], own: frozenset[Address]) -> None:
    verdict = Vetter(lambda: own, _LISTED).vet(answers)
    fine = bool(answers) and all(isinstance(judge(one, Ranges(own, _LISTED)), Dialable) for one in answers)
    assert isinstance(verdict, Checked) == fine
    if isinstance(verdict, Checked):
        assert verdict.addresses == tuple(answers)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (["8.8.8.8", "10.0.0.1"], "address_private"),
        (["10.0.0.1", "8.8.8.8"], "address_private"),
        (["8.8.8.8", "::ffff:8.8.8.8"], "address_mapped"),
        (["::ffff:169.254.169.254"], "address_mapped"),
        (["64:ff9b::a9fe:a9fe"], "address_nat64"),
        (["169.254.169.254"], "address_metadata"),
        (["8.8.4.4"], "address_own"),
        ([], "address_none"),
    ],
)
def test_mixed_and_mapped_answers_are_refused_whole(answers: list[str], reason: str) -> None:
    vetter = Vetter(lambda: frozenset({ip_address("8.8.4.4")}), ())
    assert vetter.vet(list(map(ip_address, answers))) == NotChecked(reason)


def test_own_addresses_that_cannot_be_known_refuse_everything() -> None:
    def gone() -> frozenset[Address]:
        raise OSError("netlink is gone")

    assert Vetter(gone, _LISTED).vet([ip_address("8.8.8.8")]) == NotChecked("own_addresses_unknown", denied=False)


def test_own_addresses_are_looked_at_with_every_answer() -> None:
    own: set[Address] = set()
    vetter = Vetter(lambda: frozenset(own))
    assert isinstance(vetter.vet([ip_address("8.8.8.8")]), Checked)
    own.add(ip_address("8.8.8.8"))
    assert vetter.vet([ip_address("8.8.8.8")]) == NotChecked("address_own")


def test_socket_is_connected_to_the_checked_address_without_delay_and_not_blocking() -> None:
    with _listening("127.9.0.1") as port:
        ended, _ = _connect(_checked("127.9.0.1"), port)
        assert isinstance(ended, Connected)
        with ended.sock as sock:
            assert sock.getpeername() == ("127.9.0.1", port)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert not os.get_blocking(sock.fileno())
            assert not os.get_inheritable(sock.fileno())


def test_refused_address_is_passed_over_for_the_next() -> None:
    with _listening("127.9.0.2") as port:
        ended, seconds = _connect(_checked("127.9.0.1", "127.9.0.2"), port)
        assert isinstance(ended, Connected)
        ended.sock.close()
        assert str(ended.address) == "127.9.0.2"
        assert seconds < 0.2


def test_address_that_is_silent_is_overtaken_and_its_socket_closed() -> None:
    with _listening("127.9.0.1", backlog=0) as port, _listening_at("127.9.0.2", port):
        fillers = [_filler("127.9.0.1", port) for _ in range(4)]
        before = _descriptors()
        ended, seconds = _connect(_checked("127.9.0.1", "127.9.0.2"), port)
        assert isinstance(ended, Connected)
        assert str(ended.address) == "127.9.0.2"
        assert 0.2 < seconds < 2
        ended.sock.close()
        assert _descriptors() == before
        for filler in fillers:
            filler.close()


def _filler(address: str, port: int) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex((address, port))
    return sock


@contextmanager
def _listening_at(address: str, port: int) -> Iterator[None]:
    with socket.socket() as listener:
        listener.bind((address, port))
        listener.listen(4)
        yield


def test_time_and_attempts_are_bounded() -> None:
    with _listening("127.9.0.1", backlog=0) as port:
        fillers = [_filler("127.9.0.1", port) for _ in range(4)]
        ended, seconds = _connect(_checked("127.9.0.1"), port, Haste(attempt=5, total=0.3))
        assert ended == NotConnected("connect_timeout")
        assert seconds < 1
        ended, _ = _connect(_checked("127.9.0.1"), port, Haste(attempt=0.2))
        assert ended == NotConnected("connect_timeout")
        for filler in fillers:
            filler.close()
    with _listening("127.9.0.9") as port:
        nobody = [f"127.9.0.{number}" for number in range(1, 7)]
        assert _connect(_checked(*nobody, "127.9.0.9"), port)[0] == NotConnected("connect_refused")


def test_given_up_call_leaves_no_socket() -> None:
    with _listening("127.9.0.1", backlog=0) as port:
        fillers = [_filler("127.9.0.1", port) for _ in range(4)]
        before = _descriptors()

        async def main() -> None:
            task = asyncio.create_task(connect(_checked("127.9.0.1", "127.9.0.1"), port))
            await asyncio.sleep(0.4)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        run(main())
        assert _descriptors() == before
        for filler in fillers:
            filler.close()


def test_connection_that_meets_itself_is_nobodys() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    async def main() -> None:
        for _ in range(200):
            assert isinstance(await connect(_checked("127.0.0.1"), port), NotConnected)

    run(main())


@given(st.lists(_ADDRESSES, max_size=8, unique=True))
def test_families_take_turns_and_nothing_is_lost(addresses: list[Address]) -> None:
    ordered = order(addresses)
    assert sorted(map(str, ordered)) == sorted(map(str, addresses))
    for version in (4, 6):
        assert [one for one in ordered if one.version == version] == [one for one in addresses if one.version == version]
    fewer = min(sum(one.version == version for one in addresses) for version in (4, 6))
    assert [one.version for one in ordered[: 2 * fewer]] == [6, 4] * fewer


@pytest.mark.parametrize("peer", [("127.0.0.2", None), ("127.0.0.1", 1)])
def test_a_socket_that_is_connected_elsewhere_than_was_checked_is_nobodys(
    monkeypatch: pytest.MonkeyPatch, peer: tuple[str, int | None]
) -> None:
    closed: list[bool] = []

    class Elsewhere(socket.socket):
        def getpeername(self) -> Any:
            _, port = super().getpeername()
            return peer[0], port if peer[1] is None else peer[1]

        def close(self) -> None:
            closed.append(True)
            super().close()

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            monkeypatch.setattr(socket, "socket", Elsewhere)
            try:
                found = await connect(Checked((ip_address("127.0.0.1"),)), port)
            finally:
                monkeypatch.undo()
        assert found == NotConnected("connect_peer")
        assert closed

    asyncio.run(main())
