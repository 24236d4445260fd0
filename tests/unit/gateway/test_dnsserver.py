"""DNS of a sandbox: addresses that mean names, for allowed names, and nothing else."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.gateway.dnsserver import Responder, serve_tcp, serve_udp
from space.gateway.records import NameDecided
from space.gateway.surroundings import Limits, Ruling
from space.model.errors import Unavailable
from space.testing.egress import Lab, stack_of
from space.testing.egresslab import ALLOWED, REFUSED, place, run

A, PTR, TXT, AAAA, NULL, SVCB, HTTPS, AXFR, ANY, MX = 1, 12, 16, 28, 10, 64, 65, 252, 255, 15


def query(name: str, qtype: int = A, *, edns: bool = True, ident: int = 7) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode("latin-1") for label in name.split(".") if label) + b"\0"
    option = b"\0" + struct.pack("!HHBBHH", 41, 1232, 0, 0, 0, 0) if edns else b""
    return struct.pack("!HHHHHH", ident, 0x0100, 1, 0, 0, int(edns)) + labels + struct.pack("!HH", qtype, 1) + option


def rcode(answer: bytes | None) -> int:
    assert answer is not None
    return answer[3] & 15


def count(answer: bytes | None) -> int:
    assert answer is not None
    return int.from_bytes(answer[6:8], "big")


@pytest.fixture
def lab() -> Lab:
    made = Lab(Ruling(1, stack_of({"rule": [{"host": ALLOWED}, {"host": "*.wild.example.com"}]})))
    now = [1000.0]
    object.__setattr__(made.around, "clock", lambda: now[0])
    made.worker.shared.wake = lambda: None  # no loop, no timer
    made.now = now  # type: ignore[attr-defined]
    return made


def responder(lab: Lab, **limits: float) -> Responder:
    object.__setattr__(lab.around, "limits", Limits(**limits))  # type: ignore[arg-type]
    return Responder(lab.around, lab.worker.shared.recorder)


def names(lab: Lab) -> list[NameDecided]:
    return [record for record in lab.records if isinstance(record, NameDecided)]


def test_an_allowed_name_has_one_address_that_means_it_for_a_minute(lab: Lab) -> None:
    answers = [responder(lab).answer(query(name)) for name in (ALLOWED, ALLOWED.upper(), ALLOWED + ".")]
    for answer in answers:
        assert answer is not None
        assert (rcode(answer), count(answer)) == (0, 1)
        record = answer[-11 - 16 :][:16]
        kind, group, ttl, length, address = struct.unpack("!HHIH4s", record[2:])
        assert (kind, group, ttl, length) == (1, 1, 60, 4)
        assert socket.inet_ntoa(address) == lab.address(ALLOWED)
    assert {(record.name, record.address, record.rule) for record in names(lab)} == {(ALLOWED, lab.address(ALLOWED), "rule[0]")}


@pytest.mark.parametrize("qtype", [AAAA, TXT, HTTPS, SVCB, MX])
def test_other_types_of_an_allowed_name_are_empty(lab: Lab, qtype: int) -> None:
    answer = responder(lab).answer(query(ALLOWED, qtype))
    assert (rcode(answer), count(answer)) == (0, 0)


@pytest.mark.parametrize("qtype", [PTR, NULL, AXFR, ANY, 251, 0, 41, 249])
def test_odd_types_are_refused(lab: Lab, qtype: int) -> None:
    assert rcode(responder(lab).answer(query(ALLOWED, qtype))) == 5


@pytest.mark.parametrize(
    "name",
    [
        REFUSED, "", "example.com", "wild.example.com", "a.b.wild.example.com", "1.0.0.127.in-addr.arpa", "127.0.0.1", "0x7f.1",
        "a b.example.com",
        "allowed\0.example.com", "-a.wild.example.com", "xn--a.wild.example.com",
        "allowed.example.com.evil.example.com", "é.wild.example.com",
    ],
)  # fmt: skip
def test_every_other_name_is_refused_with_an_extended_error(lab: Lab, name: str) -> None:
    for qtype in (A, AAAA, TXT):
        answer = responder(lab).answer(query(name, qtype))
        assert (rcode(answer), count(answer)) == (5, 0)
        assert answer is not None
        assert answer.endswith(struct.pack("!HHH", 15, 2, 15))  # blocked
    assert len(lab.names) == 0


def test_a_dot_inside_a_label_is_not_two_labels(lab: Lab) -> None:
    label = b"allowed.example"
    message = struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + bytes([len(label)]) + label + b"\x03com\0" + struct.pack("!HH", A, 1)
    assert rcode(responder(lab).answer(message)) == 5


def test_answers_sent_as_queries_and_rubbish_get_nothing_or_formerr(lab: Lab) -> None:
    made = responder(lab)
    good = query(ALLOWED)
    assert made.answer(good[:2] + b"\x81\x00" + good[4:]) is None
    assert made.answer(b"") is None
    assert rcode(made.answer(good + b"x")) == 1
    assert rcode(made.answer(good[:4] + b"\0\2" + good[6:])) == 1
    assert {record.reason for record in names(lab)} == {"dns_malformed"}
    assert len(lab.names) == 0


def test_queries_above_their_rate_are_not_answered(lab: Lab) -> None:
    made = responder(lab, dns_rate=10, dns_burst=20)
    answered = sum(made.answer(query(ALLOWED)) is not None for _ in range(100))
    assert answered == 20
    lab.now[0] += 1  # type: ignore[attr-defined]
    assert sum(made.answer(query(ALLOWED)) is not None for _ in range(100)) == 10


def test_distinct_names_have_a_budget_of_their_own(lab: Lab) -> None:
    made = responder(lab, dns_names_rate=1, dns_names_burst=5)
    codes = [rcode(made.answer(query(f"exfil{n}.wild.example.com"))) for n in range(20)]
    assert codes == [0] * 5 + [5] * 15
    assert rcode(made.answer(query("exfil0.wild.example.com"))) == 0
    assert len(lab.names) == 5
    assert names(lab)[6].reason == "dns_names"


def test_a_policy_that_changes_holds_for_the_next_query(lab: Lab) -> None:
    made = responder(lab)
    assert rcode(made.answer(query(ALLOWED))) == 0
    lab.policy({})
    assert rcode(made.answer(query(ALLOWED))) == 5


@given(st.binary(max_size=600))
def test_no_bytes_make_it_raise_or_answer_longer_than_asked(data: bytes) -> None:
    made = Lab(Ruling(1, stack_of({"open": True})))
    made.worker.shared.wake = lambda: None
    answer = made.worker.responder.answer(data)
    assert answer is None or len(answer) <= len(data) + 40


def test_udp_and_tcp_answer_over_real_sockets(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path, limits=Limits(sweep=0.05, dns_connections=2, dns_idle=0.3)) as at:
            udp, tcp = socket.socket(type=socket.SOCK_DGRAM), socket.socket()
            udp.bind(("127.0.0.1", 0))
            tcp.bind(("127.0.0.1", 0))
            tcp.listen(16)
            where, listening = udp.getsockname(), tcp.getsockname()
            transport = await serve_udp(at.lab.worker.responder, udp)
            server = await serve_tcp(at.lab.worker.responder, tcp, at.lab.around)
            client = socket.socket(type=socket.SOCK_DGRAM)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, where)
            for name, expected in ((ALLOWED, 0), (REFUSED, 5)):
                await loop.sock_sendall(client, query(name))
                assert rcode(await loop.sock_recv(client, 2000)) == expected
            client.close()
            reader, writer = await asyncio.open_connection(*listening)
            asked = query(ALLOWED)
            for byte in (len(asked).to_bytes(2, "big") + asked) * 2:
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            for _ in range(2):
                assert rcode(await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))) == 0
            assert await asyncio.wait_for(_end(reader), 2)  # it has had its time
            for bad in (b"\xff\xff", b"\0\0", b"\0\x10" + bytes(16)):
                reader, writer = await asyncio.open_connection(*listening)
                writer.write(bad)
                await asyncio.wait_for(reader.read(), 2) if bad.endswith(bytes(16)) else await asyncio.wait_for(_end(reader), 2)
                writer.close()
            kept = [await asyncio.open_connection(*listening) for _ in range(2)]
            await asyncio.sleep(0.05)
            third, _ = await asyncio.open_connection(*listening)
            assert await asyncio.wait_for(_end(third), 0.2)
            for _, writer in kept:
                writer.close()
            await server.close()
            transport.close()

    run(main())


async def _end(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


def test_what_cannot_be_recorded_is_not_answered_and_fills_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        def unwritten(_: object) -> None:
            raise Unavailable("the keeper of the records is gone")

        async with place(tmp_path, record=unwritten) as at:
            served = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            served.bind(("127.0.0.1", 0))
            served.setblocking(False)
            transport = await serve_udp(at.lab.worker.responder, served)
            asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            asking.setblocking(False)
            for name in (ALLOWED, REFUSED):
                asking.sendto(query(name), transport.get_extra_info("sockname"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.get_running_loop().sock_recv(asking, 512), 0.2)
            asking.close()
            transport.close()

    run(main())
    assert "could not be answered" not in caplog.text
