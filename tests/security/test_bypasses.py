"""The two ways out that were published of other platforms, tried end to end by root in a real guest; the canary is a server outside."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv4Network

import pytest
from tests.security.walled import Walled, moved

from space.testing.egressh2 import Http2Upstream
from space.testing.egresslab import Upstream
from space.testing.egresstown import Town
from space.testing.rawguest import GATEWAY, frame, udp

NAME, CANARY = "forged.example.com", "canary.example.com"
FRONT, HIDDEN, SECOND = "front.example.com", "hidden.example.com", "second.example.com"
FRONT2, HIDDEN2, SECOND2 = "front2.example.com", "hidden2.example.com", "second2.example.com"
SYNTHETIC_RANGE = IPv4Network("198.18.0.0/15")
SYNTHETIC, METADATA = "198.18.0.77", "169.254.169.254"


def reply(name: str, address: str, ident: int) -> bytes:
    """A DNS reply: the name is at the address."""
    labels = b"".join(bytes([len(one)]) + one.encode() for one in name.split(".")) + b"\0"
    asked = labels + struct.pack("!HH", 1, 1)
    answer = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 86_400, 4) + IPv4Address(address).packed
    return struct.pack("!HHHHHH", ident, 0x8580, 1, 1, 0, 0) + asked + answer


def h2(authority: str, target: str = "/used", host: str | None = None) -> bytes:
    """A connection's first bytes and one request, its fields spelled out."""

    def literal(name: bytes, value: bytes) -> bytes:
        return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value

    fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", authority.encode()), (b":path", target.encode())]
    fields += [(b"host", host.encode())] if host else []
    block = b"".join(literal(*one) for one in fields)
    head = len(block).to_bytes(3, "big") + b"\x01\x05" + (1).to_bytes(4, "big") + block
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04\0" + bytes(4) + head


def h1(authority: str, target: str = "/used") -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode()


@pytest.fixture(scope="module")
def canary(place: Town) -> Upstream:
    place.serve(NAME)
    return place.serve(CANARY)


def test_a_forged_dns_reply_teaches_the_gateway_nothing(guest: Walled, place: Town, canary: Upstream) -> None:
    address, resolver = place.address(CANARY), place.settings["egress_resolvers"].partition(":")[0]
    guest.allow({"host": NAME})
    assert guest.serves(NAME)
    before, asked = guest.dropped(), len(place.zone.asked)
    replies = [reply(NAME, address, ident) for ident in (0, 7)]
    sources = (GATEWAY, "127.0.0.1", METADATA, SYNTHETIC, resolver, "192.0.2.53")
    forged = [frame(udp(one, port=port, from_port=53, source=source)) for one in replies for source in sources for port in (53, 33_000)]
    found = guest.root(
        "forge",
        {"name": NAME, "canary": address, "frames": [one.hex() for one in forged], "replies": [one.hex() for one in replies],
         "resolver": resolver, "rounds": 5},
    )  # fmt: skip
    assert canary.connections == 0
    assert {one["answer"] for one in found["used"]} == {"HTTP/1.1 200 OK"}, found["used"]
    assert len({tuple(one["told"]) for one in found["used"]}) == 1  # one synthetic address, all the time
    assert IPv4Address(found["used"][0]["told"][0]) in SYNTHETIC_RANGE
    assert set(found["dialled"]) == {"ConnectionRefusedError"}, found["dialled"]
    assert found["answered"] is None
    assert not [one for one in place.zone.asked[asked:] if one[1] != NAME]
    counted = moved(before, guest.dropped(), ("foreign_source", "gateway_port", "guest_udp", "guest_tcp"))
    assert counted["foreign_source"] == found["sent"] > 100, (counted, found["sent"])
    assert counted["gateway_port"] == 3 * len(replies)
    assert counted["guest_udp"] == len(replies)
    assert counted["guest_tcp"] >= len(found["dialled"])
    guest.recorded(lambda one: one.reason == "dns_malformed" and one.kind in ("name", "repeated"))
    assert not [one for one in guest.records() if address in (one.address, one.upstream.partition(":")[0])]
    assert guest.serves(NAME)


@pytest.fixture(scope="module")
def shared(place: Town) -> tuple[Upstream, Http2Upstream]:
    """Servers behind one address each, as a CDN's: one speaks HTTP/1.1, one HTTP/2. The hidden names are allowed by no rule."""
    return place.shared((FRONT, HIDDEN, SECOND)), place.shared_h2((FRONT2, HIDDEN2, SECOND2))


def crossed(to: str, sni: str | None, data: bytes, *, h2: bool = False, **more: object) -> dict[str, object]:
    return {"to": to, "sni": sni, "hex": data.hex(), "alpn": ["h2"] if h2 else [], **more}


