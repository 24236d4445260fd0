"""Resolution over a real DNS server on loopback: what is taken, what is kept, and every hostile answer."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.dialer import answers
from space.dialer.answers import Bounds, Hostile, Unusable
from space.dialer.exchange import Patience, Server, parsed
from space.dialer.resolve import Resolved, Resolver, Tuning, hosts_of
from space.testing.dnslab import Zone, run, serve

_QUICK = Tuning(rounds=1, patience=Patience(seconds=0.3), bounds=Bounds(ttl=100, negative=30, default=5))


class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def _resolved(zone: Zone, name: str = "a.example.com", tuning: Tuning = _QUICK) -> Resolved:
    found: list[Resolved] = []

    async def main() -> None:
        await serve(zone)
        found.append(await Resolver([zone.server], Clock(), tuning).resolve(name))

    run(main())
    return found[0]


def _of(*addresses: str) -> Resolved:
    return Resolved(tuple(map(ip_address, addresses)))


def test_both_families_are_asked_and_joined() -> None:
    zone = Zone()
    zone.address("a.example.com", "8.8.8.8", "8.8.4.4", "2600::1")
    assert set(_resolved(zone).addresses) == set(map(ip_address, ("8.8.8.8", "8.8.4.4", "2600::1")))
    assert sorted(zone.asked) == [("udp", "a.example.com", "A"), ("udp", "a.example.com", "AAAA")]


def test_no_search_domain_is_tried() -> None:
    zone = Zone()
    assert _resolved(zone, "nothere").fault == "name_not_found"
    assert {name for _, name, _ in zone.asked} == {"nothere"}


def test_name_without_addresses_is_not_a_name_that_does_not_exist() -> None:
    zone = Zone(records={("a.example.com", "A"): [], ("a.example.com", "AAAA"): []})
    assert _resolved(zone).fault == "no_address"


def test_aliases_are_followed_to_the_address() -> None:
    zone = Zone()
    zone.alias("a.example.com", "b.example.com", "c.example.com", address="8.8.8.8")
    assert _resolved(zone) == _of("8.8.8.8")


def test_aliases_that_loop_or_never_end_condemn_the_answer() -> None:
    zone = Zone()
    zone.alias("a.example.com", "b.example.com", "a.example.com")
    zone.alias("b.example.com", *(f"x{number}.example.com" for number in range(12)), address="8.8.8.8")
    assert _resolved(zone).fault == "answer_refused"
    assert _resolved(zone, "b.example.com").fault == "answer_refused"


def test_addresses_of_other_names_in_the_answer_are_not_taken() -> None:
    zone = Zone(records={("a.example.com", "A"): ["evil.example.com. 60 A 9.9.9.9"], ("a.example.com", "AAAA"): []})
    assert _resolved(zone).fault == "no_address"


def test_more_addresses_than_anybody_needs_condemn_the_answer() -> None:
    zone = Zone()
    zone.address("a.example.com", *(f"8.8.{number}.8" for number in range(65)))
    zone.forge = lambda query, whole, tcp: [whole] if tcp else [_truncated(query)]
    assert _resolved(zone).fault == "answer_refused"


def _truncated(query: dns.message.Message) -> bytes:
    response = dns.message.make_response(query)
    response.flags |= dns.flags.TC
    return response.to_wire()


def test_truncated_answer_is_asked_for_by_tcp() -> None:
    zone = Zone()
    zone.address("a.example.com", "8.8.8.8")
    zone.forge = lambda query, whole, tcp: [whole] if tcp else [_truncated(query)]
    assert _resolved(zone) == _of("8.8.8.8")
    assert [how for how, *_ in zone.asked].count("tcp") == 2


def test_forged_datagrams_lead_to_tcp_and_never_to_an_address() -> None:
    zone = Zone()
    zone.address("a.example.com", "8.8.8.8")

    def forge(query: dns.message.Message, whole: bytes, tcp: bool) -> list[bytes]:
        forged = whole.replace(ip_address("8.8.8.8").packed, ip_address("9.9.9.9").packed)
        return [whole] if tcp else [((query.id + 1 + at) % 65536).to_bytes(2, "big") + forged[2:] for at in range(20)]

    zone.forge = forge
    assert _resolved(zone) == _of("8.8.8.8")


@pytest.mark.parametrize("how", ["question", "garbage", "query", "empty", "oversized"])
def test_datagram_that_is_no_answer_to_the_question_is_not_taken(how: str) -> None:
    zone = Zone()
    zone.address("a.example.com", "9.9.9.9")

    def forge(query: dns.message.Message, whole: bytes, _: bool) -> list[bytes]:
        match how:
            case "question":
                return [whole.replace(b"\x01a\x07example", b"\x01b\x07example")]
            case "garbage":
                return [whole[:2] + b"\x81\x80" + b"\xff" * 100]
            case "query":
                return [query.to_wire()]
            case "empty":
                return [b""]
            case _:
                return [whole + bytes(5000)]

    zone.forge = forge
    assert _resolved(zone).fault == "resolver_failed"


def test_oversized_answer_by_tcp_is_not_read() -> None:
    zone = Zone()
    zone.address("a.example.com", "9.9.9.9")
    zone.forge = lambda query, whole, tcp: [whole + bytes(20_000)] if tcp else [_truncated(query)]
    assert _resolved(zone).fault == "resolver_failed"


def test_one_family_that_fails_fails_the_name() -> None:
    zone = Zone()
    zone.address("a.example.com", "8.8.8.8")
    zone.forge = lambda query, whole, _: [] if query.question[0].rdtype == dns.rdatatype.AAAA else [whole]
    assert _resolved(zone).fault == "resolver_failed"


@pytest.mark.parametrize("fault", ["silent", "servfail", "gone"])
def test_next_resolver_is_asked_and_stays_the_first(fault: str) -> None:
    broken, good = Zone(silent=fault == "silent", code=dns.rcode.SERVFAIL), Zone()
    for name in ("a.example.com", "b.example.com"):
        good.address(name, "8.8.8.8")

    async def main() -> None:
        await serve(good)
        await serve(broken)
        first = Server(ip_address("127.0.0.1"), 1) if fault == "gone" else broken.server
        resolver = Resolver([first, good.server], Clock(), _QUICK)
        assert await resolver.resolve("a.example.com") == _of("8.8.8.8")
        before = len(broken.asked)
        assert await resolver.resolve("b.example.com") == _of("8.8.8.8")
        assert len(broken.asked) == before

    run(main())


def test_without_a_resolver_nothing_resolves() -> None:
    async def main() -> None:
        assert (await Resolver([], Clock(), _QUICK).resolve("a.example.com")).fault == "resolver_failed"

    run(main())


def test_answers_are_kept_for_their_ttl_within_the_bounds() -> None:
    zone, clock = Zone(), Clock()
    zone.address("short.example.com", "8.8.8.8", ttl=10)
    zone.address("long.example.com", "8.8.8.8", ttl=100_000)
    zone.address("zero.example.com", "8.8.8.8", ttl=0)

    async def main() -> None:
        await serve(zone)
        resolver = Resolver([zone.server], clock, _QUICK)
        for advance, asked in ((0, 2), (9, 2), (2, 4)):
            clock.now += advance
            await resolver.resolve("short.example.com")
            assert len(zone.asked) == asked
        zone.asked.clear()
        for advance, asked in ((0, 2), (99, 2), (2, 4)):
            clock.now += advance
            await resolver.resolve("long.example.com")
            assert len(zone.asked) == asked
        zone.asked.clear()
        await resolver.resolve("zero.example.com")
        await resolver.resolve("zero.example.com")
        assert len(zone.asked) == 4

    run(main())


def test_absence_and_failure_are_kept_as_well_and_shorter() -> None:
    zone, clock = Zone(), Clock()

    async def main() -> None:
        await serve(zone)
        resolver = Resolver([zone.server], clock, _QUICK)
        for advance, asked in ((0.0, 2), (4.0, 2), (2.0, 4)):
            clock.now += advance
            assert (await resolver.resolve("no.example.com")).fault == "name_not_found"
            assert len(zone.asked) == asked
        zone.code = dns.rcode.SERVFAIL
        zone.asked.clear()
        for advance, asked in ((0.0, 2), (0.5, 2), (1.0, 4)):
            clock.now += advance
            assert (await resolver.resolve("bad.example.com")).fault == "resolver_failed"
            assert len(zone.asked) == asked

    run(main())


def test_cache_is_bounded_and_the_oldest_goes() -> None:
    zone = Zone()

    async def main() -> None:
        await serve(zone)
        resolver = Resolver([zone.server], Clock(), Tuning(kept=10))
        for number in range(30):
            await resolver.resolve(f"x{number}.example.com")
        assert resolver.kept == 10
        zone.asked.clear()
        await resolver.resolve("x29.example.com")
        assert zone.asked == []
        await resolver.resolve("x0.example.com")
        assert len(zone.asked) == 2

    run(main())


def test_questions_for_one_name_at_once_are_one_and_lookups_are_bounded() -> None:
    zone = Zone(silent=True)

    async def main() -> None:
        await serve(zone)
        resolver = Resolver([zone.server], Clock(), Tuning(rounds=1, lookups=1, patience=Patience(seconds=0.3)))
        same = [asyncio.create_task(resolver.resolve("a.example.com")) for _ in range(20)]
        await asyncio.sleep(0.05)
        assert (await resolver.resolve("b.example.com")).fault == "resolver_busy"
        same[0].cancel()
        assert {(await task).fault for task in same[1:]} == {"resolver_failed"}
        assert len(zone.asked) == 2

    run(main())


def test_hosts_are_only_what_the_operator_gave() -> None:
    hosts = hosts_of("# c\n10.0.0.1 Db.example.com db # x\nnonsense\n10.0.0.2 db.example.com\n::1%1 a..b\n")
    assert hosts["db.example.com"] == (ip_address("10.0.0.1"), ip_address("10.0.0.2"))

    async def main() -> None:
        assert (await Resolver([], Clock(), _QUICK, hosts).resolve("db")) == _of("10.0.0.1")
        assert (await Resolver([], Clock(), _QUICK).resolve("localhost")).fault == "resolver_failed"

    run(main())


_NAME = dns.name.from_text("a.example.com")
_OWNERS = st.sampled_from(["a.example.com.", "b.example.com.", "c.example.com.", "."])
_RECORDS = st.tuples(_OWNERS, st.integers(0, 2**31 - 1), st.sampled_from(["A", "CNAME"])).flatmap(
    lambda one: st.tuples(st.just(one), st.ip_addresses(v=4).map(str) if one[2] == "A" else _OWNERS)
)


@given(st.lists(_RECORDS, max_size=12), st.sampled_from([dns.rcode.NOERROR, dns.rcode.NXDOMAIN, dns.rcode.SERVFAIL]))
def test_whatever_the_records_are_addresses_come_from_the_chain_alone(
    records: list[tuple[tuple[str, int, str], str]], code: dns.rcode.Rcode
) -> None:
    response = dns.message.make_response(dns.message.make_query(_NAME, "A"))
    response.set_rcode(code)
    for (owner, ttl, kind), value in records:
        name = dns.name.from_text(owner)
        records_there = response.find_rrset(response.answer, name, dns.rdataclass.IN, dns.rdatatype.from_text(kind), create=True)
        records_there.add(dns.rrset.from_text(name, ttl, "IN", kind, value)[0], ttl)
    try:
        section = answers.read(response, _NAME, dns.rdatatype.A, Bounds())
    except (Hostile, Unusable):
        return
    assert 0 <= section.ttl <= 300
    # A name has one alias: the last that was written stands. What `read` takes has no loop, so this ends.
    aliases = {owner: value for (owner, _, kind), value in records if kind == "CNAME"}
    held = {owner for (owner, _, kind), _ in records if kind == "A"}
    at = "a.example.com."
    for _ in range(len(aliases)):
        at = aliases.get(at, at) if at not in held else at
    assert {str(one) for one in section.addresses} == {value for (owner, _, kind), value in records if (owner, kind) == (at, "A")}


@given(st.binary(max_size=300))
def test_bytes_are_a_response_or_nothing(data: bytes) -> None:
    query = dns.message.make_query(_NAME, "A", id=int.from_bytes(data[:2], "big") if len(data) >= 2 else 0)
    message = parsed(data, query)
    assert message is None or message.id == query.id
