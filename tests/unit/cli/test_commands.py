"""The command line against the mock server: what is printed, where, and with which exit status."""

from __future__ import annotations

import base64
import json
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from space.cli.arguments import arranged
from space.cli.context import span
from space.cli.copy import Remote, place
from space.cli.main import main
from space.model.errors import Internal, NoCapacity
from space.sdk.testing import MockServer, Process, Reply


@dataclass
class Done:
    status: int
    out: str
    err: str

    @property
    def answer(self) -> Any:
        """The one JSON object on stdout."""
        assert self.out.count("\n") == 1
        return json.loads(self.out)


Space = Callable[..., Done]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockServer]:
    server = MockServer()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)}
    with server.listen() as url:
        monkeypatch.setenv("SPACE_API_URL", url)
        monkeypatch.setenv("SPACE_API_KEY", server.key)
        yield server
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def space(server: MockServer, capfd: pytest.CaptureFixture[str]) -> Space:
    def call(*arguments: str) -> Done:
        status = main(arguments)
        captured = capfd.readouterr()
        return Done(status, captured.out, captured.err)

    return call


def test_run_prints_what_the_command_prints_and_leaves_nothing(server: MockServer, space: Space) -> None:
    done = space("run", "--", "echo", "42")
    assert (done.status, done.out, done.err) == (0, "42\n", "")
    assert server.sandboxes == {}


@pytest.mark.parametrize(
    ("reply", "status"),
    [
        (Reply(exit_code=7), 7),
        (Reply(exit_code=None, signal=9), 137),
        (Reply(exit_code=None, signal=9, timed_out=True), 124),
        (Reply(exit_code=255), 255),
    ],
)
def test_run_ends_with_the_commands_status(server: MockServer, space: Space, reply: Reply, status: int) -> None:
    server.program("end")(lambda _: reply)
    assert space("run", "--", "end").status == status
    assert space("--json", "run", "--", "end").answer["signal"] == reply.signal
    assert server.sandboxes == {}


def test_run_hands_everything_on(server: MockServer, space: Space) -> None:
    seen: list[Process] = []
    specs: list[dict[str, Any]] = []

    @server.program("look")
    def look(process: Process) -> Reply:
        seen.append(process)
        specs.extend(sandbox.spec for sandbox in server.sandboxes.values())
        return Reply()

    options = [
        "--cpus",
        "2",
        "--memory",
        "1024",
        "--disk",
        "4096",
        "-e",
        "A=1",
        "--env",
        "B=x=y",
        "--timeout",
        "4000",
        "-w",
        "/tmp",
        "-u",
        "root",
    ]
    assert space("run", *options, "--", "look", "--json", "--cpus", "9", "--").status == 0
    assert seen[0].argv == ("look", "--json", "--cpus", "9", "--")
    assert (seen[0].env, seen[0].cwd, seen[0].user, seen[0].timeout_ms) == ({"A": "1", "B": "x=y"}, "/tmp", "root", 4_000_000)
    assert (specs[0]["cpus"], specs[0]["memory_mib"], specs[0]["disk_mib"], specs[0]["ttl_seconds"]) == (2, 1024, 4096, 4060)


def test_run_takes_a_command_without_dashes_too(server: MockServer, space: Space) -> None:
    assert space("run", "echo", "--json", "-q").out == "--json -q\n"


def test_stdout_and_stderr_stay_apart_and_exact(server: MockServer, space: Space) -> None:
    server.program("both")(lambda _: Reply(pieces=[("stdout", b"out\r\n"), ("stderr", b"err"), ("stdout", "é\n".encode())]))
    done = space("run", "--", "both")
    assert (done.out, done.err) == ("out\r\né\n", "err")


def test_json_of_run_holds_output_as_text_or_base64(server: MockServer, space: Space) -> None:
    server.program("both")(lambda _: Reply(stdout=b"\xff\x00", stderr=b"text", oom_killed=True))
    answer = space("run", "--json", "--", "both").answer
    assert base64.b64decode(answer["stdout_base64"]) == b"\xff\x00"
    assert (answer["stderr"], answer["oom_killed"], answer["exit_code"], answer["wall_ms"]) == ("text", True, 0, 1)
    assert "stdout" not in answer


