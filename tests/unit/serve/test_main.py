"""One whole serve over stand-in services, as a process of its own: killed, followed by another, told to stop."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from space.config.instance import Instance
from space.config.settings import Settings
from space.host import namespaces
from space.serve import layout, records
from space.serve.main import Request, address, main, parse, run
from space.serve.service import Command, log_tail

Commands = Callable[..., Command]
Ask = Callable[[Path | tuple[str, int]], dict[str, object]]


class Serve:
    """A forked serve, and the socket by which it knows us."""

    def __init__(self, instance: Instance, settings: Settings, command: Command) -> None:
        self.ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                self.ours.close()
                os.set_blocking(2, True)
                lock = layout.lock(instance)
                request = Request(instance.name, {}, ephemeral=False, dev=True, parent_fd=theirs.detach())
                run(instance, settings, request, command)
                os.close(lock)
                status = 0
            except BaseException:
                traceback.print_exc(file=sys.stderr)
            finally:
                os._exit(status)
        theirs.close()
        self.pidfd = os.pidfd_open(self.pid)

    def endpoint(self) -> dict[str, object]:
        ready, _, _ = select.select([self.ours], [], [], 30)
        assert ready, "serve did not become ready within 30 s"
        return dict(json.loads(self.ours.recv(65536)))

    def wait(self) -> int:
        ready, _, _ = select.select([self.pidfd], [], [], 30)
        assert ready, "serve did not end within 30 s"
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self.ours.close()
        os.close(self.pidfd)


@pytest.fixture
def serve(instance: Instance, command: Commands) -> Iterator[Callable[..., Serve]]:
    made: list[Serve] = []

    def start(settings: Settings | None = None) -> Serve:
        made.append(Serve(instance, settings or Settings(port=0), command()))
        return made[-1]

    yield start
    for each in made:
        each.close()
    records.kill_all(instance.services)


def kill(pid: int) -> None:
    """SIGKILL, and wait until it is dead: a dying process may still accept."""
    held = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([held], [], [], 10)[0]
    os.close(held)


def pids(instance: Instance) -> dict[str, int]:
    return {record.role: record.pid for record in records.load(instance.services)}


def port_of(endpoint: dict[str, object]) -> int:
    return int(str(endpoint["url"]).rsplit(":", 1)[1])


def test_sigterm_stops_the_services_and_takes_the_endpoint_away(instance: Instance, serve: Callable[..., Serve], ask: Ask) -> None:
    one = serve()
    endpoint = one.endpoint()
    assert json.loads(instance.endpoint.read_text()) == endpoint
    assert endpoint["pid"] == one.pid
    assert ask(("127.0.0.1", port_of(endpoint)))["pid"] == pids(instance)["control"]
    os.kill(one.pid, signal.SIGTERM)
    assert one.wait() == 0
    assert not instance.endpoint.exists()


def test_a_killed_serve_leaves_the_services_and_the_next_one_adopts_them(instance: Instance, serve: Callable[..., Serve], ask: Ask) -> None:
    one = serve()
    endpoint = one.endpoint()
    before = pids(instance)
    os.kill(one.pid, signal.SIGKILL)
    assert one.wait() == -signal.SIGKILL
    assert ask(("127.0.0.1", port_of(endpoint)))["pid"] == before["control"]  # it serves on, without a supervisor

    two = serve()
    again = two.endpoint()
    assert again["url"] == endpoint["url"]
    assert pids(instance) == before
    kill(before["node"])  # not its child, and watched all the same
    assert ask(instance.node_socket)["pid"] not in (before["node"], None)
    assert ask(instance.rootd_socket)["pid"] == before["rootd"]
    os.kill(two.pid, signal.SIGTERM)
    assert two.wait() == 0


def test_a_service_that_is_not_recorded_dies_with_its_serve_before_it_does_anything(
    instance: Instance, command: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lost = tmp_path / "lost"

    keep = records.save

    def save(path: Path, running: Iterable[records.Record]) -> None:
        held = list(running)
        keep(path, [record for record in held if record.role != "node"])
        for record in held:
            if record.role == "node":
                lost.write_text(f"{record.pid} {record.started}")
                os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(records, "save", save)
    one = Serve(instance, Settings(port=0), command({"node": "dies at once"}))  # and says so in its log
    assert one.wait() == -signal.SIGKILL
    one.close()
    pid, started = map(int, lost.read_text().split())
    unknown = namespaces.open_process(pid, started)
    if unknown is not None:
        assert namespaces.wait_ended(unknown, 10)
        os.close(unknown)
    assert log_tail(instance.log / "node.log") == ""
    records.kill_all(instance.services)


def test_a_service_that_died_while_nobody_watched_is_started_on_a_new_listener(
    instance: Instance, serve: Callable[..., Serve], ask: Ask
) -> None:
    one = serve()
    one.endpoint()
    before = pids(instance)
    os.kill(one.pid, signal.SIGKILL)
    one.wait()
    kill(before["node"])
    two = serve()
    two.endpoint()
    after = pids(instance)
    assert ask(instance.node_socket)["pid"] == after["node"] != before["node"]
    assert (after["rootd"], after["control"]) == (before["rootd"], before["control"])


def test_other_settings_replace_the_services_instead_of_adopting_them(instance: Instance, serve: Callable[..., Serve]) -> None:
    one = serve()
    one.endpoint()
    before = pids(instance)
    os.kill(one.pid, signal.SIGKILL)
    one.wait()
    two = serve(Settings(port=0, max_sandboxes=7))
    two.endpoint()
    assert not set(before.values()) & set(pids(instance).values())


def test_the_owners_death_ends_it(instance: Instance, serve: Callable[..., Serve]) -> None:
    one = serve()
    one.endpoint()
    one.ours.shutdown(socket.SHUT_RDWR)
    assert one.wait() == 0


@pytest.mark.parametrize("on_stop", ["keep", "delete"])
def test_sandboxes_outlive_a_serve_that_is_told_to_stop_unless_it_is_set_to_end_them(
    instance: Instance, serve: Callable[..., Serve], capfd: pytest.CaptureFixture[str], on_stop: str
) -> None:
    one = serve(Settings(port=0, on_stop=on_stop))
    one.endpoint()
    (instance.sandboxes / "sb-1").mkdir()  # control's stand-in ends none: that is left to serve
    os.kill(one.pid, signal.SIGTERM)
    assert one.wait() == 0
    said = capfd.readouterr().err
    asked = "told to end every sandbox" in log_tail(instance.log / "control.log")
    if on_stop == "keep":
        assert not asked
        assert (instance.sandboxes / "sb-1").is_dir()
        assert "1 sandbox left running for the next serve" in said
    else:
        assert asked
        assert not (instance.sandboxes / "sb-1").exists()
        assert "1 sandboxes are swept" in said
        assert "did not end the sandboxes" not in said
    assert instance.control_data.is_dir()


def test_a_serve_that_dies_ends_no_sandbox(instance: Instance, serve: Callable[..., Serve]) -> None:
    one = serve(Settings(port=0, on_stop="delete"))
    one.endpoint()
    (instance.sandboxes / "sb-1").mkdir()
    os.kill(one.pid, signal.SIGKILL)
    one.wait()
    assert (instance.sandboxes / "sb-1").is_dir()


def test_a_second_serve_of_the_instance_gives_up(serve: Callable[..., Serve], capfd: pytest.CaptureFixture[str]) -> None:
    one = serve()
    one.endpoint()
    assert serve().wait() == 1
    assert f"is served already, by pid {one.pid}" in capfd.readouterr().err


def test_control_gets_a_certificate_and_key_that_its_uid_cannot_read(
    instance: Instance, serve: Callable[..., Serve], ask: Ask, tmp_path: Path
) -> None:
    (tmp_path / "cert.pem").write_text("certificate")
    key = tmp_path / "key.pem"
    key.write_text("key")
    key.chmod(0o600)
    one = serve(Settings(port=0, tls_certificate=str(tmp_path / "cert.pem"), tls_key=str(key)))
    endpoint = one.endpoint()
    assert str(endpoint["url"]).startswith("https://")
    facts = ask(("127.0.0.1", port_of(endpoint)))
    assert facts["tls"] == "certificate\nkey"
    assert facts["uids"] == [instance.control_uid] * 3
    assert "tls" not in ask(instance.node_socket)


@pytest.mark.parametrize("missing", ["tls_certificate", "tls_key"])
def test_a_certificate_or_key_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr("space.serve.main._ensure_storage", lambda: pytest.fail("something was started"))
    sets = []
    for name in ("tls_certificate", "tls_key"):
        path = tmp_path / name
        if name != missing:
            path.write_text("PEM")
        sets += ["--set", f"{name}={path}"]
    assert main(["--dev", *sets]) == 1
    lines = capfd.readouterr().err.splitlines()
    assert lines == [
        f"space serve: cannot read {missing} {tmp_path / missing}: No such file or directory (serve reads it as root; PEM is wanted)"
    ]


def test_the_address_is_one_that_this_machine_can_reach() -> None:
    assert address("127.0.0.1", 7070, tls=False) == "http://127.0.0.1:7070"
    assert address("0.0.0.0", 7070, tls=True) == "https://127.0.0.1:7070"
    assert address("::", 1, tls=True) == "https://[::1]:1"
    assert address("2001:db8::1", 1, tls=True) == "https://[2001:db8::1]:1"


def test_the_command_line() -> None:
    assert parse([]) == Request("default", {}, ephemeral=False, dev=False, parent_fd=None)
    assert parse(["--instance", "a", "--set", "port=0", "--set", "tls_key=/a=b"]) == Request(
        "a", {"port": "0", "tls_key": "/a=b"}, ephemeral=False, dev=False, parent_fd=None
    )
    assert parse(["--json"]).json
    with pytest.raises(SystemExit):
        parse(["--set", "port"])
