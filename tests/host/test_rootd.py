"""rootd's boundary and its deaths."""

from __future__ import annotations

import array
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from space.host import namespaces, process
from space.model.errors import Conflict, Gone, SpaceError, Unavailable
from space.model.ids import new_sandbox_id
from space.model.rootd import CreateSandbox, StartVmm
from space.rootd.records import MESSAGE_LIMIT
from space.rpc.rootd_client import RootdClient, SandboxOnHost
from space.testing.machine import isolated_python
from space.testing.roothost import STAYS, WORD, RootHost


def _connect(host: RootHost) -> socket.socket:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.settimeout(10)
    channel.connect(str(host.instance.rootd_socket))
    return channel


def _ask(channel: socket.socket, message: bytes) -> dict[str, object]:
    channel.send(message)
    answer: dict[str, object] = json.loads(channel.recv(1 << 20))
    return answer


def test_nothing_is_imported_that_root_should_not_run() -> None:
    code = "import sys, space.rootd.server, space.rootd.sweep; print(' '.join(sys.modules))"
    loaded = set(subprocess.run([isolated_python(), "-I", "-c", code], capture_output=True, text=True, check=True).stdout.split())
    assert "space.rootd.jail" in loaded
    assert not loaded & {"ssl", "_ssl", "http", "http.client", "asyncio", "pydantic", "sqlalchemy", "msgspec", "pickle", "urllib.request"}
    foreign = {name.split(".")[0] for name in loaded} - set(sys.stdlib_module_names) - {"space", "__main__"}
    # what the interpreter's own start-up brings in (site's .pth files) is there without us as well
    bare = subprocess.run(
        [isolated_python(), "-I", "-c", "import sys; print(' '.join(sys.modules))"], capture_output=True, text=True, check=True
    )
    assert foreign - {name.split(".")[0] for name in bare.stdout.split()} == set()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"{", "not a JSON object"),
        (b"[]", "not a JSON object but a list"),
        (b'{"op":"reboot"}', "no such operation: 'reboot'"),
        (b'{"op":"create_slot","slot":1,"path":"/etc"}', "create_slot has no field 'path'"),
        (b'{"op":"create_slot"}', "create_slot needs the field 'slot'"),
        (b'{"op":"create_slot","slot":true}', "slot is of type int, not bool"),
        (b'{"op":"create_slot","slot":1536}', "slot is 0 to 1535, not 1536"),
        (b'{"op":"kill_vmm","sandbox":"../../etc","generation":1}', "not a sandbox id"),
        (b"x" * (MESSAGE_LIMIT + 1), f"a message has at most {MESSAGE_LIMIT} bytes"),
        (b"[" * 4000, "not a JSON object"),
    ],
)
def test_wrong_message_is_answered_and_the_connection_goes_on(host: RootHost, message: bytes, words: str) -> None:
    with _connect(host) as channel:
        answer = _ask(channel, message)
        assert answer["error"] is True
        assert answer["code"] == "invalid_argument"
        assert words in str(answer["message"])
        assert _ask(channel, b'{"op":"describe"}') == {"ok": True, "slots": [], "sandboxes": []}


def test_every_call_is_one_line_of_the_log(host: RootHost) -> None:
    with _connect(host) as channel:
        _ask(channel, b'{"op":"create_slot","slot":7}')
        _ask(channel, b'{"op":"no\\nsuch\\u001b"}')
    lines = host.log.read_text().splitlines()
    assert len(lines) == 3
    assert " create_slot slot=7 " in lines[1]
    assert lines[1].endswith(" ok")
    assert "invalid_argument" in lines[2]
    assert "\x1b" not in lines[2]


def test_other_uids_are_turned_away(host: RootHost) -> None:
    host.instance.rootd_socket.chmod(0o666)  # even if the socket's mode were wrong

    def connect_as(uid: int) -> Callable[[], bytes]:
        def connect() -> bytes:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            with _connect(host) as channel, suppress(OSError):
                channel.send(b'{"op":"describe"}')
                return channel.recv(4096)
            return b""

        return connect

    assert process.forked(connect_as(host.instance.control_uid)) == b""
    assert process.forked(connect_as(host.instance.vm_uid(0))) == b""
    assert process.forked(connect_as(65534)) == b""
    assert process.forked(connect_as(host.instance.node_uid)).startswith(b'{"ok": true')
    assert host.log.read_text().count("refused a connection") == 3


