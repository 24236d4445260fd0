"""The minter against a real dialer and a real endpoint: what the operator named is reached, verified and answered for; nothing else is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from space.config.egress import Endpoint
from space.minter.desk import Desk, Limits
from space.minter.exchange import Reply, context, exchange, request
from space.model.errors import InvalidArgument, NotFound, Unavailable
from space.model.secret import Secret
from space.rpc import minter_api as api
from space.rpc.minter_client import MinterControl, MinterSocket
from space.rpc.packets import pair
from space.testing.dialerlab import Place, placed
from space.testing.dnslab import run
from space.testing.tokenendpoint import TokenEndpoint, token_endpoint

NAME = "auth.example.com"
LIMITS = Limits(seconds=5)
FORM = Secret(b"grant_type=refresh_token&refresh_token=r1")
CLIENT = Secret(b"agent:s3cret")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@dataclass
class Minting:
    endpoint: TokenEndpoint
    place: Place
    desk: Desk
    control: MinterControl
    broker: MinterSocket


@asynccontextmanager
async def minting(tmp_path: Path, *, named: str = NAME, dialled: bool = True, limits: Limits = LIMITS) -> AsyncIterator[Minting]:
    """named: what the endpoint's certificate is for."""
    async with token_endpoint(tmp_path, named, "127.9.0.2") as endpoint:
        endpoint.refresh_tokens.add("r1")
        ours = Endpoint(NAME, endpoint.port, "/token")
        async with placed(endpoints=[ours]) as place:
            place.zone.address(NAME, "127.9.0.2")
            desk = Desk({"mail": ours, "other": Endpoint("b.example.com", 443, "/")}, context(endpoint.authority.read_text()), limits)
            theirs, mine = pair()
            desk.connected(theirs)
            control = MinterControl(mine)
            if dialled:
                dialer, minter = pair()
                await place.control.bind_minter(dialer)
                await control.bind_dialer(minter)
            far, near = pair()
            await control.bind_broker(far)
            broker = MinterSocket(near)
            yield Minting(endpoint, place, desk, control, broker)
            broker.close()
            control.close()
            await desk.aclose()


def test_a_token_comes_back_from_the_endpoint_that_the_operator_named_and_the_dial_is_recorded(tmp_path: Path) -> None:
    async def main() -> None:
        async with minting(tmp_path) as at:
            status, body = await at.broker.exchange("mail", FORM, CLIENT)
            assert status == 200
            assert msgspec.json.decode(body.reveal())["access_token"] == at.endpoint.granted[0]
            assert "authorization" in at.endpoint.asked[0]
            assert at.endpoint.asked[0]["refresh_token"] == "r1"
            told = [(one.sandbox, one.name, one.port) for one in at.place.recorded()]  # type: ignore[union-attr]
            assert told == [("minter", NAME, at.endpoint.port)]
            standing = await at.control.describe()
            assert (standing.endpoints, standing.broker, standing.dialer) == (["mail", "other"], True, True)

    run(main())


def test_what_the_endpoint_refuses_comes_back_as_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with minting(tmp_path) as at:
            status, body = await at.broker.exchange("mail", FORM, Secret(b"agent:wrong"))
            assert (status, msgspec.json.decode(body.reveal())) == (401, {"error": "invalid_client"})
            at.endpoint.raw = b"HTTP/1.1 302 Found\r\nlocation: https://c.example.com/\r\ncontent-length: 0\r\n\r\n"
            assert (await at.broker.exchange("mail", FORM))[0] == 302
            assert len(at.endpoint.asked) == 1  # nothing was followed

    run(main())


def test_exchanges_are_under_way_side_by_side(tmp_path: Path) -> None:
    async def main() -> None:
        async with minting(tmp_path) as at:
            at.endpoint.delay, at.endpoint.turns = 0.3, False
            async with asyncio.timeout(4):
                found = await asyncio.gather(*(at.broker.exchange("mail", FORM, CLIENT) for _ in range(20)))
            assert {status for status, _ in found} == {200}

    run(main())


def test_an_endpoint_that_nobody_named_is_not_there_and_one_that_the_dialer_does_not_know_is_not_dialled(tmp_path: Path) -> None:
    async def main() -> None:
        async with minting(tmp_path) as at:
            with pytest.raises(NotFound, match="no token endpoint elsewhere"):
                await at.broker.exchange("elsewhere", FORM)
            with pytest.raises(Unavailable, match="name_not_allowed"):  # settings of another run: the dialer goes by its own
                await at.broker.exchange("other", FORM)

    run(main())


def test_a_certificate_of_another_name_gets_no_secret(tmp_path: Path) -> None:
    async def main() -> None:
        async with minting(tmp_path, named="b.example.com") as at:
            with pytest.raises(Unavailable, match="certificate is refused"):
                await at.broker.exchange("mail", FORM, CLIENT)
            assert at.endpoint.asked == []

    run(main())


