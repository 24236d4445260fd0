"""Windows end to end: a slow reader holds its own stream, big bodies pass in bounded memory, ends of either side reach the other."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from space.core.policy.loader import load
from space.core.policy.verdict import Layer, Stack
from space.gateway.http2 import Http2Session
from space.gateway.streams import Stream
from space.gateway.surroundings import Limits, Ruling
from space.testing.egressh2 import Call, Guest, Served, guest, serve_h2
from space.testing.egresslab import ALLOWED, OTHER, Place, place, run

MEGABYTE = 2**20


def served_of(call: Call) -> Served:
    assert isinstance(call.talk, Served)
    return call.talk


async def endless(call: Call) -> None:
    served_of(call).respond(call, [(b":status", b"200")])
    while True:
        await served_of(call).data(call.stream, b"more" * 4000)
        await asyncio.sleep(0.005)


def test_100_streams_at_once_and_a_slow_reader_disturbs_nobody(tmp_path: Path) -> None:
    async def answer(call: Call) -> None:
        served_of(call).respond(call, [(b":status", b"200")])
        await served_of(call).data(call.stream, bytes(MEGABYTE if call[b":path"] == b"/slow" else 100_000), ended=True)

    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at, answer=answer)
            client = await guest(at)
            client.h2.increment_flow_control_window(8 * MEGABYTE)
            slow = client.ask("/slow")
            slow.paused = True
            rest = [client.ask(f"/{n}") for n in range(99)]
            for call in rest:
                await call.over()
            assert {call.size for call in rest} == {100_000}
            assert not slow.ended
            for n in range(300):
                assert (await client.get(f"/again/{n}")).size == 100_000
            slow.read_on()
            await slow.over()
            assert slow.size == MEGABYTE
            await client.close()
            await at.empty()
            assert len(upstream.connections) == 2

    run(main())


def test_bodies_of_50_megabytes_pass_both_ways_in_bounded_memory(tmp_path: Path) -> None:
    async def answer(call: Call) -> None:
        served = served_of(call)
        served.respond(call, [(b":status", b"200"), (b"content-length", b"%d" % (50 * MEGABYTE))])
        for n in range(50):
            await served.data(call.stream, bytes(MEGABYTE), ended=n == 49)

    async def main() -> None:
        async with place(tmp_path) as at:
            await serve_h2(at)
            await serve_h2(at, OTHER, answer)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            client = await guest(at)
            call = client.ask("/", method="PUT", ended=False)
            for n in range(50):
                await client.data(call.stream, bytes(MEGABYTE), ended=n == 49)
            await call.over()
            assert bytes(call.got) == b"PUT / got %d" % (50 * MEGABYTE)
            await client.close()
            client = await guest(at, OTHER)
            call = await client.get("/")
            assert call.size == 50 * MEGABYTE
            await client.close()
            await at.empty()
            assert [record.reason for record in at.requests()] == ["", ""]
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000  # KiB; client and servers are in it as well

    run(main())


def test_a_guest_that_does_not_read_holds_its_upstream_and_not_the_memory(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at, answer=endless)
            client = await guest(at)
            calls = [client.ask("/") for _ in range(20)]
            for call in calls:
                call.paused = True
            await client.until(lambda: not client.h2.inbound_flow_control_window)
            held = [0]
            while True:
                await asyncio.sleep(0.3)
                (connection,) = at.lab.worker._connections
                now = sum(stream.down.size for stream in connection._stage._streams.values())  # type: ignore[union-attr]
                if now == held[-1]:
                    break
                held.append(now)
            assert 0 < held[-1] <= 4 * MEGABYTE
            assert connection._guest.waiting < 2 * MEGABYTE
            client.writer.transport.abort()
            await client.task
            await at.empty()
            assert upstream.open == 0

    run(main())


def test_an_upstream_that_does_not_read_holds_its_guest(tmp_path: Path) -> None:
    async def answer(call: Call) -> None:
        call.paused = True
        await asyncio.sleep(60)

    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at, answer=answer)
            client = await guest(at)
            call = client.ask("/", method="POST", ended=False)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.data(call.stream, bytes(8 * MEGABYTE)), 1)
            (connection,) = at.lab.worker._connections
            (stream,) = connection._stage._streams.values()  # type: ignore[union-attr]
            assert stream.up.size <= 262_144
            client.reset(call)
            await at.until(lambda: upstream.calls[0].error == 8)
            await client.close()
            await at.empty()
            assert [record.reason for record in at.requests()] == ["guest_reset"]

    run(main())


def test_streams_beyond_what_an_upstream_takes_wait_for_their_turn(tmp_path: Path) -> None:
    most = 0

    async def answer(call: Call) -> None:
        nonlocal most
        served = served_of(call)
        most = max(most, served.h2.open_inbound_streams)
        await asyncio.sleep(0.01)
        served.respond(call, [(b":status", b"204")], ended=True)

    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at, answer=answer, streams=5)
            client = await guest(at)
            await client.get("/first")
            calls = [client.ask(f"/{n}") for n in range(60)]
            for call in calls:
                assert (await call.over()).status == 204
            await client.close()
            await at.empty()
            assert most == 5
            assert len(upstream.calls) == 61

    run(main())


@pytest.mark.parametrize("code", [7, 8, 11])
def test_a_reset_of_the_upstream_reaches_the_guest_with_its_code(tmp_path: Path, code: int) -> None:
    async def answer(call: Call) -> None:
        if call[b":path"] == b"/late":
            served_of(call).respond(call, [(b":status", b"200")])
        served_of(call).h2.reset_stream(call.stream, code)
        served_of(call).flush()

    async def main() -> None:
        async with place(tmp_path) as at:
            await serve_h2(at, answer=answer)
            client = await guest(at)
            for path in ("/soon", "/late"):
                assert (await client.get(path)).error == code
            await client.close()
            await at.empty()
            assert [record.reason for record in at.requests()] == ["upstream_reset"] * 2

    run(main())


def test_an_early_answer_ends_an_upload_without_harm(tmp_path: Path) -> None:
    async def answer(call: Call) -> None:
        served = served_of(call)
        served.respond(call, [(b":status", b"413")], ended=True)
        served.h2.reset_stream(call.stream, 0)
        served.flush()

    async def main() -> None:
        async with place(tmp_path) as at:
            await serve_h2(at, answer=answer)
            client = await guest(at)
            for _ in range(20):
                call = client.ask("/", method="POST", ended=False)
                await call.over()
                assert call.status == 413
            await client.close()
            await at.empty()
            assert {record.reason for record in at.requests()} == {""}

    run(main())


def test_an_upstream_that_says_goaway_finishes_what_it_has_and_is_dialled_anew(tmp_path: Path) -> None:
    async def answer(call: Call) -> None:
        served = served_of(call)
        if call[b":path"] == b"/last":
            served.writer.write(b"\0\0\x08\x07\0\0\0\0\0" + call.stream.to_bytes(4, "big") + bytes(4))
        served.respond(call, [(b":status", b"200")])
        await asyncio.sleep(0.05)
        await served.data(call.stream, b"x" * 10, ended=True)

    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at, answer=answer)
            client = await guest(at)
            for _ in range(3):
                call = await client.get("/last")
                assert (call.status, call.size) == (200, 10)
            late = client.ask("/last")
            await client.until(lambda: late.fields)
            second = await client.get("/meanwhile")  # one connection has one upstream: the guest may send it over another one
            assert second.error == 7
            await late.over()
            assert late.size == 10
            assert client.goaway == 0
            await client.task
            await at.empty()
            assert len(upstream.connections) == 5

    run(main())


@pytest.mark.parametrize("late", [False, True])
def test_an_upstream_that_breaks_off_is_told_to_each_stream(tmp_path: Path, late: bool) -> None:
    async def answer(call: Call) -> None:
        if call[b":path"] == b"/fine":
            served_of(call).respond(call, [(b":status", b"204")], ended=True)
            return
        if late:
            served_of(call).respond(call, [(b":status", b"200")])
            await served_of(call).data(call.stream, b"some")
            await asyncio.sleep(0.05)
        served_of(call).writer.transport.abort()

    async def main() -> None:
        async with place(tmp_path) as at:
            await serve_h2(at, answer=answer)
            client = await guest(at)
            call = await client.get("/")
            if late:
                assert (call.status, call.ended, call.error) == (200, False, 2)
            else:
                assert (call.status, json.loads(bytes(call.got))["reason"]) == (502, "upstream_closed")
            assert (await client.get("/fine")).status == 204  # dialled anew
            await client.close()
            await at.empty()
            assert at.requests()[0].reason == ("upstream_cut" if late else "upstream_closed")

    run(main())


async def streaming(at: Place, *paths: str) -> tuple[Guest, list[Call]]:
    client = await guest(at)
    client.h2.increment_flow_control_window(8 * MEGABYTE)
    calls = [client.ask(path) for path in paths]
    for call in calls:
        await client.until(lambda call=call: call.size)  # type: ignore[misc]
    return client, calls


def test_another_policy_ends_the_streams_that_it_does_not_allow_and_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            await serve_h2(at, answer=endless)
            client, (one, two) = await streaming(at, "/a", "/b")
            at.rules({"host": ALLOWED, "paths": ["/a"]})
            began = time.monotonic()
            await two.over()
            assert two.error == 8
            assert time.monotonic() - began < 1
            before = one.size
            await client.until(lambda: one.size > before + 100_000)
            assert one.error is None
            at.lab.policy({})
            await client.task
            await at.empty()
            assert [record.reason for record in at.requests()] == ["policy_changed"] * 2
            assert [end.reason for end in at.ends()] == ["policy_changed"]

    run(main())


def test_budgets_hold_over_streams_and_are_never_overdrawn(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at)
            at.rules({"host": ALLOWED, "name": "small", "sent_limit": 10_000})
            client = await guest(at)
            got = []
            for _ in range(4):
                call = client.ask("/", method="POST", ended=False)
                await client.data(call.stream, bytes(3000), ended=True)
                got.append((await call.over()).status)
            assert got == [200, 200, 200, 403]
            assert at.lab.around.spending.used("layer0", "small")[0] <= 10_000
            assert sum(call.size for call in upstream.calls) <= 10_000
            at.rules({"host": ALLOWED, "name": "down", "received_limit": 50})
            assert (await client.get("/")).status == 403
            await client.close()
            await at.empty()

    run(main())


def test_a_slow_body_of_a_said_length_ends_and_a_silent_stream_does_not(tmp_path: Path) -> None:
    limits = Limits(sweep=0.05, body_grace=0.2, body_rate=1000)

    async def main() -> None:
        async with place(tmp_path, limits=limits) as at:
            await serve_h2(at)
            client = await guest(at)
            silent = client.ask("/", method="POST", ended=False)
            slow = client.ask("/", [(b"content-length", b"1000")], method="POST", ended=False)
            await slow.over()
            assert (slow.status, json.loads(bytes(slow.got))["reason"]) == (408, "body_slow")
            await client.data(silent.stream, b"hello", ended=True)
            assert (await silent.over()).status == 200
            await client.close()
            await at.empty()

    run(main())


def test_an_answer_that_came_whole_outlives_its_upstream_and_the_upload_is_let_go(tmp_path: Path) -> None:
    async def answer(call: Call) -> None:
        served_of(call).respond(call, [(b":status", b"200")])
        await served_of(call).data(call.stream, b"enough", ended=True)
        served_of(call).writer.close()

    async def main() -> None:
        async with place(tmp_path) as at:
            await serve_h2(at, answer=answer)
            client = await guest(at)
            call = client.ask("/", method="POST", ended=False)
            await client.until(lambda: call.error is not None)
            assert (call.status, bytes(call.got), call.ended, call.error) == (200, b"enough", True, 0)
            await client.close()
            await at.empty()

    run(main())


def test_what_waits_for_its_upstream_goes_by_the_policy_of_then(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path, limits=Limits(sweep=30)) as at:
            upstream = await serve_h2(at)
            client = await guest(at)
            waits = asyncio.Event()
            dial = at.lab.dialer.__class__.__call__

            async def slow(target: Any, port: int) -> Any:
                await waits.wait()
                return await dial(at.lab.dialer, target, port)

            object.__setattr__(at.lab.around, "dial", slow)
            one, two = client.ask("/a"), client.ask("/b")
            await asyncio.sleep(0.1)
            at.rules({"host": ALLOWED, "paths": ["/a"], "name": "later"})
            waits.set()
            await one.over()
            await two.over()
            assert (one.status, two.error) == (200, 8)
            await client.close()
            await at.empty()
            assert [call[b":path"] for call in upstream.calls] == [b"/a"]
            assert {(record.reason, record.rule) for record in at.requests()} >= {("", "later")}

    run(main())


def test_streams_that_are_broken_off_leave_the_connections_windows_whole(tmp_path: Path) -> None:
    async def answer(call: Call) -> None:
        served = served_of(call)
        if call[b":path"] == b"/up":
            call.paused = True
            await served.until(lambda: call.error is not None)
            call.read_on()
            return
        served.respond(call, [(b":status", b"200")])
        await served.data(call.stream, bytes(MEGABYTE), ended=True)

    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at, answer=answer)
            client = await guest(at)
            for n in range(40):  # each holds most of a window, 4 MiB would not be enough for all
                call = client.ask("/down")
                call.paused = True
                stream = (await held(at, lambda stream: stream.down.size > 150_000))[0]
                assert stream.near == call.stream
                client.reset(call)
                call.read_on()
                upload = client.ask("/up", method="POST", ended=False)
                sending = asyncio.get_running_loop().create_task(client.data(upload.stream, bytes(MEGABYTE)))
                await held(at, lambda stream: stream.up.size > 100_000)
                sending.cancel()
                client.reset(upload)
                assert (await client.get(f"/whole/{n}")).size == MEGABYTE
            await client.close()
            await at.empty()
            assert len(upstream.connections) == 2

    run(main())


async def held(at: Place, what: Callable[[Stream], bool]) -> list[Stream]:
    """The streams of the one connection of which something holds; waits until there is one."""

    def found() -> list[Stream]:
        (connection,) = at.lab.worker._connections
        session = connection._stage
        return [stream for stream in session._streams.values() if what(stream)] if isinstance(session, Http2Session) else []

    await at.until(found)
    return found()


def test_another_policy_dials_anew_and_where_streams_are_under_way_over_another_connection(tmp_path: Path) -> None:
    async def answer(call: Call) -> None:
        if call[b":path"] == b"/endless":
            await endless(call)
        served_of(call).respond(call, [(b":status", b"204")], ended=True)

    async def main() -> None:
        async with place(tmp_path) as at:
            upstream = await serve_h2(at, answer=answer)
            client = await guest(at)
            for count in (2, 3, 4):
                assert (await client.get("/")).status == 204
                assert len(upstream.connections) == count
                at.rules({"host": ALLOWED})
            client.h2.increment_flow_control_window(8 * MEGABYTE)
            under_way = client.ask("/endless")
            await client.until(lambda: under_way.size)
            at.rules({"host": ALLOWED})
            refused = await client.get("/")
            assert (refused.error, client.goaway) == (7, 0)
            before = under_way.size
            await client.until(lambda: under_way.size > before + 100_000)
            client.reset(under_way)
            await client.task
            await at.empty()
            assert [record.reason for record in at.requests()] == ["", "", "", "", "guest_reset"]

    run(main())


def test_two_rules_with_other_authorities_never_share_an_upstream(tmp_path: Path) -> None:
    bundles: list[str | None] = []

    async def main() -> None:
        async with place(tmp_path) as at:
            pem = at.lab.signer.pem

            def bundle(name: str | None) -> str:
                bundles.append(name)
                return pem

            object.__setattr__(at.lab.around, "bundle", bundle)
            rules = [{"host": ALLOWED, "port": at.port, "paths": [f"/{name}"], "ca": name} for name in "ab"]
            policy = load({"version": 1, "rule": rules}, name="ours", public_suffix=lambda _: False, bundles=frozenset("ab")).policy
            at.lab.ruling = Ruling(2, Stack([Layer(policy)]))
            upstream = await serve_h2(at)
            client = await guest(at)
            for path in ("/a", "/b", "/b", "/a"):
                assert (await client.get(path)).status == 200
            await client.close()
            await at.empty()
            assert bundles == ["a", "a", "b", "a"]
            assert len(upstream.connections) == 4

    run(main())
