"""A real guest with credentials that it never sees: they arrive, come back as stars, belong to one host and scope, and end when revoked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator

import msgspec
import pytest

from space.core.credentials.secret import packed
from space.core.policy import document
from space.model.ids import new_sandbox_id
from space.rpc import credential_api
from space.rpc import node_api as api
from space.rpc.session import Data, Message, Session
from space.testing import leaks
from space.testing.bareinstance import BESIDE_NODE, BareInstance, bare_instance
from space.testing.egresstown import Town, town

SHOP, OTHER = "shop.example.com", "other.example.com"
SECRET = "sk_live_0Pn2DMIKRiIjIpZLtxvLqw9"


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each request with its own head."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        HEADS.append(head)
        writer.write(b"HTTP/1.1 200 OK\r\nset-cookie: a=1\r\nx-echo: yes\r\ncontent-length: %d\r\n\r\n%s" % (len(head), head))
        await writer.drain()


HEADS: list[bytes] = []


@pytest.fixture(scope="module")
def place() -> Iterator[Town]:
    with town() as made:
        made.serve(SHOP, echo)
        made.serve(OTHER, echo)
        yield made


@pytest.fixture(scope="module")
def bare(place: Town) -> Iterator[BareInstance]:
    with bare_instance(*BESIDE_NODE, "node", settings=place.as_settings()) as one:
        yield one


def run(bare: BareInstance, work: Callable[[Session], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(120):
            session = await Session.connect(bare.instance.node_socket)
            try:
                await work(session)
            finally:
                await session.aclose()

    asyncio.run(within())


async def create(session: Session, *grants: str) -> str:
    data = document.compose({"sandbox": {"version": 1, "rule": [{"host": SHOP}, {"host": OTHER}]}})
    digest = document.digest(data)
    async with await session.open("policy_put", api.PolicyPut(digest, len(data))) as stream:
        await stream.send(data)
        await stream.close()
        assert [event async for event in stream if isinstance(event, Message)]
    asked = api.Create(
        new_sandbox_id(), "acme", 1, "base", 1, 512, 2048, {}, policy=digest, policy_generation=1, grants=list(grants)
    )  # fmt: skip
    async with await session.open("create", asked, finish=True) as stream:
        state = [msgspec.msgpack.decode(event.payload, type=api.SandboxState) async for event in stream if isinstance(event, Message)][-1]
    assert state.phase == "running", state.reason
    return state.sandbox


async def curl(session: Session, sandbox: str, words: str) -> str:
    script = f"curl --silent --show-error --include --max-time 20 {words} 2>&1"
    async with await session.open("exec", api.Exec(sandbox, ["sh", "-c", script]), finish=True) as stream:
        return b"".join([event.payload async for event in stream if isinstance(event, Data)]).decode()


def test_a_guest_uses_a_credential_that_it_never_sees_until_it_is_revoked(bare: BareInstance) -> None:
    async def work(session: Session) -> None:
        value = packed({"value": SECRET.encode()})
        await session.call("secret_put", credential_api.SecretPut("acme", "token", "static", value))
        for name, slot, more in (
            ("shop", {"kind": "header"}, {"paths": ["/in/**"]}),
            (
                "mark",
                {"kind": "placeholder", "env": "SHOP_KEY", "in": "header", "name": "x-api-key", "prefix": "sk_"},
                {"paths": ["/mark"]},
            ),
        ):
            grant = {"name": name, "secret": "token", "where": {"host": SHOP, **more}, "slot": slot}
            await session.call("grant_put", credential_api.GrantPut("acme", json.dumps(grant).encode()))
        sandbox = await create(session, "shop", "mark")
        said = await curl(session, sandbox, f"-H 'AUTHORIZATION: mine' -H 'author_ization: mine' -H 'Range: bytes=1-' https://{SHOP}/in/x")
        assert "200" in said, said
        assert f"authorization: Bearer {SECRET}\r\n".encode() in HEADS[-1]
        assert b"mine" not in HEADS[-1]
        assert SECRET not in said
        assert "*" * len(SECRET) in said
        assert "set-cookie" not in said.lower()
        said = await curl(session, sandbox, f'-H "X-Api-Key: $SHOP_KEY" https://{SHOP}/mark')
        assert f"x-api-key: {SECRET}\r\n".encode() in HEADS[-1], said
        assert SECRET not in said
        seen = len(HEADS)
        for words in (
            f'-H "X-Api-Key: $SHOP_KEY" https://{OTHER}/mark',
            f'-H "X-Other: $SHOP_KEY" https://{SHOP}/mark',
            f'"https://{SHOP}/mark?a=$SHOP_KEY"',
            f'--data "a=$SHOP_KEY" https://{SHOP}/out',
        ):
            assert "placeholder_misplaced" in await curl(session, sandbox, words), words
        assert "trace" in await curl(session, sandbox, f"-X TRACE https://{SHOP}/in/x")
        assert len(HEADS) == seen
        assert "200" in await curl(session, sandbox, f"https://{SHOP}/out")
        assert "200" in await curl(session, sandbox, f"https://{OTHER}/in/x")
        assert all(SECRET.encode() not in head for head in HEADS[seen:])
        await session.call("grant_revoke", credential_api.Named("acme", "shop"))
        seen = len(HEADS)
        await curl(session, sandbox, f"https://{SHOP}/in/x")
        assert all(SECRET.encode() not in head for head in HEADS[seen:])
        await session.call("delete", api.Target(sandbox))

    run(bare, work)
    leaks.settle(lambda: leaks.of_sandboxes(bare.instance))
