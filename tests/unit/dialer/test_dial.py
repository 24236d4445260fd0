"""A whole dial over a real DNS server and real connections: only what was checked is dialled, and only while the policy says so."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from space.core.policy.document import compose, read
from space.dialer.connect import Connected, NotConnected, connect
from space.dialer.dial import Dialer, DialRecord
from space.dialer.exchange import Patience
from space.dialer.policies import Policies, Refused
from space.dialer.resolve import Resolver, Tuning
from space.dialer.vet import Checked, Vetter
from space.model.errors import Conflict
from space.testing.dnslab import Zone, run, serve

_NAME, _BOX = "a.example.com", "sb-one"


def _put(policies: Policies, number: int, port: int) -> None:
    document = read(compose({"sandbox": {"version": 1, "rule": [{"tcp": f"{_NAME}:{port}"}]}}))
    policies.add(document)
    policies.put(_BOX, number, document.digest)


def _tried(zone: Zone, work: Callable[[Dialer, int, list[DialRecord], list[Checked]], Awaitable[None]], fails: bool = False) -> None:
    async def main() -> None:
        await serve(zone)
        records: list[DialRecord] = []
        dialled: list[Checked] = []

        async def watched(checked: Checked, port: int) -> Connected | NotConnected:
            dialled.append(checked)
            return await connect(checked, port)

        async def record(one: DialRecord) -> None:
            if fails:
                raise OSError("no audit")
            records.append(one)

        with socket.create_server(("127.9.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            policies = Policies()
            _put(policies, 2, port)
            resolver = Resolver([zone.server], lambda: 0.0, Tuning(rounds=1, patience=Patience(seconds=0.3)))
            vetter = Vetter(frozenset, (ip_network("127.9.0.0/16"),))
            await work(Dialer(policies, resolver, vetter.vet, record, lambda: 0.0, watched), port, records, dialled)

    run(main())


def test_rebinding_dials_the_checked_address_first_and_nothing_after() -> None:
    zone = Zone()
    zone.address(_NAME, "127.9.0.1", ttl=0)

    async def work(dialer: Dialer, port: int, records: list[DialRecord], dialled: list[Checked]) -> None:
        first = await dialer.dial(_BOX, 2, _NAME, port)
        assert isinstance(first, Connected)
        assert first.sock.getpeername() == ("127.9.0.1", port)
        first.sock.close()
        zone.address(_NAME, "10.0.0.1", ttl=0)
        assert await dialer.dial(_BOX, 2, _NAME, port) == Refused("address_private", denied=True)
        assert dialled == [Checked((ip_address("127.9.0.1"),))]
        assert [(one.reason, one.answers, one.address) for one in records] == [
            ("", ("127.9.0.1",), "127.9.0.1"),
            ("address_private", ("10.0.0.1",), ""),
        ]

    _tried(zone, work)


@pytest.mark.parametrize("answers", [("127.9.0.1", "10.0.0.1"), ("127.9.0.1", "::ffff:8.8.8.8"), ("alias",)])
def test_mixed_mapped_and_aliased_private_answers_dial_nothing(answers: tuple[str, ...]) -> None:
    zone = Zone()
    if answers == ("alias",):
        zone.alias(_NAME, "b.example.com", address="10.0.0.1")
    else:
        zone.address(_NAME, *answers)

    async def work(dialer: Dialer, port: int, _: list[DialRecord], dialled: list[Checked]) -> None:
        ended = await dialer.dial(_BOX, 2, _NAME, port)
        assert isinstance(ended, Refused)
        assert ended.denied
        assert dialled == []

    _tried(zone, work)


def test_no_question_leaves_for_what_the_policy_does_not_allow() -> None:
    zone = Zone()

    async def work(dialer: Dialer, port: int, _: list[DialRecord], __: list[Checked]) -> None:
        assert await dialer.dial("sb-other", 2, _NAME, port) == Refused("no_policy", denied=True)
        for generation in (1, 3):
            assert await dialer.dial(_BOX, generation, _NAME, port) == Refused("policy_generation")
        assert await dialer.dial(_BOX, 2, "b.example.com", port) == Refused("name_not_allowed", denied=True)
        for number, digest in ((1, ""), (2, "")):
            with pytest.raises(Conflict):
                dialer.policies.put(_BOX, number, digest)
        assert zone.asked == []

    _tried(zone, work)


def test_policy_that_goes_while_dialling_takes_the_socket_with_it() -> None:
    zone = Zone()
    zone.address(_NAME, "127.9.0.1")

    async def work(dialer: Dialer, port: int, _: list[DialRecord], __: list[Checked]) -> None:
        def changes(_query: object, whole: bytes, _tcp: bool) -> list[bytes]:
            _put(dialer.policies, 3, 1)
            return [whole]

        zone.forge = changes
        assert await dialer.dial(_BOX, 2, _NAME, port) == Refused("port_not_allowed", denied=True)

    _tried(zone, work)


def test_policy_that_goes_while_the_record_waits_takes_the_socket_with_it() -> None:
    zone = Zone()
    zone.address(_NAME, "127.9.0.1")

    async def work(dialer: Dialer, port: int, records: list[DialRecord], _: list[Checked]) -> None:
        async def slow(one: DialRecord) -> None:
            records.append(one)
            dialer.policies.remove(_BOX)

        waiting = replace(dialer, record=slow)
        assert await waiting.dial(_BOX, 2, _NAME, port) == Refused("no_policy", denied=True)
        assert [one.reason for one in records] == ["", "no_policy"]

    _tried(zone, work)


def test_what_cannot_be_recorded_does_not_happen() -> None:
    zone = Zone()
    zone.address(_NAME, "127.9.0.1")

    async def work(dialer: Dialer, port: int, _: list[DialRecord], __: list[Checked]) -> None:
        assert await dialer.dial(_BOX, 2, _NAME, port) == Refused("record_failed")

    _tried(zone, work, fails=True)