def test_a_program_that_is_not_there_is_127(server: MockServer, space: Space) -> None:
    done = space("run", "--", "nope")
    assert (done.status, done.out) == (127, "")
    assert "space: there is no program 'nope' in the sandbox\n" in done.err
    assert server.sandboxes == {}


def test_our_own_failures_are_125_with_sentence_and_remedy(server: MockServer, space: Space) -> None:
    server.fail_next(NoCapacity("no memory is left for 512 MiB", hint="delete a sandbox"), path="/v1/sandboxes")
    done = space("run", "--", "true")
    assert (done.status, done.out) == (125, "")
    assert re.fullmatch(r"space: no memory is left for 512 MiB\n  delete a sandbox\n  request req-\w+\n", done.err)
    server.fail_next(NoCapacity("no memory", hint="delete a sandbox"), path="/v1/sandboxes")
    done = space("--json", "run", "--", "true")
    assert done.status == 125
    error = json.loads(done.err)["error"]
    assert (error["code"], error["message"], error["hint"]) == ("no_capacity", "no memory", "delete a sandbox")
    assert error["request_id"].startswith("req-")


def test_an_internal_error_names_its_request_for_the_log(server: MockServer, space: Space) -> None:
    server.fail_next(Internal("the server failed"), path="/v1/sandboxes")
    assert "request req-" in space("list").err


def test_messages_of_a_guest_cannot_drive_the_terminal(server: MockServer, space: Space) -> None:
    server.fail_next(Internal("bad \x1b[2J\x07 name"), path="/v1/sandboxes")
    assert "\x1b" not in space("list").err


def test_a_cut_stream_is_no_success(server: MockServer, space: Space) -> None:
    server.program("cut")(lambda _: Reply(stdout=b"half", cut=True))
    done = space("run", "--", "cut")
    assert (done.status, done.out) == (125, "half")
    assert server.sandboxes == {}


@pytest.mark.parametrize(
    "arguments",
    [["run"], ["run", "--"], ["run", "--cpus", "many", "--", "true"], ["nonsense"], ["delete"], ["cp", "a", "b"], ["--nonsense", "list"]],
)
def test_wrong_usage_is_2_and_reaches_no_server(server: MockServer, space: Space, arguments: list[str]) -> None:
    done = space(*arguments)
    assert (done.status, done.out) == (2, "")
    assert done.err
    assert server.requests == []


def test_a_bad_environment_option_is_told(space: Space) -> None:
    done = space("run", "-e", "A", "--", "true")
    assert done.status == 2
    assert "--env takes KEY=VALUE, not 'A'" in done.err


