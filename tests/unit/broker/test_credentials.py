"""Secrets, grants and leases at the broker's sockets: who has what, what is lent and written down before, what is told at once."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from space.audit.records import CredentialRead, decode
from space.broker.desk import Desk
from space.broker.keyring import Keyring
from space.broker.leases import Limits
from space.broker.server import compose
from space.broker.store import Store
from space.core.credentials.grant import Outline
from space.core.credentials.secret import packed
from space.model.errors import Conflict, InvalidArgument, NotFound, PermissionDenied, Unavailable
from space.model.secret import Secret
from space.rpc import audit_api, minter_api
from space.rpc import broker_api as api
from space.rpc.asking import Refused
from space.rpc.broker_client import BrokerControl, Signer
from space.rpc.packets import Packets, pair

ONE, OTHER, FORK = "sb-" + "a" * 20, "sb-" + "b" * 20, "sb-" + "f" * 20
HOST = "api.example.com"
CANARY = b"canary-5e1f"


def ring(first: int = 1, *more: int) -> Keyring:
    return Keyring([Secret(bytes([number]) * 32) for number in (first, *more)])


def grant(name: str = "g", **said: Any) -> bytes:
    row = {"name": name, "secret": "s", "where": {"host": HOST}, "slot": {"kind": "header"}, "who": {"all": True}}
    return json.dumps(row | said).encode()


def static(value: bytes = CANARY) -> Secret:
    return Secret(packed({"value": value}))


class Keeper:
    """Writes every note, or refuses."""

    def __init__(self) -> None:
        self.records: list[CredentialRead] = []
        self.refuses = False
        self.silent = False
        self.before: Callable[[], object] = lambda: None
        theirs, self.handed = pair()
        self.end = Packets(theirs, self._taken, lambda: None)

    def _taken(self, message: bytes, _: int | None) -> None:
        note = decode(message)
        assert isinstance(note.record, CredentialRead)
        if self.silent:
            return
        if self.refuses:
            self.end.send(audit_api.encode(Refused(note.id, "no_capacity", "the disk is full")))
            return
        self.records.append(note.record)
        self.before()
        self.end.send(audit_api.encode(audit_api.Written(note.id)))


class FakeMinter:
    """Answers as it is told."""

    def __init__(self) -> None:
        self.asked: list[minter_api.Exchange] = []
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.pause = 0.0
        theirs, self.handed = pair()
        self.end = Packets(theirs, self._taken, lambda: None)

    def _taken(self, message: bytes, _: int | None) -> None:
        asked = minter_api.BROKER.decode(message)
        self.asked.append(asked)
        status, body = self.answers.pop(0)
        answer = minter_api.Token(asked.id, status, json.dumps(body).encode())
        asyncio.get_running_loop().call_later(self.pause, self.end.send, minter_api.encode(answer))


@dataclass
class Place:
    desk: Desk
    store: Store
    control: BrokerControl
    keeper: Keeper
    minter: FakeMinter
    now: list[datetime]
    alarms: list[api.Alarm] = field(default_factory=list)

    async def worker(self, sandbox: str = ONE, generation: int = 1, tenant: str = "acme", **facts: Any) -> tuple[Signer, list[api.Grants]]:
        theirs, ours = pair()
        told: list[api.Grants] = []
        await self.control.bind_sandbox(theirs, sandbox, generation, "base", 1, tenant=tenant, **facts)
        signer = Signer(ours, unasked=told.append)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        return signer, told

    async def secret(self, name: str = "s", value: bytes = CANARY, tenant: str = "acme", **said: Any) -> api.SecretInfo:
        return await self.control.put_secret(tenant, name, "static", static(value), **said)


@asynccontextmanager
async def placed(tmp_path: Path, keyring: Keyring | None = None) -> AsyncIterator[Place]:
    store = Store(tmp_path / "store.db", keyring or ring())
    now = [datetime(2026, 6, 1, tzinfo=UTC)]
    desk = compose(store, now=lambda: now[0])
    theirs, ours = pair()
    desk.connected(theirs)
    alarms: list[api.Alarm] = []
    control = BrokerControl(ours, unasked=alarms.append)  # type: ignore[arg-type]
    keeper, minter = Keeper(), FakeMinter()
    await control.bind_audit(keeper.handed)
    await control.bind_minter(minter.handed)
    await control.make_root("base", 1)
    try:
        yield Place(desk, store, control, keeper, minter, now, alarms)
    finally:
        control.close()
        desk.close()
        keeper.end.close()
        minter.end.close()
        store.close()


def run(main: Callable[[], Any]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(bounded())


def test_a_lease_is_written_down_before_its_value_goes_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await at.secret()
            await at.control.put_grant("acme", grant())
            worker, told = await at.worker()
            lease = await worker.credential("g", HOST, 443, "GET", "/a", "c1-1")
            assert (lease.value, lease.version, lease.uses, lease.secret) == (CANARY, 1, 64, "s")
            assert lease.seconds == 1.0
            [record] = at.keeper.records
            assert (record.sandbox, record.grant, record.name, record.path, record.id) == (ONE, "g", HOST, "/a", "c1-1")
            assert (record.secret, record.version, record.uses, record.reason, record.generation) == ("s", 1, 64, "", 1)
            assert [one.name for one in told[-1].grants] == ["g"]

    run(main)


@pytest.mark.parametrize(
    ("host", "port", "method", "path", "said"),
    [
        ("b.example.com", 443, "GET", "/a", {}),
        (HOST, 8443, "GET", "/a", {}),
        (HOST, 443, "POST", "/a", {"where": {"host": HOST, "methods": ["GET"]}}),
        (HOST, 443, "TRACE", "/a", {}),
        (HOST, 443, "GET", "/b", {"where": {"host": HOST, "paths": ["/a/**"]}}),
        (HOST, 443, "GET", "/a%2F..", {"where": {"host": HOST, "paths": ["/a/**"]}}),
        (HOST, 443, "GET", "/a/../b", {"where": {"host": HOST, "paths": ["/a/**"]}}),
        (HOST, 443, "GET", "/a?x=1", {}),
        (HOST, 443, "GET", "a", {}),
    ],
)
def test_what_is_out_of_scope_is_refused_and_recorded(
    tmp_path: Path, host: str, port: int, method: str, path: str, said: dict[str, Any]
) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await at.secret()
            await at.control.put_grant("acme", grant(**said))
            worker, _ = await at.worker()
            with pytest.raises(PermissionDenied, match=r"^grant_scope$"):
                await worker.credential("g", host, port, method, path)
            assert [one.reason for one in at.keeper.records] == ["grant_scope"]

    run(main)


@pytest.mark.parametrize(
    ("who", "facts", "has"),
    [
        ({"all": True}, {}, True),
        ({}, {}, False),
        ({"sandboxes": [ONE]}, {}, True),
        ({"sandboxes": [OTHER]}, {}, False),
        ({"templates": ["py"]}, {"template_name": "py"}, True),
        ({"templates": ["py"]}, {"template_name": "base"}, False),
        ({"labels": {"a": "1", "b": "2"}}, {"labels": {"a": "1", "b": "2", "c": "3"}}, True),
        ({"labels": {"a": "1", "b": "2"}}, {"labels": {"a": "1"}}, False),
        ({"labels": {"a": "1"}}, {"labels": {"a": "2"}}, False),
        ({"all": True}, {"forked": True}, False),
        ({"labels": {"a": "1"}}, {"labels": {"a": "1"}, "forked": True}, False),
        ({"sandboxes": [ONE]}, {"forked": True}, True),
        ({"all": True}, {"tenant": "other"}, False),
        ({"sandboxes": [ONE]}, {"tenant": "other"}, False),
        ({"all": True}, {"tenant": ""}, False),
    ],
)
def test_who_has_a_grant_is_told_of_it_and_nobody_else_gets_a_word(
    tmp_path: Path, who: dict[str, Any], facts: dict[str, Any], has: bool
) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await at.secret()
            await at.control.put_grant("acme", grant(who=who))
            worker, told = await at.worker(**facts)
            await asyncio.sleep(0.02)
            assert [one.name for grants in told[-1:] for one in grants.grants] == (["g"] if has else [])
            if has:
                assert (await worker.credential("g", HOST, 443, "GET", "/")).value == CANARY
                return
            for name in ("g", "never-was"):
                with pytest.raises(PermissionDenied, match=r"^grant_unknown$"):
                    await worker.credential(name, HOST, 443, "GET", "/")

    run(main)


def test_forks_have_what_says_so_and_what_is_attached_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await at.secret()
            await at.control.put_grant("acme", grant("crosses", forks=True))
            await at.control.put_grant("acme", grant("given", who={}))
            await at.control.attach_grants("acme", ONE, ("given",))
            parent, told = await at.worker()
            child, childs = await at.worker(FORK, forked=True)
            await asyncio.sleep(0.02)
            assert [one.name for one in told[-1].grants] == ["crosses", "given"]
            assert [one.name for one in childs[-1].grants] == ["crosses"]
            with pytest.raises(PermissionDenied):
                await child.credential("given", HOST, 443, "GET", "/")
            await at.control.attach_grants("acme", FORK, ("given",))
            assert (await child.credential("given", HOST, 443, "GET", "/")).value == CANARY
            assert parent is not None

    run(main)


def test_a_revocation_is_told_at_once_and_a_use_after_it_is_an_alarm(tmp_path: Path) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await at.secret()
            await at.control.put_grant("acme", grant())
            worker, told = await at.worker()
            await worker.credential("g", HOST, 443, "GET", "/")
            info = await at.control.revoke_grant("acme", "g")
            assert info.revoked
            await asyncio.sleep(0.02)
            assert told[-1].grants == []
            with pytest.raises(PermissionDenied, match=r"^grant_unknown$"):
                await worker.credential("g", HOST, 443, "GET", "/")
            assert at.keeper.records[-1].reason == "grant_revoked"
            assert [(one.kind, one.grant, one.sandbox, one.count) for one in at.alarms] == [("revoked", "g", ONE, 1)]

    run(main)


def test_a_revocation_while_the_record_is_written_is_in_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await at.secret()
            await at.control.put_grant("acme", grant())
            worker, _ = await at.worker()
            now = at.now[0]
            at.keeper.before = lambda: at.desk._credentials._grants.revoke("acme", "g", now)
            with pytest.raises(PermissionDenied):
                await worker.credential("g", HOST, 443, "GET", "/")

    run(main)


@pytest.mark.parametrize("how", ["refuses", "silent", "gone"])
def test_what_cannot_be_recorded_is_not_released(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await at.secret()
            await at.control.put_grant("acme", grant())
            worker, _ = await at.worker()
            monkeypatch.setattr(at.desk._lending, "_limits", Limits(record=0.2))
            if how == "gone":
                at.keeper.end.close()
            else:
                setattr(at.keeper, how, True)
            with pytest.raises(Unavailable, match=r"^credential_unavailable$"):
                await worker.credential("g", HOST, 443, "GET", "/")
            assert (await worker.leaf(HOST))[0]  # others go on

    run(main)


def test_a_rate_is_of_the_secret_over_all_sandboxes_and_an_alarm(tmp_path: Path) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await at.secret()
            await at.control.put_grant("acme", grant(rate={"count": 3, "seconds": 3600}))
            one, _ = await at.worker(ONE)
            other, _ = await at.worker(OTHER)
            for worker in (one, other, one):
                assert (await worker.credential("g", HOST, 443, "GET", "/")).uses == 1
            for worker in (one, other):
                with pytest.raises(PermissionDenied, match=r"^grant_rate$"):
                    await worker.credential("g", HOST, 443, "GET", "/")
            assert [(alarm.kind, alarm.count) for alarm in at.alarms] == [("rate", 1)]
        async with placed(tmp_path) as at:  # a broker that begins again begins no rate anew
            one, _ = await at.worker(ONE)
            with pytest.raises(PermissionDenied, match=r"^grant_rate$"):
                await one.credential("g", HOST, 443, "GET", "/")

    run(main)


def test_uses_are_counted_over_all_sandboxes_and_over_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await at.secret()
            await at.control.put_grant("acme", grant(uses=2))
            worker, _ = await at.worker()
            assert (await worker.credential("g", HOST, 443, "GET", "/")).uses == 1
        async with placed(tmp_path) as at:
            worker, _ = await at.worker(OTHER)
            answers = await asyncio.gather(*(worker.credential("g", HOST, 443, "GET", "/") for _ in range(5)), return_exceptions=True)
            assert sorted(str(one) if isinstance(one, Exception) else "lent" for one in answers) == ["grant_used_up"] * 4 + ["lent"]
            assert (await at.control.grant("acme", "g")).used == 2
            await at.control.put_grant("acme", grant(uses=2), replace=True)  # the count is not begun anew by that
            with pytest.raises(PermissionDenied, match=r"^grant_used_up$"):
                await worker.credential("g", HOST, 443, "GET", "/")
            await at.control.put_grant("acme", grant(uses=3), replace=True)
            assert (await worker.credential("g", HOST, 443, "GET", "/")).uses == 1

    run(main)


def test_a_time_that_ends_takes_the_grant_away_then(tmp_path: Path) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await at.secret()
            await at.control.put_grant("acme", grant(until="2026-06-02T00:00:00Z"))
            worker, told = await at.worker()
            assert (await worker.credential("g", HOST, 443, "GET", "/")).value == CANARY
            at.now[0] += timedelta(days=2)
            with pytest.raises(PermissionDenied, match=r"^grant_expired$"):
                await worker.credential("g", HOST, 443, "GET", "/")
            at.desk._lending._ended()
            await asyncio.sleep(0.02)
            assert told[-1].grants == []
            assert [alarm.kind for alarm in at.alarms] == ["expired"]

    run(main)


def test_a_secret_that_was_rotated_revoked_or_is_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await at.secret()
            await at.control.put_grant("acme", grant())
            worker, told = await at.worker()
            with pytest.raises(Conflict, match="there is a secret s"):
                await at.secret()
            with pytest.raises(NotFound):
                await at.secret("t", mode="rotate")
            assert (await at.secret(value=b"second", mode="rotate")).version == 2
            lease = await worker.credential("g", HOST, 443, "GET", "/")
            assert (lease.value, lease.version) == (b"second", 2)
            with pytest.raises(Conflict, match="1 grants name secret s"):
                await at.control.delete_secret("acme", "s")
            await at.secret(value=b"third", mode="either", expires="2026-06-02T00:00:00Z")
            at.now[0] += timedelta(days=2)
            with pytest.raises(PermissionDenied, match=r"^grant_expired$"):
                await worker.credential("g", HOST, 443, "GET", "/")
            assert (await at.control.revoke_secret("acme", "s")).revoked
            with pytest.raises(PermissionDenied, match=r"^grant_unknown$"):
                await worker.credential("g", HOST, 443, "GET", "/")
            await asyncio.sleep(0.02)
            assert told[-1].grants == []
            await at.control.delete_grant("acme", "g")
            await at.control.delete_secret("acme", "s")
            await at.control.delete_secret("acme", "s")
            with pytest.raises(NotFound):
                await at.control.secret("acme", "s")

    run(main)


@pytest.mark.parametrize("of", ["grant", "secret"])
def test_what_ends_is_taken_from_workers_by_itself(tmp_path: Path, of: str) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            soon = "2026-06-01T00:00:01Z"
            await at.secret(expires=soon if of == "secret" else "")
            await at.control.put_grant("acme", grant(until=soon if of == "grant" else ""))
            _, told = await at.worker()
            await asyncio.sleep(0.02)
            assert len(told[-1].grants) == 1
            at.now[0] += timedelta(seconds=1)  # its own clock's second passes meanwhile
            await asyncio.sleep(1.2)
            assert told[-1].grants == []

    run(main)


def test_approval_is_asked_for_every_use(tmp_path: Path) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await at.secret()
            await at.control.put_grant("acme", grant(approval=True))
            worker, told = await at.worker()
            with pytest.raises(PermissionDenied, match=r"^grant_approval$"):
                await worker.credential("g", HOST, 443, "GET", "/")
            assert (await worker.credential("g", HOST, 443, "GET", "/", approved=True)).uses == 1
            assert told[-1].grants[0].approval

    run(main)


def test_placeholders_look_as_the_grant_says_and_are_of_one_life(tmp_path: Path) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await at.secret()
            slot = {"kind": "placeholder", "env": "TOKEN", "in": "header", "name": "authorization", "prefix": "ghp_", "length": 40}
            await at.control.put_grant("acme", grant(slot=slot))
            _, told = await at.worker(ONE, 1)
            _, again = await at.worker(ONE, 1)  # another worker of the same life
            await asyncio.sleep(0.02)
            first = await at.control.placeholders(ONE, 1)
            assert told[0].grants[0].placeholder == again[0].grants[0].placeholder == first["TOKEN"]
            assert first["TOKEN"].startswith("ghp_")
            assert len(first["TOKEN"]) == 40
            assert await at.control.placeholders(ONE, 2) == {}
            await at.worker(ONE, 2)
            await at.worker(OTHER, 1)
            seen = {first["TOKEN"], (await at.control.placeholders(ONE, 2))["TOKEN"], (await at.control.placeholders(OTHER, 1))["TOKEN"]}
            assert len(seen) == 3
            assert await at.control.placeholders(ONE, 1) == {}
            second = await at.control.placeholders(ONE, 2)
        async with placed(tmp_path) as at:  # processes of that life have it in their environment
            await at.worker(ONE, 2)
            assert await at.control.placeholders(ONE, 2) == second
        (tmp_path / "elsewhere").mkdir()
        async with placed(tmp_path / "elsewhere") as at:
            await at.secret()
            await at.control.put_grant("acme", grant(slot=slot))
            await at.worker(ONE, 2)
            assert await at.control.placeholders(ONE, 2) != second

    run(main)


def test_kinds_give_what_their_slots_need(tmp_path: Path) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            aws = Secret(packed({"secret_access_key": CANARY, "session_token": b"t"}))
            await at.control.put_secret("acme", "aws", "aws", aws, public={"access_key_id": "AKID"})
            await at.control.put_grant("acme", grant("a", secret="aws", slot={"kind": "sigv4", "service": "s3", "region": "eu-1"}))
            await at.secret()
            await at.control.put_grant("acme", grant("b", slot={"kind": "basic", "username": "me"}))
            worker, _ = await at.worker()
            lease = await worker.credential("a", HOST, 443, "GET", "/")
            assert (lease.value, lease.more) == (CANARY, {"access_key_id": b"AKID", "session_token": b"t"})
            assert (await worker.credential("b", HOST, 443, "GET", "/")).more == {"username": b"me"}
            for name, secret, slot in (("x", "aws", {"kind": "header"}), ("y", "s", {"kind": "sigv4", "service": "s3", "region": "r"})):
                with pytest.raises(InvalidArgument, match=r"slot\.kind"):
                    await at.control.put_grant("acme", grant(name, secret=secret, slot=slot))

    run(main)


OAUTH = {"endpoint": "mail", "client_id": "me"}


async def oauth(at: Place, **parts: bytes) -> None:
    value = Secret(packed({"refresh_token": b"r0", **parts}))
    await at.control.put_secret("acme", "s", "oauth_refresh", value, public=OAUTH)
    await at.control.put_grant("acme", grant())


def test_one_exchange_serves_all_who_wait_and_the_turned_token_is_stored_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await oauth(at, client_secret=b"c:s")
            at.minter.answers = [(200, {"access_token": "a1", "token_type": "Bearer", "expires_in": 3600, "refresh_token": "r1"})]
            at.minter.pause = 0.05
            one, _ = await at.worker(ONE)
            other, _ = await at.worker(OTHER)
            leases = await asyncio.gather(*(worker.credential("g", HOST, 443, "GET", "/") for worker in (one, other) * 5))
            assert {lease.value for lease in leases} == {b"a1"}
            [asked] = at.minter.asked
            assert asked.form == b"grant_type=refresh_token&refresh_token=r0"
            assert asked.basic == b"me:c%3As"
            assert (await at.control.secret("acme", "s")).version == 2
        async with placed(tmp_path) as at:  # memory is gone: the stored one is the turned one
            at.minter.answers = [(200, {"access_token": "a2"})]
            worker, _ = await at.worker()
            assert (await worker.credential("g", HOST, 443, "GET", "/")).value == b"a2"
            assert b"refresh_token=r1" in at.minter.asked[0].form

    run(main)


@pytest.mark.parametrize(
    "answer",
    [
        (400, {"error": "invalid_grant"}),
        (200, {"no": "token"}),
        (200, {"access_token": "x", "token_type": "mac"}),
        (302, {}),
        (500, {"error": CANARY.decode()}),
    ],
)
def test_an_endpoint_that_gives_no_token_gives_nothing_away(
    tmp_path: Path, answer: tuple[int, dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await oauth(at)
            at.minter.answers = [answer]
            worker, _ = await at.worker()
            for _ in range(3):  # and it is not asked again at once
                with pytest.raises(Unavailable, match=r"^credential_unavailable$"):
                    await worker.credential("g", HOST, 443, "GET", "/")
            assert len(at.minter.asked) == 1
            assert {one.reason for one in at.keeper.records} == {"credential_unavailable"}
        assert CANARY.decode() not in caplog.text

    run(main)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"where": {"host": "*.example.com"}}, "where.host"),
        ({"where": {"host": "API.example.com"}}, "canonical"),
        ({"where": {"host": "com"}}, "where.host"),
        ({"where": {"host": "192.0.2.1"}}, "where.host"),
        ({"where": {"host": HOST, "port": 0}}, "where.port"),
        ({"where": {"host": HOST, "methods": []}}, "where.methods"),
        ({"where": {"host": HOST, "methods": ["TRACE"]}}, "TRACE"),
        ({"where": {"host": HOST, "paths": ["/a/../b"]}}, r"where\.paths\[0\]"),
        ({"slot": {"kind": "header", "name": "host"}}, "slot.name"),
        ({"slot": {"kind": "header", "template": "Bearer"}}, "slot.template"),
        ({"slot": {"kind": "header", "template": "{}\r\nx: {}"}}, "slot.template"),
        ({"slot": {"kind": "cookie"}}, "slot"),
        ({"slot": {"kind": "placeholder", "env": "A", "name": "authorization", "prefix": "x" * 30, "length": 40}}, "slot.length"),
        ({"slot": {"kind": "placeholder", "env": "A=B", "name": "authorization"}}, "slot.env"),
        ({"slot": {"kind": "query", "name": "a&b"}}, "slot.name"),
        ({"until": "tomorrow"}, "until"),
        ({"until": "2027-01-01T00:00:00"}, "until"),
        ({"rate": {"count": 0, "seconds": 1}}, "rate.count"),
        ({"uses": 0}, "uses"),
        ({"where": {"host": HOST, "methods": ["get"]}}, r"methods\[0\]: a method is in capitals, such as GET"),
        ({"slot": {"kind": "header", "name": "X Key"}}, "slot.name: a name of 1 to 64 characters without spaces"),
        ({"who": {"sandboxes": ["x"]}}, r"who\.sandboxes\[0\]: a sandbox is named by its id"),
        ({"keep": ["content-length"]}, r"keep\[0\]"),
        ({"name": "Bad Name"}, "name"),
        ({"more": 1}, "more"),
        ({"secret": "nobody"}, "there is no secret nobody"),
    ],
)
def test_a_grant_with_a_mistake_is_refused_at_its_place(tmp_path: Path, said: dict[str, Any], words: str) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await at.secret()
            with pytest.raises((InvalidArgument, NotFound), match=words):
                await at.control.put_grant("acme", grant(**said))
            assert (await at.control.grants("acme")).grants == []

    run(main)


@pytest.mark.parametrize("value", [b"a\r\n", b"a\nX-Admin: 1", b"\0", b"a\x7f", b"a "])
def test_a_value_that_no_request_could_hold_is_refused_where_it_would_begin_to_matter(tmp_path: Path, value: bytes) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await at.secret(value=value)
            with pytest.raises(InvalidArgument, match="slot: the secret's value cannot stand there") as refused:
                await at.control.put_grant("acme", grant())
            assert CANARY.decode() not in str(refused.value)
            await at.control.put_grant("acme", grant("basic", slot={"kind": "basic", "username": "u"}))
            await at.control.put_grant("acme", grant("query", slot={"kind": "query", "name": "key"}))
            await at.secret(value=b"good", mode="rotate")
            await at.control.put_grant("acme", grant("header"))
            with pytest.raises(InvalidArgument, match="grant header: the secret's value cannot stand there"):
                await at.secret(value=value, mode="rotate")
            assert (await at.control.secret("acme", "s")).version == 2, "the one that works is still there"
            await at.control.revoke_secret("acme", "s")
            await at.control.put_grant("acme", grant("of-a-revoked-one"))

    run(main)


def test_lists_come_in_pages_and_only_of_the_tenant(tmp_path: Path) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            for number in range(70):
                await at.secret(f"s{number:02}")
            for tenant in ("acm", "acme-2", "acme0"):
                await at.secret("elsewhere", tenant=tenant)
            await at.secret("s")
            await at.control.put_grant("acme", grant())
            names, after = [], ""
            while True:
                page = await at.control.secrets("acme", after)
                names += [one.name for one in page.secrets]
                if not page.more:
                    break
                after = names[-1]
            assert names == sorted(["s", *(f"s{number:02}" for number in range(70))])
            assert (await at.control.secret("acme", "s")).grants == 1
            assert [one.tenant for one in (await at.control.grants("acme", secret="s")).grants] == ["acme"]
            assert (await at.control.grants("acme", secret="s01")).grants == []

    run(main)


def test_no_value_stands_in_the_store_in_a_log_or_in_any_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    said: list[object] = []

    async def main() -> None:
        async with placed(tmp_path) as at:
            said.append(await at.secret(labels={"a": "b"}, description="of the code host"))
            said.append(await at.control.put_grant("acme", grant()))
            said.append(await at.control.secrets("acme"))
            said.append(await at.control.secret("acme", "s"))
            said.append(await at.control.grants("acme"))
            worker, told = await at.worker()
            said.append(await worker.credential("g", HOST, 443, "GET", "/"))  # its repr
            said.append(told)
            await at.secret(value=CANARY + b"2", mode="rotate")
            said.append(await at.control.revoke_secret("acme", "s"))
            said.append(at.keeper.records)

    run(main)
    assert CANARY.decode() not in repr(said)
    assert CANARY.decode() not in caplog.text
    for file in tmp_path.iterdir():
        assert CANARY not in file.read_bytes(), file.name


def test_a_turned_ring_opens_secrets_and_an_old_store_gets_its_tables(tmp_path: Path) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await at.secret()
            await at.control.put_grant("acme", grant())
        with sqlite3.connect(tmp_path / "store.db") as database:  # as the version before left it
            for table in ("granted", "reach", "attached", "spent"):
                database.execute(f"DROP TABLE {table}")
            database.execute("PRAGMA user_version = 1")
        store = Store(tmp_path / "store.db", ring())
        assert store.turn(ring(2, 1)) >= 2
        store.close()
        async with placed(tmp_path, ring(2)) as at:
            await at.control.put_grant("acme", grant())
            worker, _ = await at.worker()
            assert (await worker.credential("g", HOST, 443, "GET", "/")).value == CANARY

    run(main)


def test_an_outline_covers_what_the_broker_would_lend_for() -> None:
    from space.core.credentials.grant import Header, target

    path = target("/a/b")
    assert path is not None
    outline = Outline("g", HOST, 443, ("GET",), ("/a/**",), Header())
    assert outline.covers(HOST, 443, "GET", path)
    assert not outline.covers(HOST, 443, "POST", path)
    assert not outline.covers("b.example.com", 443, "GET", path)


def test_a_worker_that_begins_is_told_what_its_sandbox_has(tmp_path: Path) -> None:
    async def main() -> None:
        async with placed(tmp_path) as at:
            await at.secret()
            await at.control.put_grant("acme", grant())
            worker, told = await at.worker()
            await asyncio.sleep(0.02)
            told.clear()
            await worker.grants()
            assert [one.name for one in told[0].grants] == ["g"]

    run(main)
