"""Properties of the egress wall, each tried by root from inside a real guest; docs/egress-properties.md says which test holds which."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
import time

import pytest
from tests.security.walled import Walled, eventually, moved

import space
from space.core.plan.edge import REFUSED
from space.serve.private import Served
from space.testing.egresslab import Upstream
from space.testing.egresstown import Town
from space.testing.hostileframes import ATTACKS
from space.testing.rawguest import GATEWAY

OPEN, SHUT, WILD = "open.example.com", "shut.example.com", "wild.example.com"


@pytest.fixture(scope="module")
def server(place: Town) -> Upstream:
    """Of the name that is allowed."""
    place.serve(SHUT)
    return place.serve(OPEN)


def raw(to: str, head: str, port: int = 443) -> dict[str, object]:
    return {"to": to, "port": port, "hex": head.encode("latin-1").hex()}


# -- 1: no uplink -------------------------------------------------------------------------------------------------------------
def test_frames_of_a_hostile_kernel_are_dropped_and_counted_as_what_they_are(guest: Walled, server: Upstream) -> None:
    guest.allow({"host": OPEN})
    assert guest.serves(OPEN)
    before, heads = guest.dropped(), len(server.heads)
    found = guest.root("frames", {"frames": [frame.hex() for _, frame in ATTACKS.values()]})
    assert found["sent"] == len(ATTACKS)
    expected = dict.fromkeys(REFUSED, 0)
    for kind, _ in ATTACKS.values():
        expected[kind] += 1
    assert moved(before, guest.dropped(), REFUSED) == expected
    assert len(server.heads) == heads
    assert guest.serves(OPEN)


def test_connections_to_what_no_name_has_are_reset_at_once_and_counted(guest: Walled, place: Town, server: Upstream) -> None:
    guest.allow({"host": OPEN})
    outside = ["203.0.113.7", "169.254.169.254", "192.168.1.1", "10.0.0.6", "172.16.0.1", "100.64.0.1", place.address(SHUT)]
    tried = [[address, port] for address in outside for port in (22, 53, 80, 443, 853)]
    before = guest.dropped()
    found = guest.root("scan", tried)
    assert (found["connected"], found["errors"]) == ([], {"ConnectionRefusedError": len(tried)})
    assert found["slowest"] < 1
    assert moved(before, guest.dropped(), ["guest_tcp"])["guest_tcp"] == len(tried)


# -- 12: no page of the gateway -----------------------------------------------------------------------------------------------
def test_no_port_of_the_gateway_answers_but_names_and_nothing_of_it_is_a_page(guest: Walled, server: Upstream) -> None:
    guest.allow({"host": OPEN})
    tried = [[GATEWAY, port] for port in (*range(1, 1025), 3128, 8080, 8443, 9090, 15000, 15001, 15002, 65535)]
    found = guest.root("scan", tried)
    assert found["connected"] == [[GATEWAY, 53]]
    page = "GET / HTTP/1.1\r\nHost: {}\r\n\r\n"
    told = guest.root(
        "plain", [raw(GATEWAY, page.format(GATEWAY), 53), raw(OPEN, page.format(OPEN), 443), raw(OPEN, page.format(OPEN), 80)]
    )
    assert [one["got"] for one in told[:2]] == ["", ""], told  # DNS that is none, no TLS where TLS is due
    said = json.loads(told[2]["got"].partition("\r\n\r\n")[2])  # a port of no rule: fixed words
    assert said.pop("request_id")
    assert said == {"error": "egress_denied", "reason": "port_not_allowed", "rule": "rule[0]", "host": OPEN}
    guest.reasons("port_not_allowed")
    status, _ = guest.get(f"https://{OPEN}/", "--resolve", f"{GATEWAY}:443:{GATEWAY}")
    assert status == "200"


# -- 3: names -----------------------------------------------------------------------------------------------------------------
def test_names_get_synthetic_addresses_or_a_refusal_and_no_query_leaves_the_machine(guest: Walled, place: Town, server: Upstream) -> None:
    guest.allow({"host": OPEN}, {"host": f"*.{WILD}"})
    asked = len(place.zone.asked)
    types = {"AAAA": 28, "TXT": 16, "MX": 15, "SVCB": 64, "HTTPS": 65, "NULL": 10, "PTR": 12, "AXFR": 252, "ANY": 255}
    queries: list[tuple[str, int]] = [(OPEN, 1), (f"secret-data.{WILD}", 1), *((OPEN, kind) for kind in types.values())]
    queries += [(name, 1) for name in (SHUT, WILD, f"a.b.{WILD}", f"{OPEN}.attacker.example.net", "localhost", "1.0.0.10.in-addr.arpa")]
    question = b"\4open\7example\3com\0\0\1\0\1"
    wrong = [
        struct.pack("!HHHHHH", 7, 0x8180, 1, 0, 0, 0) + question,  # an answer
        struct.pack("!HHHHHH", 7, 0x0100, 2, 0, 0, 0) + question * 2,
        struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + b"\xc0\x0c\0\1\0\1",  # a name that points to itself
        struct.pack("!HHHHHH", 7, 0x2800, 1, 0, 0, 0) + question,  # an update
        b"\0" * 5,
    ]
    found = guest.root("queries", {"queries": queries, "raw": [one.hex() for one in wrong]})
    answers = dict(zip(queries, found["queries"], strict=True))
    for name in (OPEN, f"secret-data.{WILD}"):
        assert answers[name, 1]["code"] == 0, answers
        assert answers[name, 1]["addresses"][0].startswith(("198.18.", "198.19."))
    for kind in ("AAAA", "TXT", "MX", "SVCB", "HTTPS"):
        assert answers[OPEN, types[kind]] == {"code": 0, "addresses": []}, kind
    for kind in ("NULL", "PTR", "AXFR", "ANY"):
        assert answers[OPEN, types[kind]]["code"] == 5, kind
    assert all(answers[name, 1]["code"] == 5 for name, kind in queries[2 + len(types) :] if kind == 1), answers
    assert set(found["raw"]) <= {None, 1, 4}, found["raw"]  # silence, FORMERR, NOTIMP
    assert place.zone.asked[asked:] == []
    guest.reasons("name_not_allowed", "dns_type", "dns_malformed")


# -- 5: TLS -------------------------------------------------------------------------------------------------------------------
def test_a_certificate_is_for_exactly_one_name_under_an_authority_that_signs_no_other(guest: Walled, server: Upstream) -> None:
    guest.allow({"host": OPEN})
    script = f"openssl s_client -connect {OPEN}:443 -servername {OPEN} -showcerts </dev/null 2>/dev/null"
    wanted = '/BEGIN/{n++} {print > "/tmp/chain" n ".pem"}'
    text = "openssl x509 -noout -text -in /tmp/chain"
    status, told = guest.sh(f"{script} | awk '/BEGIN/,/END/' | awk '{wanted}'; {text}1.pem; echo =====; {text}2.pem")
    leaf, _, intermediate = told.partition("=====")
    assert status == 0, told
    assert [line.strip() for line in leaf.splitlines() if "DNS:" in line] == [f"DNS:{OPEN}"]
    assert "CA:FALSE" in leaf
    assert "prime256v1" in leaf
    assert "CA:TRUE, pathlen:0" in intermediate


def test_old_versions_and_the_wrong_kind_of_traffic_get_nothing(guest: Walled, server: Upstream) -> None:
    guest.allow({"host": OPEN}, {"host": SHUT, "scheme": "http"})
    heads = len(server.heads)
    hello = bytes.fromhex("160301002f0100002b0301") + bytes(32) + bytes.fromhex("000004002f0035010000") + b""
    tried = [
        {"to": OPEN, "port": 443, "hex": hello.hex()},  # TLS 1.0, and no name
        raw(OPEN, f"GET / HTTP/1.1\r\nHost: {OPEN}\r\n\r\n"),  # no TLS where TLS is due
        raw(OPEN, "SSH-2.0-x\r\n"),
        {"to": SHUT, "port": 80, "hex": hello.hex()},  # TLS where none is due
    ]
    for what, told in zip(tried, guest.root("plain", tried), strict=True):
        assert "200 OK" not in told["got"], (what, told)
        assert "HTTP/1.1 2" not in told["got"], (what, told)
    assert len(server.heads) == heads
    assert guest.serves(OPEN)


# -- 6: HTTP ------------------------------------------------------------------------------------------------------------------
SMUGGLED = {
    "length and chunks": "POST / HTTP/1.1\r\nHost: {0}\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nX",
    "two lengths": "POST / HTTP/1.1\r\nHost: {0}\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nXX",
    "a signed length": "POST / HTTP/1.1\r\nHost: {0}\r\nContent-Length: +1\r\n\r\nX",
    "another coding": "POST / HTTP/1.1\r\nHost: {0}\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a folded field": "GET / HTTP/1.1\r\nHost: {0}\r\nX: a\r\n b\r\n\r\n",
    "a space before the colon": "GET / HTTP/1.1\r\nHost : {0}\r\n\r\n",
    "a bare line feed": "GET / HTTP/1.1\nHost: {0}\n\n",
    "a bare carriage return": "GET / HTTP/1.1\r\nHost: {0}\r\nX: a\rb\r\n\r\n",
    "no host": "GET / HTTP/1.1\r\nX: y\r\n\r\n",
    "HTTP/0.9": "GET /\r\n\r\n",
    "CONNECT": "CONNECT {0}:443 HTTP/1.1\r\nHost: {0}\r\n\r\n",
    "TRACE": "TRACE / HTTP/1.1\r\nHost: {0}\r\n\r\n",
    "a method override": "GET / HTTP/1.1\r\nHost: {0}\r\nX-HTTP-Method-Override: DELETE\r\n\r\n",
    "twice encoded": "GET /a%252e%252e/b HTTP/1.1\r\nHost: {0}\r\n\r\n",
    "above the root": "GET /a/../../b HTTP/1.1\r\nHost: {0}\r\n\r\n",
}


def test_requests_with_two_meanings_reach_nobody(guest: Walled, server: Upstream) -> None:
    guest.allow({"host": OPEN, "methods": ["GET", "POST"]})
    assert guest.serves(OPEN)
    heads = len(server.heads)
    tried = [{"to": OPEN, "sni": OPEN, "hex": text.format(OPEN).encode().hex()} for text in SMUGGLED.values()]
    found = dict(zip(SMUGGLED, guest.root("cross", tried), strict=True))
    statuses = {what: one["answer"][9:12] for what, one in found.items()}
    assert {what: status for what, status in statuses.items() if status not in ("400", "403", "501", "505", "")} == {}
    assert server.heads[heads:] == []
    assert guest.serves(OPEN)


# -- 7: dialling --------------------------------------------------------------------------------------------------------------
def test_allowed_names_at_addresses_that_are_not_public_are_dialled_nowhere(guest: Walled, place: Town, server: Upstream) -> None:
    there = place.address(OPEN)
    names = {
        "private.example.com": ["192.168.1.1"], "metadata.example.com": ["169.254.169.254"], "loop.example.com": ["127.0.0.1"],
        "mixed.example.com": [there, "10.9.9.9"], "mapped.example.com": ["::ffff:127.0.0.1"], "nat64.example.com": ["64:ff9b::a9fe:a9fe"],
    }  # fmt: skip
    for name, addresses in names.items():
        place.zone.address(name, *addresses)
    place.zone.alias("alias.example.com", "inner.example.com", address="10.9.9.9")
    every = (*names, "alias.example.com")
    guest.allow(*({"host": name} for name in (*every, OPEN)))
    connections = server.connections
    tried = [{"to": name, "sni": name, "hex": f"GET / HTTP/1.1\r\nHost: {name}\r\n\r\n".encode().hex()} for name in every]
    for one, told in zip(tried, guest.root("cross", tried), strict=True):
        head, _, body = told["answer"].partition("\r\n\r\n")
        assert head[9:12] in ("403", "502"), (one["to"], told)
        assert json.loads(body)["reason"].startswith("address_"), (one["to"], body)
    assert server.connections == connections
    records = guest.recorded(lambda one: one.kind == "dial" and one.name == "alias.example.com")
    dials = {one.name: one.reason for one in records if one.kind == "dial"}
    assert all(dials[name].startswith("address_") for name in names), dials
    assert guest.serves(OPEN)


# -- 9: live policy -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.usefixtures("server")
def test_a_policy_that_changes_closes_what_it_does_not_allow_within_a_second(guest: Walled, place: Town, paused: bool) -> None:
    name = f"stream{paused:d}.example.com"

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not reader.at_eof():
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)

    upstream = place.serve(name, stream)
    guest.allow({"host": name}, {"host": OPEN})
    process = guest.start("hold", name)
    eventually(lambda: True if b"begun" in guest.output(process) else None, 60)
    assert upstream.open == 1
    if paused:
        guest.sandbox.pause()
    told = guest.sandbox.set_policy({"version": 1, "rule": [{"host": OPEN}]})
    answered = time.monotonic()
    assert told.status.state == "applied"
    eventually(lambda: True if upstream.open == 0 else None, 1)
    print(f"closed {time.monotonic() - answered:.3f} s after the answer")
    if paused:
        guest.sandbox.resume()
    eventually(lambda: True if b"cut" in guest.output(process) else None, 30)
    assert guest.get(f"https://{name}/")[0] != "200"
    assert guest.serves(OPEN)
    guest.reasons("name_not_allowed")
    assert upstream.connections == 1


# -- 10: limits, each sandbox's own -------------------------------------------------------------------------------------------
def test_a_sandbox_at_its_limits_is_refused_alone_and_its_neighbour_is_served(
    guest: Walled, client: space.Client, server: Upstream
) -> None:
    rules = {"version": 1, "rule": [{"host": OPEN}]}
    guest.allow({"host": OPEN})
    with space.Sandbox.create(client=client, policy=rules, ttl_seconds=600) as other:
        found: list[dict[str, int]] = []
        thread = threading.Thread(
            target=lambda: found.append(guest.root("flood", {"name": OPEN, "seconds": 6, "connections": 700}, seconds=200))
        )
        thread.start()
        slowest = 0.0
        statuses = []
        while thread.is_alive():
            began = time.monotonic()
            told = other.run(["curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", f"https://{OPEN}/neighbour"])
            slowest = max(slowest, time.monotonic() - began)
            statuses.append(told.text)
        thread.join()
        print(found, len(statuses), f"slowest {slowest:.1f} s")
        assert set(statuses) == {"200"}
        assert other.egress().denied == 0
    assert found[0]["alive"] <= 512
    assert found[0]["queries"] > 500
    guest.reasons("dns_rate", "too_many_handshakes")
    eventually(lambda: True if guest.serves(OPEN) else None, 30)


# -- 11: records --------------------------------------------------------------------------------------------------------------
def test_no_record_and_no_log_holds_what_a_query_a_field_or_a_body_said(guest: Walled, server: Upstream, served: Served) -> None:
    canary = "canary4secret7"
    guest.allow({"host": OPEN})
    status, _ = guest.get(f"https://{OPEN}/path?token={canary}&b={canary}", "-H", f"'Authorization: Bearer {canary}'", "-d", canary)
    assert status == "200"
    assert canary.encode() in server.seen  # it was sent
    (record,) = guest.recorded(lambda one: one.path == "/path")[-1:]
    found = [one for one in guest.records() if one.path == "/path"]
    assert [one.query for one in found] == [("token", "b")], record
    files = [path for top in (served.instance.audit_data, served.instance.log) for path in top.rglob("*") if path.is_file()]
    assert files
    assert [path.name for path in files if canary.encode() in path.read_bytes()] == []