def test_a_server_that_is_not_there_is_told_with_the_remedy(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_API_URL", "http://127.0.0.1:9")
    done = space("run", "--", "true")
    assert done.status == 125
    assert "cannot reach http://127.0.0.1:9" in done.err
    assert "space serve" in done.err


def test_keep_leaves_the_sandbox_and_tells_its_id(server: MockServer, space: Space) -> None:
    done = space("run", "--keep", "--", "true")
    assert list(server.sandboxes) == [done.err.strip()]


def test_create_list_exec_delete(server: MockServer, space: Space) -> None:
    made = space("create", "--memory", "256", "--metadata", "who=me", "-q").out.strip()
    assert list(server.sandboxes) == [made]
    assert space("create", "--json").answer["phase"] == "running"
    assert space("exec", made, "--", "echo", "hi").out == "hi\n"
    assert space("exec", made, "--", "sh", "-c", "exit 9").status == 9
    assert len(space("list", "--json").answer["sandboxes"]) == 2
    table = space("list").out.splitlines()
    assert table[0].split() == ["ID", "PHASE", "TEMPLATE", "CPUS", "MEMORY", "AGE", "ENDS", "IN", "METADATA"]
    assert any(line.startswith(made) and "256 MiB" in line and "who=me" in line for line in table)
    assert sorted(space("list", "-q").out.split()) == sorted(server.sandboxes)
    other = next(found for found in server.sandboxes if found != made)
    assert space("delete", made, other).status == 0
    assert server.sandboxes == {}


def test_deleting_goes_on_after_one_that_is_not_there(server: MockServer, space: Space) -> None:
    made = space("create", "-q").out.strip()
    done = space("delete", "--json", "sb-aaaaaaaaaaaaaaaaaaaa", made)
    assert done.status == 125
    assert done.answer == {"deleted": [made]}
    assert json.loads(done.err)["error"]["code"] == "not_found"


def test_exec_in_a_sandbox_that_is_not_there_is_our_failure_and_not_the_programs(space: Space) -> None:
    assert space("exec", "sb-aaaaaaaaaaaaaaaaaaaa", "--", "true").status == 125


def test_cp_goes_both_ways(server: MockServer, space: Space, tmp_path: Path) -> None:
    made = space("create", "-q").out.strip()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("hello")
    (tmp_path / "in/skip.log").write_text("no")
    assert space("cp", "--json", "--exclude", "*.log", str(tmp_path / "in"), f"{made}:/srv/x").answer["entries"] == 2
    assert server.sandboxes[made].files == {"/srv/x/a.txt": b"hello"}
    assert space("cp", f"{made}:/srv/x", str(tmp_path / "out")).status == 0
    assert (tmp_path / "out/a.txt").read_text() == "hello"
    assert space("cp", f"{made}:/srv/x", str(tmp_path / "out") + "/").status == 0
    assert (tmp_path / "out/x/a.txt").read_text() == "hello"
    done = space("cp", f"{made}:/srv/none", str(tmp_path / "no"))
    assert (done.status, done.err.splitlines()[0]) == (125, "space: there is no /srv/none in the sandbox")
    assert not (tmp_path / "no").exists()


def test_cp_refuses_a_tree_with_a_link_out_unless_links_are_skipped(server: MockServer, space: Space, tmp_path: Path) -> None:
    made = space("create", "-q").out.strip()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/python").symlink_to("/usr/bin/python3")
    (tmp_path / "in/f").write_text("f")
    space("cp", str(tmp_path / "in"), f"{made}:venv")
    done = space("cp", f"{made}:venv", str(tmp_path / "out"))
    assert done.status == 125
    assert "symbolic link out of the tree" in done.err
    assert not (tmp_path / "out").exists()
    assert space("cp", "--json", "--skip-links", f"{made}:venv", str(tmp_path / "out")).answer["skipped"] == ["python"]


def test_keys(server: MockServer, space: Space) -> None:
    assert space("key", "create", "--tenant", "acme", "--name", "ci").out == "secret-key-1\n"
    assert space("key", "create", "--json", "--tenant", "acme").answer["key"] == "secret-key-2"
    assert "secret" not in space("key", "list").out
    assert [key["id"] for key in space("key", "list", "--json").answer["keys"]] == ["key-1", "key-2"]
    assert space("key", "revoke", "key-1").status == 0
    assert space("key", "revoke", "none").status == 125


def test_version(space: Space) -> None:
    assert space("version").out == space("--version").out == "0.1.0\n"
    assert space("version", "--json").answer["version"] == "0.1.0"


def test_help_names_every_command(space: Space) -> None:
    text = space("--help").out
    names = ["run", "exec", "create", "list", "delete", "cp", "key", "serve", "setup", "doctor", "clean", "bench", "version"]
    assert [name for name in names if f"\n  {name} " not in text] == []


def test_doctor_ends_with_1_when_something_is_missing(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    from space.setup.checkup import Check

    slow = Check("time", ok=True, detail="not synchronised", remedy="run an NTP client", level="warning")
    found = [slow, Check("tun", ok=False, detail="no /dev/net/tun", remedy="modprobe tun", looked_at="/dev/net/tun")]
    asked: list[str | None] = []

    def checks(only: str | None = None) -> list[Check]:
        asked.append(only)
        return found

    monkeypatch.setattr("space.setup.doctor.checks", checks)
    done = space("doctor")
    assert done.status == 1
    assert "missing  tun" in done.out
    assert "warning  time" in done.out
    assert "tun: modprobe tun" in done.err
    assert "time: run an NTP client" in done.err
    assert space("doctor", "--json").answer["checks"][1] == {
        "name": "tun",
        "ok": False,
        "detail": "no /dev/net/tun",
        "remedy": "modprobe tun",
        "level": "failure",
        "looked_at": "/dev/net/tun",
        "chosen": "",
    }
    del found[1]
    assert space("doctor").status == 0
    monkeypatch.setattr("space.config.instance.load", lambda name: name if name == "lab" else None)
    assert space("doctor", "--strict", "--instance", "lab").status == 1
    assert asked[-1] == "lab"


def test_serve_hands_its_options_to_the_server(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def serve(arguments: list[str]) -> int:
        calls.append(arguments)
        return 3

    monkeypatch.setattr("space.serve.main.main", serve)
    assert space("serve", "--instance", "lab", "--set", "port=0", "--set", "host=::1").status == 3
    assert space("serve", "--json").status == 3
    assert calls == [["--instance", "lab", "--set", "port=0", "--set", "host=::1"], ["--json"]]


def test_json_of_set_up_and_clean_is_one_object_and_their_progress_goes_to_stderr(
    space: Space, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from space.setup.checkup import Check

    def setup(arguments: list[str]) -> int:
        print("storage with reflinks")
        return 1

    monkeypatch.setattr("space.setup.__main__.main", setup)
    missing = Check("tun", ok=False, detail="no /dev/net/tun", remedy="modprobe tun")
    monkeypatch.setattr("space.setup.doctor.checks", lambda only=None: [Check("kernel", ok=True, detail="Linux"), missing])
    done = space("setup", "--check", "--json")
    assert (done.status, done.err) == (1, "storage with reflinks\n")
    assert done.answer == {"ready": False, "missing": [asdict(missing)]}

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("space.setup.clean.clean", lambda checkout: [f"removed {(checkout / 'pyproject.toml').is_file()}"])
    assert space("clean", "--json").answer == {"instance": None, "removed": ["removed True"]}
    monkeypatch.setattr("space.config.instance.load", lambda name: name)
    monkeypatch.setattr("space.setup.clean.stop", lambda instance: None)
    monkeypatch.setattr("space.serve.remove.remove", lambda instance: None)
    assert space("clean", "--json", "--instance", "lab").answer == {"instance": "lab", "removed": ["instance lab"]}


@pytest.mark.parametrize(
    ("variable", "arguments", "removed"),
    [
        (None, [], "everything"),
        ("lab", [], "lab"),
        ("lab", ["--instance", "other"], "other"),
        ("lab", ["--all"], "everything"),
        ("", ["--all"], "everything"),
        ("", [], None),
        (None, ["--instance", ""], None),
        ("lab", ["--instance", ""], None),
        (None, ["--instance", "../x"], None),
        (None, ["--instance", "lab", "--all"], None),
    ],
)
def test_clean_removes_everything_only_where_nothing_names_an_instance(
    space: Space, monkeypatch: pytest.MonkeyPatch, variable: str | None, arguments: list[str], removed: str | None
) -> None:
    gone: list[str] = []
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("space.setup.clean.main", lambda: gone.append("everything"))
    monkeypatch.setattr("space.setup.clean.clean", lambda checkout: gone.append("everything"))
    monkeypatch.setattr("space.config.instance.load", lambda name: name)
    monkeypatch.setattr("space.setup.systemd.forget", lambda name: None)
    monkeypatch.setattr("space.setup.clean.stop", lambda instance: None)
    monkeypatch.setattr("space.serve.remove.remove", gone.append)
    if variable is not None:
        monkeypatch.setenv("SPACE_INSTANCE", variable)
    for form in ([], ["--json"]):
        gone.clear()
        assert space("clean", *arguments, *form).status == (2 if removed is None else 0)
        assert gone == ([] if removed is None else [removed])


@pytest.mark.parametrize("command", [["doctor"], ["config", "server"]])
def test_an_instance_that_is_not_there_is_told(space: Space, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: list[str]) -> None:
    monkeypatch.setattr("space.config.instance.load", lambda name: None)
    monkeypatch.setattr("space.config.instance.SETTINGS_ROOT", tmp_path)
    monkeypatch.setattr("space.setup.doctor.checks", lambda only=None: [])
    done = space(*command, "--instance", "nope")
    assert (done.status, done.out, done.err) == (125, "", "space: there is no instance 'nope' on this host\n")
    assert space(*command, "--instance", "default").status == 0
    (tmp_path / "nope.toml").write_text("")
    assert space(*command, "--instance", "nope").status == 0


VALUES = {"--timeout", "--env", "-e", "-u"}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("list --json", "--json list"),
        ("key list --url http://a --json", "--url http://a --json key list"),
        ("run -q --json -- x --json", "--json run -q -- x --json"),
        ("run x --json", "run -- x --json"),
        ("--json run x --json", "--json run -- x --json"),
        ("exec sb --timeout 5 -- id --json", "exec sb --timeout 5 -- id --json"),
        ("exec sb --timeout 5 id -u root", "exec sb --timeout 5 -- id -u root"),
        ("exec --timeout=5 sb -u root --json -- id", "--json exec --timeout=5 sb -u root -- id"),
        ("exec sb grep -- -x f", "exec sb -- grep -- -x f"),
        ("exec -eA=1 sb -qe A=1 env -i", "exec -eA=1 sb -qe A=1 -- env -i"),
        ("exec sb --url http://a", "--url http://a exec sb"),
        ("shell sb top -d 1", "shell sb -- top -d 1"),
        ("start", "start"),
        ("bench exec --json", "--json bench exec"),
        ("--instance run list --json", "--instance run --json list"),
        ("serve --instance", "--instance serve"),
        ("serve --instance=a", "--instance=a serve"),
    ],
)
def test_global_options_may_stand_anywhere_before_the_command(given: str, wanted: str) -> None:
    assert arranged(given.split(), lambda _: VALUES) == wanted.split()


def test_places_of_cp() -> None:
    name = "sb-" + "a" * 20
    assert place(f"{name}:/a:b") == Remote(name, "/a:b")
    assert place(f"{name}:") == Remote(name, ".")
    assert place(f"./{name}:x") == f"./{name}:x"
    assert place("host:x") == "host:x"


def test_spans() -> None:
    assert [span(n) for n in (-1, 0, 59, 60, 3599, 3600, 90_000)] == ["0s", "0s", "59s", "1m00s", "59m59s", "1h00m", "25h00m"]


@pytest.mark.parametrize(
    "line",
    [
        "list --instance ../x",
        "list --url foo",
        "list --url http://[::1",
        "list --url http://a:b",
        "create --metadata x",
        "create -e X",
        "create --idle banana",
        "run --timeout 0 -- true",
        "exec SB --timeout nan -- true",
        "forward SB x",
        "files chmod SB 999 f",
        "attach SB pr-x --detach-keys nonsense",
        "config set foo bar",
        "update SB",
        "list --nonsense",
    ],
)
def test_wrong_usage_is_2_and_asks_the_server_nothing(space: Space, server: MockServer, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setattr("space.sdk.Client.call", lambda *_, **__: pytest.fail("the server was asked"))
    words, program = line.partition(" -- ")[0].split(), line.partition(" -- ")[2].split()
    words = ["sb-aaaaaaaaaaaaaaaaaaaa" if word == "SB" else word for word in words]
    rest = ["--", *program] if program else []
    plain, as_json = space(*words, *rest), space("--json", *words, *rest)
    assert (plain.status, plain.out, as_json.status, as_json.out) == (2, "", 125 if words[0] == "attach" else 2, "")
    assert "Traceback" not in plain.err
    if words[0] != "attach":  # there is no JSON of a terminal, and it says that first
        assert json.loads(as_json.err)["error"]["code"] == "invalid_argument"


@pytest.mark.parametrize("name", ["", "pr-"])
def test_an_empty_process_name_is_nobodys(space: Space, name: str) -> None:
    sandbox = space("create", "-q").out.strip()
    for command in (["kill"], ["logs"], ["wait"], ["show"]):
        assert space(*command, sandbox, name).status in (2, 125)
    done = space("wait", sandbox, name)
    assert (done.status, "the process has no name" in done.err) == (2, True)
