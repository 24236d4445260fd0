"""The pure and small parts: what to do about a sandbox, lists and cursors, timers, the store and its schemas."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, MetaData, create_engine, inspect, text

from space.control import listing, records
from space.control.audit import AuditLog
from space.control.decide import LOST, LOST_IN_CREATE, DeleteThere, End, Note, Step, Wait, decide
from space.control.delivery import Sender
from space.control.events import EventLog
from space.control.listing import Filter, from_cursor, page, parse, to_cursor
from space.control.quotas import Quotas
from space.control.records import Record
from space.control.relay import caught
from space.control.stdin import Spool
from space.control.store import migrations, schema
from space.control.store.store import Store
from space.control.timers import Timers
from space.control.webhooks import Webhooks
from space.model.errors import Conflict, InvalidArgument, Unavailable
from space.model.ids import new_sandbox_id
from space.model.sandbox import Phase, SandboxSpec
from space.model.tenants import Quota
from space.rpc.node_api import SandboxState

EMULATED = "emulated (development only)"


def record(phase: Phase = Phase.RUNNING, desired: str = "running", **more: object) -> Record:
    fields: dict[str, object] = {
        "id": new_sandbox_id(),
        "tenant": "t",
        "spec": SandboxSpec(),
        "created_us": 1,
        "expires_us": 2,
        "isolation": EMULATED,
        "ended_us": 3 if desired == "gone" and phase in (Phase.GONE, Phase.FAILED) else None,
    }
    return Record(**{**fields, "phase": phase, "desired": desired, **more})  # type: ignore[arg-type]


def level(phase: str, reason: str | None = None) -> SandboxState:
    return SandboxState("sb", "t", 1, phase, 5, EMULATED, reason)


@pytest.mark.parametrize(
    ("known", "there", "creating", "step"),
    [
        (None, level("running"), False, DeleteThere()),
        (None, level("preparing"), False, DeleteThere()),
        (None, level("failed"), False, DeleteThere()),
        (None, level("deleting"), False, Wait()),
        (None, level("gone"), False, Wait()),
        (record(Phase.GONE, "gone"), level("running"), False, DeleteThere()),
        (record(Phase.FAILED, "gone"), level("failed"), False, DeleteThere()),
        (record(Phase.FAILED, "gone"), None, False, Wait()),
        (record(Phase.DELETING, "gone", reason="r"), None, False, End(Phase.GONE, "r")),
        (record(Phase.DELETING, "gone", reason="r"), None, True, Wait()),
        (record(Phase.DELETING, "gone", reason="r"), level("gone"), False, End(Phase.GONE, "r")),
        (record(Phase.DELETING, "gone"), level("running"), False, DeleteThere()),
        (record(Phase.DELETING, "gone"), level("deleting"), False, Wait()),
        (record(Phase.REQUESTED), None, True, Wait()),
        (record(Phase.REQUESTED), None, False, End(Phase.FAILED, LOST_IN_CREATE)),
        (record(Phase.RUNNING), None, False, End(Phase.FAILED, LOST)),
        (record(Phase.PREPARING), level("failed", "oom"), False, End(Phase.FAILED, "oom")),
        (record(Phase.RUNNING), level("failed", "oom"), True, End(Phase.FAILED, "oom")),
        (record(Phase.RUNNING), level("failed", "oom"), False, Note(Phase.FAILED, EMULATED)),
        (record(Phase.FAILED), level("failed", "oom"), False, Wait()),
        (record(Phase.FAILED), level("starting"), False, Note(Phase.STARTING, EMULATED)),
        (record(Phase.FAILED), None, False, End(Phase.FAILED, LOST)),
        (record(Phase.RUNNING), level("suspending"), False, Note(Phase.SUSPENDING, EMULATED)),
        (record(Phase.SUSPENDED), level("suspended"), False, Wait()),
        (record(Phase.SUSPENDED, "gone"), level("suspended"), False, DeleteThere()),
        (record(Phase.RUNNING), level("gone"), False, End(Phase.FAILED, "the node says gone")),
        (record(Phase.RUNNING), level("from-the-future"), False, End(Phase.FAILED, "the node says failed")),
        (record(Phase.REQUESTED), level("preparing"), True, Note(Phase.PREPARING, EMULATED)),
        (record(Phase.PREPARING), level("running"), False, Note(Phase.RUNNING, EMULATED)),
        (record(Phase.RUNNING), level("running"), False, Wait()),
        (record(Phase.RUNNING), level("paused"), False, Note(Phase.PAUSED, EMULATED)),
    ],
)
def test_what_should_be_and_what_is_give_one_step(known: Record | None, there: SandboxState | None, creating: bool, step: Step) -> None:
    assert decide(known, there, creating=creating) == step


# -- lists -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base():  # type: ignore[no-untyped-def]
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        schema.metadata.create_all(connection)
        yield connection


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(["running", "gone"]), st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"])),
        max_size=25,
    ),
    limit=st.integers(1, 7),
    phase=st.sampled_from([None, Phase.RUNNING]),
    tag=st.sampled_from([None, "x"]),
    late=st.integers(0, 3),
)
def test_pages_show_everything_that_matches_exactly_once_newest_first(
    base: Connection, rows: list[tuple[int, str, str, str]], limit: int, phase: Phase | None, tag: str | None, late: int
) -> None:
    base.execute(schema.sandboxes.delete())
    every = [
        record(Phase(now), tenant=tenant, created_us=created, spec=SandboxSpec(metadata={"tag.a/b-c_d": value}))
        for created, now, tenant, value in rows
    ]
    for one in every:
        records.add(base, one, None)
    expected = sorted(
        (
            one for one in every
            if one.tenant == "a" and phase in (None, one.phase) and tag in (None, one.spec.metadata["tag.a/b-c_d"])
        ),
        key=lambda one: (one.created_us, one.id),
        reverse=True,
    )  # fmt: skip
    wanted = Filter(phase=phase, metadata={} if tag is None else {"tag.a/b-c_d": tag}, limit=limit)
    shown: list[Record] = []
    while True:
        found, cursor = page(base, "a", wanted)
        assert len(found) <= limit
        shown += found
        if cursor is None:
            break
        for _ in range(late):  # made while somebody turns pages: newer than every cursor
            records.add(base, record(Phase.RUNNING, tenant="a", created_us=100, spec=SandboxSpec(metadata={"tag.a/b-c_d": "x"})), None)
        wanted = Filter(phase, None, wanted.metadata, limit, from_cursor(cursor))
    assert shown == expected


@given(st.integers(0, 2**53))
def test_a_cursor_reads_back(created: int) -> None:
    one = record(created_us=created)
    assert from_cursor(to_cursor(one)) == (created, one.id)


@settings(deadline=None)
@given(st.one_of(st.text(max_size=80), st.binary(max_size=60).map(lambda raw: __import__("base64").urlsafe_b64encode(raw).decode())))
def test_no_text_but_a_cursor_is_a_cursor(noise: str) -> None:
    try:
        created, last = from_cursor(noise)
    except InvalidArgument:
        return
    assert created >= 0
    assert last.startswith("sb-")


@pytest.mark.parametrize(
    "query",
    [[("limit", "0")], [("limit", "201")], [("limit", "-1")], [("limit", "٣")], [("limit", "1e2")], [("phase", "dead")], [("cursor", "x")]],
)
def test_a_wrong_filter_is_refused(query: list[tuple[str, str]]) -> None:
    with pytest.raises(InvalidArgument, match=query[0][0]):
        parse(query)


def test_a_filter_reads_every_parameter() -> None:
    assert parse([("limit", "3"), ("phase", "running"), ("template", "base"), ("metadata.a", "1"), ("metadata.b", "")]) == Filter(
        Phase.RUNNING, "base", {"a": "1", "b": ""}, 3, None
    )
    assert listing.parse([]).limit == 50


# -- the store -------------------------------------------------------------------------------------------------------------

DATABASES = Path(__file__).parent / "databases"


def test_every_stored_schema_opens_and_keeps_its_rows(tmp_path: Path) -> None:
    dumps = sorted(DATABASES.glob("*.sql"))
    assert len(dumps) == len(migrations.STEPS), "each schema that was ever released has a stored database"
    for dump in dumps:
        path = tmp_path / f"{dump.stem}.db"
        with sqlite3.connect(path) as old:
            old.executescript(dump.read_text())
        old.close()
        store = Store(path)
        try:
            found, repeats = asyncio.run(store.read(records.everything))
        finally:
            store.close()
        assert [(one.id, one.phase, one.reason, one.spec.memory_mib, dict(one.spec.metadata)) for one in found] == [
            ("sb-aaaaaaaaaaaaaaaaaaaa", Phase.RUNNING, None, 256, {"who": "me"}),
            ("sb-bbbbbbbbbbbbbbbbbbbb", Phase.GONE, "deleted by request", 512, {}),
        ]
        assert [(one.created_us, one.expires_us, one.ended_us, one.oom_kills, one.spec.idle) for one in found] == [
            (1700000000000000, 1700003600000000, None, 0, None),
            (1700000000000001, 1700003600000001, 1700000100000000, 0, None),
        ]
        assert [(one.tenant, one.key, one.sandbox) for one in repeats] == [("default", "once", "sb-aaaaaaaaaaaaaaaaaaaa")]


def test_the_second_schema_keeps_events_webhooks_audit_and_quotas(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "s.db") as old:
        old.executescript((DATABASES / "0002.sql").read_text())
    old.close()

    async def talk() -> None:
        store = Store(tmp_path / "s.db")
        timers = Timers()
        events = EventLog(store, timers, keep_seconds=10**10, keep_per_tenant=1000)
        page = await events.page("default", 1_000_000)
        assert [(one.id, one.kind, one.phase, one.from_phase) for one in page.events] == [(1_000_001, "phase", "running", "preparing")]
        assert (await events.page("default", 5)).gap
        quotas = Quotas(store, Quota())
        await quotas.load()
        assert quotas.own("acme") == Quota(sandboxes=2)
        found, _ = await AuditLog(store, timers, keep_seconds=10**10).page(0, 10, "default")
        assert [(one.id, one.route, one.status) for one in found] == [(7, "create_sandbox", 201)]
        hooks = Webhooks(store, events, Sender(()), allow_http=False, allowed=(), version="0")
        await hooks.start()
        [hook] = hooks.infos("default")
        assert (hook.url, hook.kinds, hook.cursor, hook.delivered) == ("https://example.com/hook", ["deleted"], 1_000_000, 3)
        await hooks.stop()
        timers.close()
        store.close()

    asyncio.run(talk())


def test_the_steps_lead_to_the_schema_that_the_code_uses(tmp_path: Path) -> None:
    Store(tmp_path / "s.db").close()
    engine = create_engine(f"sqlite:///{tmp_path / 's.db'}")
    wanted = create_engine("sqlite://")
    schema.metadata.create_all(wanted)

    def shape(of) -> dict[str, object]:  # type: ignore[no-untyped-def]
        tables = MetaData()
        tables.reflect(of)
        return {
            table.name: (
                [(column.name, str(column.type), column.nullable, column.primary_key) for column in table.columns],
                sorted((index.name, [column.name for column in index.columns]) for index in table.indexes),
            )
            for table in tables.sorted_tables
            if table.name != "schema_version"
        }

    assert shape(engine) == shape(wanted)


def test_a_step_that_fails_leaves_the_schema_before_it(tmp_path: Path) -> None:
    def broken(connection: Connection) -> None:
        connection.execute(text("ALTER TABLE keys ADD COLUMN more TEXT"))
        raise RuntimeError("half way")

    steps = (*migrations.STEPS, broken)
    Store(tmp_path / "s.db").close()
    store_engine = __import__("space.control.store.store", fromlist=["_engine"])._engine(tmp_path / "s.db")
    with store_engine.connect() as connection:
        assert list(migrations.pending(connection, steps)) == [len(steps)]
        with pytest.raises(RuntimeError):
            migrations.take(connection, len(steps), steps)
        connection.rollback()
        assert migrations.version(connection) == len(steps) - 1
        assert "more" not in {column["name"] for column in inspect(connection).get_columns("keys")}


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    Store(tmp_path / "s.db").close()
    with sqlite3.connect(tmp_path / "s.db") as base:
        base.execute("INSERT INTO schema_version VALUES (99)")
    base.close()
    with pytest.raises(Conflict, match="schema 99"):
        Store(tmp_path / "s.db")


def test_changes_that_wait_together_commit_together_and_a_bad_one_fails_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db")
    go = threading.Event()

    async def talk() -> None:
        blocker = store.post(lambda _: go.wait(10))
        good = [record() for _ in range(50)]
        jobs = [asyncio.create_task(store.write(lambda c, one=one: records.add(c, one, None))) for one in good]  # type: ignore[misc]
        bad = asyncio.create_task(store.write(lambda c: records.add(c, good[0], None)))
        await asyncio.sleep(0)
        before = store.commits
        go.set()
        await asyncio.gather(*jobs)
        with pytest.raises(Unavailable):
            await bad
        assert blocker.result(1)
        found, _ = await store.read(records.everything)
        assert len(found) == 50
        assert store.commits - before <= 53  # the group was tried as one, then each alone because of the bad one
        again = [record() for _ in range(50)]
        go.clear()
        store.post(lambda _: go.wait(10))
        jobs = [asyncio.create_task(store.write(lambda c, one=one: records.add(c, one, None))) for one in again]  # type: ignore[misc]
        await asyncio.sleep(0)
        before = store.commits
        go.set()
        await asyncio.gather(*jobs)
        assert store.commits - before <= 2

    try:
        asyncio.run(talk())
    finally:
        store.close()


def test_only_durable_changes_are_synced_to_the_disk(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.db")

    async def level(*, durable: bool) -> object:
        return await store.write(lambda connection: connection.exec_driver_sql("PRAGMA synchronous").scalar(), durable=durable)

    async def talk() -> list[object]:
        return [await level(durable=False), await level(durable=True), await level(durable=False)]

    try:
        assert asyncio.run(talk()) == [1, 2, 1]  # NORMAL, FULL, NORMAL
    finally:
        store.close()


def test_an_older_revision_never_overwrites_a_newer_one(base: Connection) -> None:
    one = record(Phase.REQUESTED, tenant="z")
    records.add(base, one, None)
    newer = one.changed(phase=Phase.RUNNING)
    records.save(base, newer)
    records.save(base, one)
    assert records.find(base, "z", one.id) == newer
    assert records.find(base, "other", one.id) is None


# -- small things ----------------------------------------------------------------------------------------------------------


def test_timers_run_in_order_and_wake_only_when_something_is_due() -> None:
    async def talk() -> list[str]:
        timers, ran, done = Timers(), [], asyncio.Event()
        now = time.time()
        timers.at(now + 0.06, lambda: ran.append("c"))
        timers.at(now + 0.06, done.set)
        timers.at(now + 0.02, lambda: ran.append("a"))
        timers.at(now + 0.04, lambda: ran.append("b"))
        timers.at(now - 5, lambda: ran.append("late"))
        await asyncio.wait_for(done.wait(), 5)
        assert len(timers) == 0
        timers.at(now + 1000, lambda: None)
        timers.close()
        return ran

    assert asyncio.run(talk()) == ["late", "a", "b", "c"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(max_size=3000), max_size=20), st.integers(0, 4000))
def test_a_spool_gives_back_what_it_took(pieces: list[bytes], memory: int) -> None:
    async def talk() -> bytes:
        spool = Spool(memory)

        async def write() -> None:
            for piece in pieces:
                spool.write(piece)
                await asyncio.sleep(0)
            spool.end()

        writer = asyncio.create_task(write())
        taken = b"".join([piece async for piece in spool.pieces()])
        await writer
        spool.close()
        return taken

    assert asyncio.run(talk()) == b"".join(pieces)


def test_a_helper_that_is_cancelled_before_its_first_step_leaves_no_coroutine(recwarn: pytest.WarningsRecorder) -> None:
    async def work() -> None:
        raise AssertionError("it never began")

    async def cancelled() -> None:
        task = asyncio.create_task(caught(work))
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(cancelled())
    gc.collect()
    assert [str(each.message) for each in recwarn] == []
