"""Promises of the command line as a whole: help, examples, and `--json` of every command that shows something."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from space.cli import main as program
from space.cli.main import main
from space.cli.topics import EXIT_CODES
from space.sdk.testing import MockServer, Process, Reply
from space.sdk.testing.code import MockInterpreter

ROOT = Path(__file__).parents[3]


def commands() -> dict[str, Any]:
    """Every command by its words."""
    program._register([])
    found: dict[str, Any] = {}

    def walk(group: Any, words: list[str]) -> None:
        for name, each in group.commands.items():
            if hasattr(each, "commands"):
                walk(each, [*words, name])
            if not getattr(each, "commands", None) or each.invoke_without_command:
                found[" ".join([*words, name])] = each

    walk(typer.main.get_command(program.app), [])
    return found


COMMANDS = commands()
# What has bytes or a script for an answer, and what another test asks for its JSON, because it needs a machine.
NO_JSON = {"shell": "a terminal", "attach": "a terminal", "completion": "a script"}
ELSEWHERE = {"serve", "setup", "doctor", "clean", "bench", "evaluate", "config server", "backup", "restore"}
ELSEWHERE |= {"policy check", "policy explain", "policy diff", "policy test", "policy discover"}
ELSEWHERE |= {"template layer"}
ELSEWHERE |= {"audit verify", "audit export", "audit key"}
# The words behind the command: S is a sandbox, P one of its processes, W a webhook. Streams end by themselves here.
ASKED = {
    "run": "-- echo hi",
    "exec": "S -- echo hi",
    "run-code": "S 1+1",
    "create": "",
    "list": "",
    "delete": "S",
    "show": "S",
    "update": "S --ttl 60",
    "pause": "S",
    "resume": "S",
    "suspend": "S",
    "stop": "S",
    "wake": "S",
    "checkpoint": "S",
    "checkpoints": "S",
    "rollback": "S CP",
    "fork": "S 2",
    "template keep": "S kept:v1",
    "metrics": "S",
    "start": "S -- echo hi",
    "ps": "S -a",
    "logs": "S P -f",
    "wait": "S P",
    "kill": "S P --forget",
    "cp": "LOCAL S:/copied",
    "files ls": "S /srv",
    "files stat": "S /srv/a",
    "files cat": "S /srv/a",
    "files write": "S /srv/b",
    "files mkdir": "S /srv/d",
    "files mv": "S /srv/a /srv/z",
    "files rm": "S /srv/a",
    "files chmod": "S 600 /srv/a",
    "files chown": "S root /srv/a",
    "files ln": "S a /srv/link",
    "events": "",
    "key create": "",
    "key list": "",
    "key revoke": "key-1",
    "quota show": "acme",
    "quota set": "acme --sandboxes 3",
    "webhooks list": "",
    "webhooks create": "https://hooks.example.com/",
    "webhooks delete": "W",
    "egress log": "S",
    "egress counters": "S",
    "egress draft": "S",
    "audit": "",
    "secret put": "new --from-env HOME",
    "secret list": "",
    "secret show": "stored",
    "secret rotate": "stored --from-env HOME",
    "secret revoke": "stored",
    "secret delete": "unused",
    "secret import": "ENV",
    "secret log": "",
    "grant create": "new --secret stored --host api.example.com",
    "grant list": "",
    "grant show": "granted",
    "grant revoke": "granted",
    "grant delete": "granted",
    "grant attach": "S granted",
    "grant detach": "S granted",
    "egress asks": "S",
    "egress allow": "S A",
    "egress deny": "S A",
    "policy set": "agents POLICY",
    "policy get": "stored",
    "policy list": "",
    "policy delete": "stored",
    "policy apply": "S stored",
    "template build": "RECIPE",
    "template list": "",
    "template show": "mine:v1",
    "template tag": "mine:v1 mine:v2",
    "template delete": "mine:v1",
    "template rebake": "mine:v1",
    "template export": "mine:v1 OUT",
    "export": "SUSPENDED OUT",
    "expose": "S 8080",
    "unexpose": "S 8080",
    "ingress show": "",
    "ingress ca": "",
    "import": "NIGHT",
    "template import": "BUNDLE mine:v3",
    "prune": "--dry-run",
    "config show": "",
    "config set": "api_url https://space.example.com",
    "config unset": "api_url",
    "version": "",
    "help": "exit-codes",
}
FOLLOWING = {"watch", "forward", "egress watch"}  # until Ctrl-C: asked as processes, in test_terminals.py


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockServer]:
    server = MockServer()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    with server.listen() as url:
        monkeypatch.setenv("SPACE_API_URL", url)
        monkeypatch.setenv("SPACE_API_KEY", server.key)
        yield server
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_the_list_of_commands_says_a_whole_line_of_each(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capfd.readouterr().out.partition("Commands:\n")[2].splitlines()
    said = {words[0]: words[1] for line in lines if len(words := line.split(maxsplit=1)) == 2}
    assert said == {name: text for module in program._MODULES.values() for name, text in module.items()}


def test_no_command_is_left_out_here() -> None:
    assert set(ASKED) | set(NO_JSON) | ELSEWHERE | FOLLOWING == set(COMMANDS)


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_has_help_of_a_line_and_an_example(words: str, capfd: pytest.CaptureFixture[str]) -> None:
    command = COMMANDS[words]
    first = command.help.strip().split("\n\n")[0]
    assert first.endswith("."), first
    assert len(first) < 160
    assert f"space {words.split()[0]}" in (command.epilog or "")
    if words not in ("setup", "bench", "evaluate"):  # whose help is their own
        assert main([*words.split(), "--help"]) == 0
        assert "Example:\n  " in capfd.readouterr().out
    for each in command.params:
        assert each.help or each.name == "help", f"{words}: {each.name} says nothing"


@pytest.mark.parametrize("words", ASKED)
def test_every_command_answers_with_json(
    words: str, server: MockServer, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = server.client()
    from space import Sandbox

    sandbox = Sandbox.create(client=client)
    sandbox.files.mkdir("/srv", parents=True)
    sandbox.files.write("/srv/a", b"\xff")
    process = sandbox.start(["echo", "hi"])
    process.wait()
    client.create_key(tenant="acme")
    webhook = client.create_webhook("https://hooks.example.com/one").webhook
    (tmp_path / "local").write_text("x")
    (tmp_path / "policy.toml").write_text("version = 1\n")
    client.set_policy("stored", {"version": 1})
    (tmp_path / "recipe.toml").write_text('version = 1\nname = "mine"\n[base]\ntemplate = "base"\n')
    list(client.build_template(tmp_path / "recipe.toml", tag="v1"))
    client.export_template("mine:v1", tmp_path / "bundle")
    asleep = Sandbox.create(client=client)
    asleep.suspend()
    asleep.export(tmp_path / "night")
    server.egress.log.add(sandbox.id, name="a.example.com", port=443, method="GET", path="/", status=403, reason="name_not_allowed")
    more = {"A": server.egress.ask(sandbox.id), "POLICY": str(tmp_path / "policy.toml")}
    for name in ("stored", "unused"):
        client.put_secret(name, "x")
    client.put_grant("granted", {"secret": "stored", "where": {"host": "api.example.com"}, "slot": {"kind": "header"}})
    server.credentials.log.add(sandbox.id, kind="credential", grant="granted", secret="stored", name="api.example.com", port=443)
    (tmp_path / "variables.env").write_text("API_KEY=x\n")
    server.service(49999)(MockInterpreter())
    monkeypatch.setattr("os.read", lambda *_: b"")
    names = {
        "ENV": str(tmp_path / "variables.env"),
        "RECIPE": str(tmp_path / "recipe.toml"),
        "S": sandbox.id,
        "P": process.id,
        "W": webhook.id,
        "LOCAL": str(tmp_path / "local"),
        "OUT": str(tmp_path / "out"),
        "CP": sandbox.checkpoint().id,
        "BUNDLE": str(tmp_path / "bundle"),
        "SUSPENDED": asleep.id,
        "NIGHT": str(tmp_path / "night"),
        "S:/copied": f"{sandbox.id}:/copied",
        **more,
    }
    status = main(["--json", *words.split(), *(names.get(word, word) for word in ASKED[words].split())])
    captured = capfd.readouterr()
    assert (status, captured.err) == (0, "")
    lines = captured.out.splitlines()
    assert lines
    assert all(isinstance(json.loads(line), dict) for line in lines)
    if words not in ("logs", "events", "audit"):
        assert len(lines) == 1


@pytest.mark.parametrize("words", ["shell", "attach"])
def test_what_is_a_terminal_says_what_to_use_for_json(words: str, server: MockServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([words, "--json", "sb-" + "a" * 20, *(["pr-1"] if words == "attach" else [])]) == 125
    assert "--json` answers with" in json.loads(capfd.readouterr().err)["error"]["hint"]
    assert server.requests == []


def test_json_lines_of_logs_have_stream_offset_and_data(server: MockServer, capfd: pytest.CaptureFixture[str]) -> None:
    from space import Sandbox

    sandbox = Sandbox.create(client=server.client())
    server.program("both")(lambda _: Reply(pieces=[("stdout", b"out"), ("stderr", b"\xff")]))
    process = sandbox.start(["both"])
    process.wait()
    assert main(["logs", "--json", sandbox.id, process.id]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {"kind": "output", "stream": "stdout", "offset": 0, "data": "out"} in lines
    assert {"kind": "output", "stream": "stderr", "offset": 0, "data_base64": "/w=="} in lines


def test_logs_tell_a_gap_on_stderr_and_choose_stream_and_place(server: MockServer, capfd: pytest.CaptureFixture[str]) -> None:
    from space import Sandbox

    sandbox = Sandbox.create(client=server.client())
    server.program("both")(lambda _: Reply(pieces=[("stdout", b"0123456789"), ("stderr", b"err")]))
    process = sandbox.start(["both"], spool_bytes=6)
    process.wait()

    def logs(*options: str) -> tuple[str, str]:
        assert main(["logs", sandbox.id, process.id[:8], *options]) == 0
        return capfd.readouterr()

    assert logs() == ("456789", "err")
    out, err = logs("--since-offset", "1", "--stream", "stdout")
    assert out == "456789"
    assert "3 bytes of stdout from byte 1 on were dropped" in err
    assert logs("--tail", "2") == ("89", "rr")
    assert logs("--tail", "2", "-f", "--stream", "stderr") == ("", "rr")
    assert logs("--tail", "0") == ("", "")
    assert logs("--since-offset", "8", "--since-offset", "stderr=1") == ("89", "rr")
    assert main(["logs", sandbox.id, process.id, "--since-offset", "stdin=3"]) == 125


@pytest.mark.parametrize("command", ["logs", "wait"])
def test_a_server_that_stays_away_is_a_sentence_with_where_to_go_on(
    command: str, server: MockServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from space import Sandbox
    from space.model.errors import Unavailable

    monkeypatch.setattr("space.sdk._sync.process.sleep", lambda _: None)
    sandbox = Sandbox.create(client=server.client())
    process = sandbox.start(["cat"], stdin=True)
    process.write_stdin("12345")
    for _ in range(20):
        server.fail_next(Unavailable("the server is away"), path="/output")
    assert main([command, sandbox.id, process.id, *(["-f"] if command == "logs" else [])]) == 125
    told = capfd.readouterr().err
    assert told.startswith("space: the server is away\n")
    assert ("go on with --since-offset stdout=0 --since-offset stderr=0" in told) == (command == "logs")
    assert "output(" not in told
    process.kill()


def test_a_process_is_found_by_how_its_id_begins(server: MockServer, capfd: pytest.CaptureFixture[str]) -> None:
    from space import Sandbox

    sandbox = Sandbox.create(client=server.client())
    assert main(["show", sandbox.id, "pr-0"]) == 125
    assert "there is no process pr-0" in capfd.readouterr().err
    made = [sandbox.start(["true"]).id for _ in range(2)]
    assert main(["show", sandbox.id, made[0][3:10]]) == 0
    assert made[0] in capfd.readouterr().out
    assert main(["show", sandbox.id, "pr-"]) == 2
    made += [sandbox.start(["true"]).id for _ in range(31)]  # of 33, two begin alike: a letter is one of 32
    common = next(name[:4] for name in made if sum(other.startswith(name[:4]) for other in made) > 1)
    capfd.readouterr()
    assert main(["show", sandbox.id, common]) == 125
    assert f"processes begin with {common}" in capfd.readouterr().err


def test_start_ps_wait_kill_go_together(server: MockServer, capfd: pytest.CaptureFixture[str]) -> None:
    from space import Sandbox

    sandbox = Sandbox.create(client=server.client())
    seen: list[Process] = []

    @server.program("look")
    def look(process: Process) -> Reply:
        seen.append(process)
        return Reply(exit_code=9)

    def space(*words: str) -> tuple[int, str]:
        status = main(words)
        return status, capfd.readouterr().out

    status, out = space("start", sandbox.id, "-t", "-e", "TERM=vt100", "-w", "/tmp", "--", "look", "-t")
    assert status == 0
    assert space("wait", sandbox.id, out.strip()) == (9, "")
    assert (seen[0].argv, seen[0].env, seen[0].cwd) == (("look", "-t"), {"TERM": "vt100"}, "/tmp")
    assert seen[0].pty is not None
    status, out = space("start", sandbox.id, "-i", "cat")
    running = out.strip()
    assert space("ps", "-q", sandbox.id) == (0, f"{running}\n")
    assert len(space("ps", "-a", sandbox.id)[1].splitlines()) == 3
    assert space("kill", sandbox.id, "pr-ffffffffffffffff", running, "-s", "9", "--all")[0] == 125
    assert space("wait", sandbox.id, running)[0] == 137
    assert space("start", sandbox.id, "nope")[0] == 127


def test_update_changes_what_is_given_and_nothing_else(server: MockServer, capfd: pytest.CaptureFixture[str]) -> None:
    from space import Sandbox

    sandbox = Sandbox.create(client=server.client(), metadata={"a": "1", "b": "2"})
    words = ["update", "--json", sandbox.id, "--metadata", "c=3", "--unset", "a", "--idle", "90:delete", "--on-timeout", "pause"]
    assert main(words) == 0
    spec = json.loads(capfd.readouterr().out)["spec"]
    assert (spec["metadata"], spec["idle"]) == ({"b": "2", "c": "3"}, {"seconds": 90, "action": "delete"})
    assert (spec["on_timeout"], spec["ttl_seconds"]) == ("pause", 3600)
    assert main(["update", "--json", sandbox.id, "--no-idle"]) == 0
    assert json.loads(capfd.readouterr().out)["spec"]["idle"] is None
    assert main(["update", sandbox.id, "--idle", "5", "--no-idle"]) == 2
    assert main(["update", sandbox.id, "--idle", "soon"]) == 2


def test_a_file_on_a_terminal_cannot_drive_it(
    server: MockServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from space import Sandbox

    files = Sandbox.create(client=server.client()).files
    sandbox = next(iter(server.sandboxes))
    files.write("/x", b"a\x1b]0;evil\x07\xc3\xa9\tb\n")
    assert main(["files", "cat", sandbox, "/x"]) == 0
    assert capfd.readouterr().out == "a\x1b]0;evil\x07é\tb\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["files", "cat", sandbox, "/x"]) == 0
    assert capfd.readouterr().out == "a\ufffd]0;evil\ufffdé\tb\n"


def test_names_of_a_guest_cannot_drive_the_terminal(server: MockServer, capfd: pytest.CaptureFixture[str]) -> None:
    from space import Sandbox

    sandbox = Sandbox.create(client=server.client())
    sandbox.files.mkdir("/d", parents=True)
    sandbox.files.write("/d/\x1b[2J\n\udcff", b"")
    sandbox.start(["echo", "\x1b[2J"])
    for words in (["files", "ls", sandbox.id, "/d"], ["files", "ls", "-l", sandbox.id, "/d"], ["ps", "-a", sandbox.id]):
        assert main(words) == 0
        out = capfd.readouterr().out
        assert "\x1b" not in out
        assert "[2J" in out
    assert main(["files", "ls", "--json", sandbox.id, "/d"]) == 0
    assert json.loads(capfd.readouterr().out)["files"][0]["name"] == "\x1b[2J\n\udcff"


def test_cp_says_how_many_sockets_pipes_and_devices_it_left_out(
    server: MockServer, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import os
    import socket

    from space import Sandbox

    sandbox = Sandbox.create(client=server.client())
    tree = tmp_path / "tree"
    (tree / "d").mkdir(parents=True)
    (tree / "d/file").write_text("f")
    os.mkfifo(tree / "pipe")
    os.mkfifo(tree / "skipped.pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(tree / "d/socket"))
        assert main(["cp", "--exclude", "skipped*", str(tree), f"{sandbox.id}:/srv/t"]) == 0
    assert capfd.readouterr().err == "space: 2 sockets, pipes or devices were left out\n"
    assert server.sandboxes[sandbox.id].files == {"/srv/t/d/file": b"f"}


def test_quota_set_keeps_what_is_not_given(server: MockServer, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["quota", "set", "acme", "--sandboxes", "5", "--rate", "2.5"]) == 0
    assert main(["quota", "set", "acme", "--memory", "4096", "--sandboxes", "default"]) == 0
    capfd.readouterr()
    assert main(["quota", "show", "acme", "--json"]) == 0
    quota = json.loads(capfd.readouterr().out)["quota"]
    assert (quota["sandboxes"], quota["memory_mib"], quota["requests_per_second"]) == (None, 4096, 2.5)
    assert main(["quota", "set", "acme"]) == 2
    assert main(["quota", "set", "acme", "--cpus", "many"]) == 125


def test_exit_codes_of_the_help_are_those_of_the_page() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    table = page[page.index("## Exit status") :]
    assert [status for status, _ in EXIT_CODES if f"| {status} |" not in table] == []


def test_events_follow_until_the_reader_leaves(server: MockServer, capfd: pytest.CaptureFixture[str]) -> None:
    from space import Sandbox

    client = server.client()
    first = Sandbox.create(client=client)
    Sandbox.create(client=client).delete()
    assert main(["events", "--sandbox", first.id]) == 0
    assert first.id in capfd.readouterr().out
    assert main(["events", "--kind", "deleted", "--json"]) == 0
    assert [json.loads(line)["kind"] for line in capfd.readouterr().out.splitlines()] == ["deleted"]
    assert main(["events", "--kind", "nonsense"]) == 125


def test_completing_ids_gives_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from space.cli.completion import _within

    began = time.monotonic()
    assert _within(0.2, lambda: threading.Event().wait() and []) == []  # type: ignore[arg-type, return-value]
    assert time.monotonic() - began < 5