# what is tried: how, what of the answer, and the reason in the records
CROSSED = {
    "another Host": (crossed(FRONT, FRONT, h1(HIDDEN)), "HTTP/1.1 421 ", "authority_mismatch"),
    "another Host with the port": (crossed(FRONT, FRONT, h1(f"{HIDDEN}:443")), "HTTP/1.1 421 ", "authority_mismatch"),
    "another Host in capitals": (crossed(FRONT, FRONT, h1(HIDDEN.upper() + ".")), "HTTP/1.1 421 ", "authority_mismatch"),
    "an allowed Host of another address": (crossed(FRONT, FRONT, h1(SECOND)), "HTTP/1.1 421 ", "authority_mismatch"),
    "the absolute form": (crossed(FRONT, FRONT, h1(FRONT, f"https://{HIDDEN}/used")), "HTTP/1.1 400 ", "target_form"),
    "two Hosts": (crossed(FRONT, FRONT, h1(f"{FRONT}\r\nHost: {HIDDEN}")), "HTTP/1.1 400 ", "host"),
    "a second request": (crossed(FRONT, FRONT, h1(FRONT, "/first") + h1(HIDDEN)), "", "authority_mismatch"),
    "another SNI": (crossed(FRONT, HIDDEN, h1(HIDDEN)), "!", "sni_mismatch"),
    "another SNI, and the right Host": (crossed(FRONT, HIDDEN, h1(FRONT), trusting=False), "!", "sni_mismatch"),
    "an allowed SNI of another address": (crossed(FRONT, SECOND, h1(SECOND)), "!", "sni_mismatch"),
    "no SNI": (crossed(FRONT, None, h1(HIDDEN)), "!", "sni_missing"),
    ":authority": (crossed(FRONT2, FRONT2, h2(HIDDEN2), h2=True), "authority_mismatch", "authority_mismatch"),
    ":authority of another address": (crossed(FRONT2, FRONT2, h2(SECOND2), h2=True), "authority_mismatch", "authority_mismatch"),
    ":authority and host": (crossed(FRONT2, FRONT2, h2(FRONT2, host=HIDDEN2), h2=True), '"reason":"host"', "host"),
    "another SNI of HTTP/2": (crossed(FRONT2, HIDDEN2, h2(HIDDEN2), h2=True), "!", "sni_mismatch"),
    "no address for the hidden name": (crossed(HIDDEN, HIDDEN, h1(HIDDEN)), "!", "name_not_allowed"),
}


def test_an_allowed_name_is_no_way_to_another_at_its_address(guest: Walled, shared: tuple[Upstream, Http2Upstream]) -> None:
    one, two = shared
    guest.allow(*({"host": name} for name in (FRONT, SECOND, FRONT2, SECOND2)))
    legitimate = [crossed(FRONT, FRONT, h1(FRONT)), crossed(SECOND, SECOND, h1(SECOND)), crossed(FRONT2, FRONT2, h2(FRONT2), h2=True)]
    before = guest.root("cross", legitimate)
    assert [("got 0" in got["answer"], got["error"]) for got in before] == [(True, "")] * 3, before
    heads, calls = len(one.heads), len(two.calls)
    found = dict(zip(CROSSED, guest.root("cross", [how for how, _, _ in CROSSED.values()]), strict=True))
    for what, (_, answer, _) in CROSSED.items():
        got = found[what]
        if answer == "!":
            assert (got["answer"], bool(got["error"])) == ("", True), (what, got)
        assert answer == "!" or answer in got["answer"], (what, got)
        assert got["seconds"] < 5, (what, got)
    # the servers saw the one request that was right, and nothing of any hidden or second name
    assert [head.split(b"\r\n")[0] for head in one.heads[heads:]] == [b"GET /first HTTP/1.1"]
    assert not [head for head in one.heads[heads:] if HIDDEN.encode() in head or SECOND.encode() in head]
    assert two.calls[calls:] == []
    guest.reasons(*{reason for _, _, reason in CROSSED.values() if reason})
    after = guest.root("cross", legitimate)
    assert [("got 0" in got["answer"], got["error"]) for got in after] == [(True, "")] * 3, after


def test_a_session_of_one_name_is_not_resumed_under_another(guest: Walled, shared: tuple[Upstream, Http2Upstream]) -> None:
    one, _ = shared
    guest.allow({"host": FRONT}, {"host": SECOND})
    heads = len(one.heads)
    found = guest.root("resume", {"first": FRONT, "second": SECOND, "hidden": HIDDEN})
    for version in ("1.2", "1.3"):
        assert found[version] == {"first": [200, False], "again": [200, False], "second": [200, False], "hidden": "refused"}, found
    assert not [head for head in one.heads[heads:] if HIDDEN.encode() in head]
    guest.reasons("sni_mismatch")