def test_without_a_dialer_and_after_it_has_gone_an_exchange_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with minting(tmp_path, dialled=False) as at:
            with pytest.raises(Unavailable, match="no dialer yet"):
                await at.broker.exchange("mail", FORM)
            dialer, minter = pair()
            await at.place.control.bind_minter(dialer)
            await at.control.bind_dialer(minter)
            assert (await at.broker.exchange("mail", FORM, CLIENT))[0] == 200
            again, unread = pair()
            await at.place.control.bind_minter(again)  # the former is closed
            unread.close()
            with pytest.raises(Unavailable):
                await at.broker.exchange("mail", FORM, CLIENT)

    run(main())


def test_an_endpoint_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with minting(tmp_path, limits=Limits(seconds=0.3)) as at:
            at.endpoint.delay = 2
            with pytest.raises(Unavailable, match=r"did not answer within 0\.3 s"):
                await at.broker.exchange("mail", FORM, CLIENT)

    run(main())


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "without an answer"),
        (b"hello\r\n\r\n", "no HTTP reply"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort", "no HTTP reply"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n" + b"x" * 100_000, "more than 49152 bytes"),
        (b"HTTP/1.1 101 Up\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "changed the protocol"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 17, "does not come to an answer"),
    ],
)
def test_an_answer_that_is_none_is_said_without_its_words(tmp_path: Path, raw: bytes, words: str) -> None:
    async def main() -> None:
        async with minting(tmp_path) as at:
            at.endpoint.raw = raw
            with pytest.raises(Unavailable, match=words) as refused:
                await at.broker.exchange("mail", FORM, CLIENT)
            assert "xxx" not in str(refused.value)
            at.endpoint.raw = None
            assert (await at.broker.exchange("mail", FORM, CLIENT))[0] == 200

    run(main())


def test_no_descriptor_is_left_of_exchanges(tmp_path: Path) -> None:
    async def main() -> None:
        async with minting(tmp_path) as at:
            at.endpoint.turns = False
            await at.broker.exchange("mail", FORM, CLIENT)
            before = descriptors()
            for raw in (None, b"", b"nonsense\r\n\r\n"):
                at.endpoint.raw = raw
                for _ in range(5):
                    await asyncio.gather(at.broker.exchange("mail", FORM, CLIENT), return_exceptions=True)
            await asyncio.sleep(0.05)
            assert descriptors() <= before

    run(main())


def test_who_hands_over_nothing_or_speaks_something_else_gets_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with minting(tmp_path) as at:
            with pytest.raises(InvalidArgument, match="comes with one SEQPACKET socket"):
                await at.control._asker.ask(90, api.encode(api.BindBroker(90)), api.Done)
            theirs, ours = pair()
            at.desk.connected(theirs)
            ours.send(api.encode(api.Exchange(1, "mail", b"x")))  # what only the broker's socket may say
            ours.setblocking(True)
            ours.settimeout(2)
            assert await asyncio.to_thread(ours.recv, 10) == b""
            ours.close()

    run(main())


def test_nothing_that_it_handles_shows_a_secret() -> None:
    canary = b"canary-7f3"
    exchange = api.Exchange(1, "mail", b"refresh_token=" + canary, b"agent:" + canary)
    token = api.Token(1, 200, canary)
    reply = Reply()
    reply.receive(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(canary), canary))
    for shown in (exchange, token, reply.body, request(Endpoint(NAME, 443, "/"), Secret(canary), Secret(canary))):
        assert canary.decode() not in repr(shown)


def test_a_reply_is_the_same_in_pieces_of_any_size() -> None:
    whole = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Made\r\ntransfer-encoding: chunked\r\n\r\n3;x=1\r\nabc\r\n2\r\nde\r\n0\r\nt: 1\r\n\r\n"
    )
    for size in range(1, len(whole) + 1):
        reply = Reply()
        for at in range(0, len(whole), size):
            assert not reply.ended
            reply.receive(whole[at : at + size])
        assert reply.ended
        assert (reply.status, reply.body.reveal()) == (201, b"abcde")


def test_a_request_names_port_and_client_as_the_standards_say() -> None:
    plain = request(Endpoint(NAME, 8443, "/token?x=1"), Secret(b"a=b"), None).reveal()
    assert plain.startswith(b"POST /token?x=1 HTTP/1.1\r\nhost: auth.example.com:8443\r\n")
    assert plain.endswith(b"\r\n\r\na=b")
    assert b"authorization: Basic YWdlbnQ6czNjcmV0\r\n" in request(Endpoint(NAME, 443, "/"), FORM, CLIENT).reveal()


def test_a_socket_that_is_no_tls_is_closed() -> None:
    made = context(Path("/etc/ssl/certs/ca-certificates.crt").read_text())

    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.sendall(b"no TLS at all\r\n\r\n")
        with pytest.raises(Unavailable, match="no TLS"):
            await exchange(ours, made, Endpoint(NAME, 443, "/"), FORM)
        assert ours.fileno() == -1
        theirs.close()

    run(main())
