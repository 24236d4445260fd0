"""Terminals through E2B's SDKs: made, written to, resized, left, taken up, killed."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.e2b.stage import Js

import e2b
from e2b import AsyncSandbox, PtySize, Sandbox


def _until(handle: e2b.CommandHandle, wanted: bytes) -> bytes:
    """What a terminal says up to that."""
    seen = b""
    for _, _, pty in handle:
        seen += pty or b""
        if wanted in seen:
            return seen
    raise AssertionError(seen)


def test_a_terminal_is_a_login_shell_of_its_size(shared: Sandbox) -> None:
    handle = shared.pty.create(PtySize(rows=30, cols=100), envs={"MINE": "yes"}, cwd="/tmp")
    shared.pty.send_stdin(handle.pid, b"echo $(tput lines) $(tput cols) $TERM $LANG $MINE $(whoami) $(pwd); exit\n")
    seen = b""
    for _, _, pty in handle:
        seen += pty or b""
    assert b"30 100 xterm-256color C.UTF-8 yes user /tmp" in seen
    assert handle.wait().exit_code == 0


def test_a_terminal_of_another_user_and_its_size_changes(shared: Sandbox) -> None:
    handle = shared.pty.create(PtySize(rows=24, cols=80), user="root")
    shared.pty.send_stdin(handle.pid, b"whoami; stty size\n")
    assert b"root" in _until(handle, b"24 80")
    shared.pty.resize(handle.pid, PtySize(rows=40, cols=120))
    shared.pty.send_stdin(handle.pid, b"stty size\n")
    _until(handle, b"40 120")
    assert shared.pty.kill(handle.pid) is True
    with pytest.raises(e2b.CommandExitException) as caught:
        handle.wait()
    assert caught.value.exit_code == -1
    assert shared.pty.kill(handle.pid) is False


def test_input_streams_into_a_terminal(shared: Sandbox) -> None:
    handle = shared.pty.create(PtySize(rows=24, cols=80))
    shared.pty.stream_input(handle.pid, iter([b"echo on", b"e-tw", b"o\n", b"exit 4\n"]))
    with pytest.raises(e2b.CommandExitException) as caught:
        handle.wait()
    assert caught.value.exit_code == 4


def test_a_terminal_is_left_and_taken_up(shared: Sandbox) -> None:
    handle = shared.pty.create(PtySize(rows=24, cols=80), timeout=0)
    shared.pty.send_stdin(handle.pid, b"LEFT=behind\n")
    handle.disconnect()
    again = shared.pty.connect(handle.pid)
    shared.pty.send_stdin(handle.pid, b"echo $LEFT-it\n")
    _until(again, b"behind-it")
    assert handle.pid in [one.pid for one in shared.commands.list()]
    shared.pty.send_stdin(handle.pid, b"exit\n")  # an end typed while the shell is not reading is lost, as on any terminal
    again.wait()


def test_a_terminals_deadline_ends_it(shared: Sandbox) -> None:
    handle = shared.pty.create(PtySize(rows=24, cols=80), timeout=1)
    began = time.monotonic()
    with pytest.raises(e2b.TimeoutException):
        handle.wait()
    assert time.monotonic() - began < 30


def test_what_is_no_terminal_is_refused(shared: Sandbox) -> None:
    command = shared.commands.run("sleep 60", background=True)
    with pytest.raises(e2b.SandboxException):
        shared.pty.resize(command.pid, PtySize(rows=24, cols=80))
    command.kill()
    with pytest.raises(e2b.NotFoundException):
        shared.pty.resize(999_999, PtySize(rows=24, cols=80))
    with pytest.raises(e2b.AuthenticationException):
        shared.pty.create(PtySize(rows=24, cols=80), user="nobody-here")


def test_async_has_terminals(shared: Sandbox) -> None:
    async def talk() -> None:
        sandbox = await AsyncSandbox.connect(shared.sandbox_id)
        seen = bytearray()
        handle = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=seen.extend)
        await sandbox.pty.send_stdin(handle.pid, b"echo a$((1+1))c; exit\n")
        await handle.wait()
        assert b"a2c" in seen

    asyncio.run(talk())


def test_javascript_has_terminals(js: Js, shared: Sandbox) -> None:
    said = js(
        """
        const sandbox = await Sandbox.connect(given.id)
        let seen = ''
        const decoder = new TextDecoder()
        const onData = data => { seen += decoder.decode(data) }
        const saw = async text => { for (let i = 0; i < 200 && !seen.includes(text); i++) await sleep(50); return seen.includes(text) }
        const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData, timeoutMs: 0 })
        const write = text => sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode(text))
        await write('stty size\\n')
        const first = await saw('24 80')
        await sandbox.pty.resize(terminal.pid, { cols: 120, rows: 40 })
        await write('stty size\\n')
        const second = await saw('40 120')
        await terminal.disconnect()
        const again = await sandbox.pty.connect(terminal.pid, { onData })
        await write('echo ba$((1))ck\\n')
        const third = await saw('ba1ck')
        const killed = await sandbox.pty.kill(terminal.pid)
        const end = await again.wait().catch(e => e.exitCode)
        return { first, second, third, killed, end, none: await sandbox.pty.kill(999999) }
        """,
        id=shared.sandbox_id,
    )
    assert said == {"first": True, "second": True, "third": True, "killed": True, "end": -1, "none": False}