def test_descriptors_sent_along_do_not_stay(host: RootHost) -> None:
    assert host.rootd is not None
    held = Path(f"/proc/{host.rootd.pid}/fd")
    with _connect(host) as channel:
        _ask(channel, b'{"op":"describe"}')
        before = len(list(held.iterdir()))
        for _ in range(5):
            channel.sendmsg([b'{"op":"describe"}'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
            channel.recv(4096)
        assert len(list(held.iterdir())) == before


def _send_for_ever(channel: socket.socket) -> None:
    while True:
        channel.send(b'{"op":"describe"}')


def test_peer_that_does_not_take_answers_is_cut_off_and_others_are_served(host: RootHost) -> None:
    with _connect(host) as deaf:
        deaf.settimeout(20)
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            _send_for_ever(deaf)
        assert host.ask(lambda client: client.describe()).slots == ()


def test_connections_are_limited(host: RootHost) -> None:
    channels = [_connect(host) for _ in range(16)]
    for channel in channels:
        assert _ask(channel, b'{"op":"describe"}')["ok"] is True
    with _connect(host) as one_more, suppress(OSError):
        one_more.send(b'{"op":"describe"}')
        assert one_more.recv(100) == b""
    for channel in channels:
        channel.close()
    assert host.ask(lambda client: client.describe()).slots == ()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_vmm_outlives_rootd_and_the_next_one_adopts_it(host: RootHost, number: signal.Signals) -> None:
    request = host.prepare()
    pidfd = host.start(request)
    assert host.stop_rootd(number) == (0 if number is signal.SIGTERM else -9)
    assert host.talk(request) == WORD
    host.start_rootd()
    assert "1 VMMs adopted" in host.log.read_text()
    assert host.ask(lambda client: client.describe()).sandboxes == (SandboxOnHost(request.sandbox, 1, 0, alive=True),)
    adopted = host.ask(lambda client: client.adopt_vmm(request.sandbox, 1))
    assert adopted is not None
    with pytest.raises(Conflict):
        host.ask(lambda client: client.destroy_slot(0))
    with pytest.raises(Conflict):
        host.ask(lambda client: client.destroy_sandbox(request.sandbox, 1))
    host.ask(lambda client: client.kill_vmm(request.sandbox, 1))
    assert namespaces.wait_ended(adopted, 10)
    assert namespaces.wait_ended(pidfd, 0)
    os.close(adopted)
    os.close(pidfd)
    host.ask(lambda client: client.destroy_sandbox(request.sandbox, 1))


def test_process_that_took_over_the_pid_is_not_taken_for_the_vmm(host: RootHost) -> None:
    request = host.prepare()
    record = host.record(request) | {"pid": os.getpid(), "started": namespaces.start_time(os.getpid()), "answered": True}
    path = host.instance.sandboxes / request.sandbox / "sandbox.json"
    path.write_text(json.dumps(record))  # right pid, right start time, but not in the cgroup
    assert host.ask(lambda client: client.adopt_vmm(request.sandbox, 1)) is None
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        host.tree().child(request.sandbox).add(sleeper.pid)
        path.write_text(json.dumps(record | {"pid": sleeper.pid, "started": 1}))  # in the cgroup, another start time
        assert host.ask(lambda client: client.adopt_vmm(request.sandbox, 1)) is None
        with pytest.raises(Conflict, match=f"pid {sleeper.pid}"):  # but files go only when the cgroup is empty
            host.ask(lambda client: client.destroy_sandbox(request.sandbox, 1))
        host.ask(lambda client: client.kill_vmm(request.sandbox, 1))
        assert sleeper.wait(10) == -9
    finally:
        sleeper.kill()
        sleeper.wait()


def test_operation_in_flight_is_asked_again_of_the_next_rootd(host: RootHost) -> None:
    assert host.rootd is not None

    async def work(client: RootdClient) -> None:
        await client.describe()
        assert host.rootd is not None
        host.rootd.send_signal(signal.SIGSTOP)
        asked = asyncio.create_task(client.create_slot(3))
        other = asyncio.create_task(client.describe())
        await asyncio.sleep(0)
        await asyncio.to_thread(host.stop_rootd, signal.SIGKILL)
        await asyncio.to_thread(host.start_rootd)
        await asyncio.wait_for(asked, 20)
        await asyncio.wait_for(other, 20)
        assert (await client.describe()).slots == (3,)

    host.ask(work)


def test_cancelled_call_does_not_upset_the_next_one(host: RootHost) -> None:
    request = host.prepare()

    async def work(client: RootdClient) -> None:
        starting = asyncio.create_task(client.start_vmm(StartVmm(request.sandbox, 1, "tcg")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        starting.cancel()
        assert len((await client.describe()).sandboxes) == 1
        adopted = await client.adopt_vmm(request.sandbox, 1)
        assert adopted is not None
        os.close(adopted)

    before = len(list(Path("/proc/self/fd").iterdir()))
    host.ask(work)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_missing_rootd_is_said(root: Path) -> None:
    async def work() -> None:
        await RootdClient(root / "none.sock").describe()

    with pytest.raises(Unavailable, match=r"rootd cannot be reached at .*none.sock: No such file or directory"):
        asyncio.run(work())


async def _whole_life(client: RootdClient, request: CreateSandbox) -> None:
    await client.create_slot(request.slot)
    await client.create_sandbox(request)
    pidfd = await client.start_vmm(StartVmm(request.sandbox, 1, "tcg"))
    try:
        await client.kill_vmm(request.sandbox, 1)
        assert await asyncio.to_thread(namespaces.wait_ended, pidfd, 10)
    finally:
        os.close(pidfd)
    await client.destroy_sandbox(request.sandbox, 1)
    await client.destroy_slot(request.slot)


def test_rootd_killed_at_any_moment_is_followed_by_one_that_finishes(host: RootHost) -> None:
    """Twenty lives, each with a SIGKILL at another moment; every life ends as if nothing had happened, and nothing is left."""
    moments = random.Random(20)
    assert host.ask(lambda client: _timed(client, CreateSandbox(new_sandbox_id(), 1, 0, STAYS, 16, 64, 1))) > 0
    for _ in range(20):
        request = CreateSandbox(new_sandbox_id(), 1, 0, STAYS, 16, 64, 1)
        moment = moments.uniform(0.0, 0.12)

        async def work(client: RootdClient, request: CreateSandbox = request, moment: float = moment) -> None:
            living = asyncio.create_task(_whole_life(client, request))
            await asyncio.sleep(moment)
            await asyncio.to_thread(host.stop_rootd, signal.SIGKILL)
            await asyncio.to_thread(host.start_rootd)
            with suppress(Gone):  # the kill was between start and answer, and the VMM is already dead
                await asyncio.wait_for(living, 30)

        host.ask(work)
        found = host.ask(lambda client: client.describe())
        for one in found.sandboxes:  # only after Gone
            _destroy(host, one)
        host.ask(lambda client: client.destroy_slot(0))
        assert list(host.instance.sandboxes.iterdir()) == []
        assert list((host.instance.run / "vm").iterdir()) == []
        assert list((host.instance.run / "netns").iterdir()) == []
        assert not host.tree().child(request.sandbox).exists()


def _destroy(host: RootHost, one: SandboxOnHost) -> None:
    host.ask(lambda client: client.destroy_sandbox(one.sandbox, one.generation))


async def _timed(client: RootdClient, request: CreateSandbox) -> float:
    began = time.perf_counter()
    await _whole_life(client, request)
    return time.perf_counter() - began


def test_error_classes_come_over_the_wire(host: RootHost) -> None:
    work: Callable[[RootdClient], Awaitable[object]] = lambda client: client.start_vmm(StartVmm("sb-" + "a" * 20, 1, "tcg"))  # noqa: E731
    with pytest.raises(SpaceError) as caught:
        host.ask(work)
    assert caught.value.code == "not_found"
    assert caught.value.message == f"there is no sandbox sb-{'a' * 20} on this host"
