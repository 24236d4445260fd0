"""Commands through E2B's SDKs: run, background, input, output, ends, users, environment, deadlines, leaving and coming back."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2b.stage import Js, Running

import e2b
from e2b import AsyncSandbox, Sandbox


def _eventually(claim: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.05)


@contextlib.contextmanager
def _running(shared: Sandbox, cmd: str, **options: Any) -> Iterator[Any]:
    handle = shared.commands.run(cmd, background=True, **{"timeout": 0, **options})
    try:
        yield handle
    finally:
        with contextlib.suppress(e2b.SandboxException):
            handle.kill()


# -- run -------------------------------------------------------------------------------------------------------------------


def test_a_command_gives_its_output_and_status(shared: Sandbox) -> None:
    done = shared.commands.run("echo hello; echo trouble >&2")
    assert (done.stdout, done.stderr, done.exit_code, done.error) == ("hello\n", "trouble\n", 0, None)


def test_a_command_that_fails_is_an_exception_with_all_of_it(shared: Sandbox) -> None:
    with pytest.raises(e2b.CommandExitException) as caught:
        shared.commands.run("echo out; echo err >&2; exit 7")
    failed = caught.value
    assert (failed.exit_code, failed.stdout, failed.stderr, failed.error) == (7, "out\n", "err\n", "exit status 7")


def test_a_command_that_a_signal_ends_has_status_minus_one(shared: Sandbox) -> None:
    with pytest.raises(e2b.CommandExitException) as caught:
        shared.commands.run("kill -KILL $$")
    assert (caught.value.exit_code, caught.value.error) == (-1, "signal: killed")


def test_output_comes_while_it_is_made(shared: Sandbox) -> None:
    seen: list[tuple[str, float]] = []
    shared.commands.run("echo 1; sleep 0.7; echo 2 >&2", on_stdout=lambda text: seen.append((text, time.monotonic())),
                        on_stderr=lambda text: seen.append((text, time.monotonic())))  # fmt: skip
    assert [text for text, _ in seen] == ["1\n", "2\n"]
    assert seen[1][1] - seen[0][1] > 0.4


def test_text_of_any_script_and_broken_bytes_come_through(shared: Sandbox) -> None:
    assert shared.commands.run("python3 -c \"print('😀' * 30000, end='')\"").stdout == "😀" * 30_000
    assert shared.commands.run(r"printf 'a\xffb'").stdout == "a�b"


def test_much_output_is_whole(shared: Sandbox) -> None:
    done = shared.commands.run("head -c 5000000 /dev/zero | tr '\\0' x; head -c 1000000 /dev/zero | tr '\\0' y >&2")
    assert (len(done.stdout), set(done.stdout), len(done.stderr), set(done.stderr)) == (5_000_000, {"x"}, 1_000_000, {"y"})


def test_output_need_not_be_kept(shared: Sandbox) -> None:
    seen: list[str] = []
    done = shared.commands.run("echo 1", on_stdout=seen.append, retain_output=False)
    assert (done.stdout, seen) == (None, ["1\n"])


def test_javascript_runs_commands(js: Js, shared: Sandbox) -> None:
    said = js(
        """
        const sandbox = await Sandbox.connect(given.id)
        const done = await sandbox.commands.run('echo hello; echo trouble >&2')
        const failed = await sandbox.commands.run('echo out; exit 7').catch(e => e)
        const seen = []
        await sandbox.commands.run('echo a; sleep 0.3; echo b', { onStdout: text => seen.push(text) })
        const emoji = await sandbox.commands.run("python3 -c \\"print('😀' * 30000, end='')\\"")
        return { done, failed: { name: failed.constructor.name, code: failed.exitCode, out: failed.stdout, error: failed.error }, seen,
            emoji: emoji.stdout === '😀'.repeat(30000) }
        """,
        id=shared.sandbox_id,
    )
    assert (said["done"]["stdout"], said["done"]["stderr"], said["done"]["exitCode"]) == ("hello\n", "trouble\n", 0)
    assert said["failed"] == {"name": "CommandExitError", "code": 7, "out": "out\n", "error": "exit status 7"}
    assert said["seen"] == ["a\n", "b\n"]
    assert said["emoji"]


def test_async_runs_commands(shared: Sandbox) -> None:
    async def talk() -> None:
        sandbox = await AsyncSandbox.connect(shared.sandbox_id)
        done = await sandbox.commands.run("echo hello")
        assert done.stdout == "hello\n"
        with pytest.raises(e2b.CommandExitException):
            await sandbox.commands.run("exit 1")
        many = await asyncio.gather(*[sandbox.commands.run(f"echo {number}") for number in range(20)])
        assert [one.stdout for one in many] == [f"{number}\n" for number in range(20)]

    asyncio.run(talk())


# -- who, where, with what ---------------------------------------------------------------------------------------------------


def test_users_are_as_asked(shared: Sandbox) -> None:
    assert shared.commands.run("whoami; echo $HOME; pwd").stdout == "user\n/home/user\n/home/user\n"
    assert shared.commands.run("whoami; echo $HOME; pwd", user="root").stdout == "root\n/root\n/root\n"
    assert shared.commands.run("sudo whoami").stdout == "root\n"
    with pytest.raises(e2b.AuthenticationException, match="invalid username: 'nobody-of-this-name'"):
        shared.commands.run("true", user="nobody-of-this-name")


def test_a_command_begins_where_it_is_told(shared: Sandbox) -> None:
    shared.files.make_dir("below/it")
    for cwd, there in (("/tmp", "/tmp"), ("below", "/home/user/below"), ("~/below/it", "/home/user/below/it"), ("~", "/home/user")):
        assert shared.commands.run("pwd", cwd=cwd).stdout == there + "\n"
    for missing in ("/no/such", "no-such"):
        with pytest.raises(e2b.InvalidArgumentException, match=f"cwd '{missing}' does not exist"):
            shared.commands.run("pwd", cwd=missing)


def test_the_environment_is_the_sandboxes_and_the_commands(server: Running) -> None:
    sandbox = Sandbox.create(envs={"FROM": "sandbox", "OVER": "sandbox"})
    try:
        text = "echo $FROM $OVER $MINE $E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID"
        said = sandbox.commands.run(text, envs={"OVER": "command", "MINE": "ü 'x'"}).stdout.split()
        assert said == ["sandbox", "command", "ü", "'x'", "true", sandbox.sandbox_id, "base"]
        assert sandbox.commands.run("echo $OVER").stdout == "sandbox\n"
    finally:
        sandbox.kill()


# -- background --------------------------------------------------------------------------------------------------------------


def test_a_background_command_is_listed_waited_for_and_gone(shared: Sandbox) -> None:
    with _running(shared, "echo begun; sleep 60", envs={"A": "b"}, cwd="/tmp") as handle:
        (found,) = [one for one in shared.commands.list() if one.pid == handle.pid]
        assert (found.cmd, found.args, found.cwd, found.envs["A"]) == ("/bin/bash", ["-l", "-c", "echo begun; sleep 60"], "/tmp", "b")
        assert shared.commands.run(f"ps -o pid= -p {handle.pid}").stdout.strip() == str(handle.pid)
        assert handle.kill() is True
        with pytest.raises(e2b.CommandExitException) as caught:
            handle.wait()
        assert (caught.value.exit_code, caught.value.stdout, caught.value.error) == (-1, "begun\n", "signal: killed")
        assert handle.kill() is False
    assert handle.pid not in [one.pid for one in shared.commands.list()]


def test_killing_what_is_not_there_is_false(shared: Sandbox) -> None:
    assert shared.commands.kill(999_999) is False
    with pytest.raises(e2b.NotFoundException):
        shared.commands.connect(999_999)
    with pytest.raises(e2b.NotFoundException):
        shared.commands.send_stdin(999_999, "x")


def test_a_handle_may_be_left_and_another_taken_without_history(shared: Sandbox) -> None:
    with _running(shared, "echo early; read line; echo got $line; exit 3", stdin=True) as handle:
        assert next(iter(handle)) == ("early\n", None, None)
        handle.disconnect()
        again = shared.commands.connect(handle.pid)
        shared.commands.send_stdin(handle.pid, "late\n")
        with pytest.raises(e2b.CommandExitException) as caught:
            again.wait()
        assert (caught.value.exit_code, caught.value.stdout) == (3, "got late\n")


def test_two_may_follow_one_command(shared: Sandbox) -> None:
    with _running(shared, "read line; echo $line", stdin=True) as handle:
        other = shared.commands.connect(handle.pid)
        handle.send_stdin("both\n")
        assert (handle.wait().stdout, other.wait().stdout) == ("both\n", "both\n")


def test_a_command_that_has_just_ended_can_be_connected_to(shared: Sandbox) -> None:
    handle = shared.commands.run("exit 0", background=True)
    handle.wait()
    assert shared.commands.connect(handle.pid).wait().exit_code == 0


def test_output_nobody_takes_does_not_hold_a_command_back(shared: Sandbox) -> None:
    with _running(shared, "head -c 30000000 /dev/zero; echo done > /tmp/went-on; sleep 60") as handle:
        handle.disconnect()
        _eventually(lambda: shared.files.exists("/tmp/went-on"), 60)


def test_javascript_has_background_commands(js: Js, shared: Sandbox) -> None:
    said = js(
        """
        const sandbox = await Sandbox.connect(given.id)
        const handle = await sandbox.commands.run('read a; echo got $a; read b; echo got $b', { background: true, stdin: true })
        const listed = (await sandbox.commands.list()).some(one => one.pid === handle.pid)
        await sandbox.commands.sendStdin(handle.pid, 'one\\n')
        await handle.disconnect()
        const again = await sandbox.commands.connect(handle.pid)
        await sandbox.commands.sendStdin(handle.pid, 'two\\n')
        const done = await again.wait()
        const loop = await sandbox.commands.run('sleep 60', { background: true })
        const killed = await loop.kill()
        const end = await loop.wait().catch(e => [e.exitCode, e.error])
        const cat = await sandbox.commands.run('cat', { background: true, stdin: true })
        await cat.sendStdin('text')
        await cat.closeStdin()
        const text = (await cat.wait()).stdout
        return { listed, out: done.stdout, killed, end, none: await sandbox.commands.kill(999999), text,
            user: await thrown(() => sandbox.commands.run('true', { user: 'nobody-here' })),
            cwd: await thrown(() => sandbox.commands.run('true', { cwd: '/no/such' })),
            late: await thrown(() => sandbox.commands.run('sleep 60', { timeoutMs: 700 })) }
        """,
        id=shared.sandbox_id,
    )
    assert said["listed"]
    assert said["out"].endswith("got two\n")
    assert (said["killed"], said["end"], said["none"], said["text"]) == (True, [-1, "signal: killed"], False, "text")
    assert (said["user"]["name"], said["cwd"]["name"], said["late"]["name"]) == (
        "AuthenticationError",
        "InvalidArgumentError",
        "TimeoutError",
    )


def test_the_git_helper_works(shared: Sandbox) -> None:
    git, place = shared.git, "/home/user/repository"
    shared.commands.run("git init -q --bare /home/user/upstream.git")
    git.init(place, initial_branch="main")
    git.configure_user("A Person", "person@example.com")
    git.remote_add(place, "origin", "/home/user/upstream.git")
    shared.files.write(f"{place}/f", "1")
    assert [one.name for one in git.status(place).file_status] == ["f"]
    git.add(place)
    git.commit(place, "first")
    git.push(place, remote="origin", branch="main")
    git.create_branch(place, "other")
    assert set(git.branches(place).branches) == {"main", "other"}
    git.clone("/home/user/upstream.git", path="/home/user/clone", branch="main")
    assert shared.files.read("/home/user/clone/f") == "1"


# -- input -----------------------------------------------------------------------------------------------------------------


def test_input_is_sent_piece_by_piece_and_ended(shared: Sandbox) -> None:
    with _running(shared, "cat", stdin=True) as handle:
        for piece in ("one ", b"two ", ""):
            handle.send_stdin(piece)
        handle.close_stdin()
        assert handle.wait().stdout == "one two "


def test_input_streams_in_order(shared: Sandbox) -> None:
    with _running(shared, "sha256sum", stdin=True) as handle:
        pieces = [bytes([number]) * 5000 for number in range(200)]
        shared.commands.stream_input(handle.pid, iter(pieces))
        handle.close_stdin()
        assert handle.wait().stdout.split()[0] == hashlib.sha256(b"".join(pieces)).hexdigest()


def test_a_command_without_input_reads_its_end_and_takes_none(shared: Sandbox) -> None:
    assert shared.commands.run("cat; echo over").stdout == "over\n"
    with _running(shared, "sleep 60") as handle:
        with pytest.raises(e2b.SandboxException):
            handle.send_stdin("x")
        with pytest.raises(e2b.SandboxException):
            handle.close_stdin()


# -- deadlines ----------------------------------------------------------------------------------------------------------------


def test_the_deadline_of_a_command_kills_it(shared: Sandbox) -> None:
    with pytest.raises(e2b.TimeoutException):
        shared.commands.run("echo $$ > /tmp/late; exec sleep 60", timeout=1)
    pid = shared.files.read("/tmp/late").strip()
    _eventually(lambda: shared.commands.run(f"kill -0 {pid} 2>/dev/null || echo gone").stdout == "gone\n")


def test_the_deadline_holds_though_its_client_has_left_and_a_connects_ends_alone(shared: Sandbox) -> None:
    with _running(shared, "sleep 60", timeout=4) as handle:
        handle.disconnect()
        with pytest.raises(e2b.TimeoutException):
            shared.commands.connect(handle.pid, timeout=1).wait()
        assert shared.commands.run(f"kill -0 {handle.pid} && echo there").stdout == "there\n"
        _eventually(lambda: handle.pid not in [one.pid for one in shared.commands.list()])


def test_without_a_deadline_there_is_none(shared: Sandbox) -> None:
    assert shared.commands.run("sleep 1; echo slow", timeout=0).stdout == "slow\n"


# -- what goes on beside, and after -----------------------------------------------------------------------------------------


def test_a_server_that_a_command_leaves_behind_goes_on(sandbox: Sandbox) -> None:
    sandbox.commands.run("nohup python3 -m http.server 8123 --bind 127.0.0.1 > /tmp/log 2>&1 &")
    _eventually(lambda: sandbox.commands.run("curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8123/ || true").stdout == "200")
    time.sleep(1)
    assert sandbox.commands.run("curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8123/").stdout == "200"


def test_a_sandbox_that_is_killed_ends_its_commands_with_a_word_that_says_so(server: Running) -> None:
    sandbox = Sandbox.create()
    handle = sandbox.commands.run("echo begun; sleep 60", background=True, timeout=0)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(handle.wait)
        time.sleep(0.5)
        sandbox.kill()
        with pytest.raises(e2b.TimeoutException, match=r"sandbox was killed or reached its end of life|was not found"):
            waiting.result(60)
    with pytest.raises(e2b.TimeoutException):
        sandbox.commands.run("true")


def _all_at_once(sandbox: Sandbox, count: int) -> None:
    async def talk() -> None:
        mine = await AsyncSandbox.connect(sandbox.sandbox_id)
        # The shell's own words alone: so many shells at once are work enough for one processor.
        text = "for i in 1 2 3 4 5 6 7 8 9 10; do printf %s {}; done"
        letters = "abcdefghijklmnopqrst"
        done = await asyncio.gather(*[mine.commands.run(text.format(letters[n % 20] * 10_000), timeout=900) for n in range(count)])
        assert [(len(one.stdout), set(one.stdout)) for one in done] == [(100_000, {letters[n % 20]}) for n in range(count)]

    asyncio.run(talk())


def test_twenty_commands_at_once_lose_nothing(shared: Sandbox) -> None:
    _all_at_once(shared, 20)


@pytest.mark.full
def test_a_hundred_commands_at_once_lose_nothing(server: Running) -> None:
    sandbox = Sandbox.create(timeout=1800)
    try:
        _all_at_once(sandbox, 100)
    finally:
        sandbox.kill()
