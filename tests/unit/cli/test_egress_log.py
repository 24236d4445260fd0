"""What the gateway decided, on the command line: lines, JSON, a table, a draft that holds; and its records, verified and exported."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from space.audit.chain import Writer, head_line, statement
from space.audit.files import segment_name
from space.cli import audit as audit_command
from space.cli.main import main
from space.core.policy.loader import load
from space.sdk import Sandbox
from space.sdk.testing import MockServer

Space = Callable[..., tuple[int, str, str]]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockServer]:
    server = MockServer()
    with server.listen() as url:
        monkeypatch.setenv("SPACE_API_URL", url)
        monkeypatch.setenv("SPACE_API_KEY", server.key)
        yield server


@pytest.fixture
def space(capfd: pytest.CaptureFixture[str]) -> Space:
    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return call


def sandbox_of(server: MockServer) -> str:
    return Sandbox.create(client=server.client()).id


def test_a_log_is_a_line_for_each_decision(server: MockServer, space: Space) -> None:
    one, other = sandbox_of(server), sandbox_of(server)
    server.egress.log.add(one, name="a.example.com", port=443, method="GET", path="/x", status=200, rule="pip/1")
    server.egress.log.add(other, kind="name", name="\x1b[31mevil", reason="name_not_allowed")
    server.egress.log.add(one, kind="repeated", of="name", reason="name_not_allowed", name="b.example.com", count=70)
    status, out, _ = space("egress", "log", one)
    first, second = out.splitlines()
    assert status == 0
    assert first.endswith(f"{one}  allowed  request  GET a.example.com:443/x 200  (pip/1)")
    assert second.endswith(f"{one}  name_not_allowed  repeated  70 times name b.example.com")
    status, out, _ = space("egress", "log", "--all", "--denied")
    assert len(out.splitlines()) == 2
    assert "\x1b" not in out
    status, out, _ = space("--json", "egress", "log", one, "--since", "1h")
    assert [json.loads(line)["kind"] for line in out.splitlines()] == ["request", "repeated"]
    assert space("egress", "log", one, "--since", "2099-01-01")[1] == ""
    assert space("egress", "log")[0] == 2
    assert space("egress", "log", one, "--all")[0] == 2
    assert space("egress", "log", one, "--since", "soon")[0] == 2


def test_a_gap_is_told(server: MockServer, space: Space) -> None:
    one = sandbox_of(server)
    for _ in range(3):
        server.egress.log.add(one, name="a.example.com")
    server.egress.log.forget(2)
    _, out, err = space("egress", "log", one, "--after", "0.0")
    assert len(out.splitlines()) == 1
    assert "up to 2 are kept no longer" in err


def test_watch_tells_what_comes_a_line_each_off_a_terminal(server: MockServer) -> None:
    one = sandbox_of(server)
    process = subprocess.Popen([sys.executable, "-m", "space.cli.main", "egress", "watch", one], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        adding = True

        def add() -> None:
            while adding:
                server.egress.log.add(one, name="a.example.com", method="GET", path="/", status=200)
                time.sleep(0.05)

        thread = threading.Thread(target=add)
        thread.start()
        lines = [process.stdout.readline() for _ in range(3)]
        adding = False
        thread.join()
        assert all("allowed  request  GET a.example.com/ 200" in line for line in lines)
    finally:
        process.terminate()
        process.wait()


def test_counters_are_figures(server: MockServer, space: Space) -> None:
    status, out, _ = space("egress", "counters", sandbox_of(server))
    assert status == 0
    assert "denied" in out


def test_a_draft_is_what_was_refused_or_only_recorded_and_loads(server: MockServer, space: Space, tmp_path: Path) -> None:
    one = sandbox_of(server)
    add = server.egress.log.add
    assert space("egress", "draft", one)[0] == 1
    add(one, kind="name", name="looked.example.com", reason="name_not_allowed")
    add(one, name="index.example.com", port=443, method="GET", path="/simple/x/", recorded=True)
    add(one, name="index.example.com", port=443, method="POST", path="/upload", recorded=True)
    add(one, name="allowed.example.com", port=443, method="GET", path="/", rule="r")
    add(one, name="wrong.example.com", port=443, method="GET", path="/", reason="sni_mismatch")
    add(one, kind="connection", name="db.example.com", port=5432, scheme="tcp", recorded=True)
    status, out, _ = space("egress", "draft", one)
    assert status == 0
    policy = tomllib.loads(out)
    load(policy)
    assert {rule.get("host", rule.get("tcp")) for rule in policy["rule"]} == {
        "looked.example.com",
        "index.example.com",
        "db.example.com:5432",
    }
    assert [rule["paths"] for rule in policy["rule"] if "paths" in rule] == [["/simple/x/"]]
    assert '"POST" "/upload" (1 request)' in out
    assert space("egress", "draft", one, "-o", str(tmp_path / "p.toml"))[0] == 0
    assert (tmp_path / "p.toml").read_text() == out
    assert space("egress", "draft", one, "-o", str(tmp_path / "p.toml"))[0] == 2
    assert space("policy", "check", str(tmp_path / "p.toml"))[0] == 0


# -- records in files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path: Path) -> tuple[Path, str]:
    """Records of both chains, vouched for; and the public key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    signing = Ed25519PrivateKey.generate()
    folder = tmp_path / "copy"
    folder.mkdir()
    for chain, kind in (("gateway", "request"), ("dialer", "dial"), ("broker", "credential")):
        writer = Writer(chain)
        lines = [
            writer.line(
                {"at": f"2026-11-30T00:00:0{number}.{'0' if chain == 'gateway' else '5'}00Z", "type": kind, "sandbox": f"sb-{number % 2}"}
            )
            for number in range(6)
        ]
        (folder / segment_name(chain, 1)).write_bytes(b"".join(lines))
        mac = signing.sign(statement(chain, writer.count, writer.last))
        (folder / f"{chain}.head").write_bytes(head_line(chain, writer.count, writer.last, mac))
    return folder, signing.public_key().public_bytes_raw().hex()


def test_a_copy_that_is_whole_is_intact_with_the_key_from_a_file_or_in_words(copy: tuple[Path, str], space: Space, tmp_path: Path) -> None:
    folder, key = copy
    (tmp_path / "audit.key").write_text(key + "\n")
    for given in (key, str(tmp_path / "audit.key")):
        status, out, _ = space("audit", "verify", "--files", str(folder), "--key", given)
        assert (status, out.splitlines()[-1]) == (0, "intact")
        assert "gateway: 6 records are vouched for" in out


@pytest.mark.parametrize("damage", ["change", "remove", "swap", "cut", "head", "torn"])
@pytest.mark.parametrize("chain", ["dialer", "broker"])
def test_what_was_done_to_a_copy_is_found_and_is_the_exit_status(copy: tuple[Path, str], space: Space, damage: str, chain: str) -> None:
    folder, key = copy
    path = folder / segment_name(chain, 1)
    lines = path.read_bytes().splitlines(keepends=True)
    match damage:
        case "change":
            lines[2] = lines[2].replace(b"sb-0", b"sb-9")
        case "remove":
            del lines[3]
        case "swap":
            lines[1:3] = lines[2], lines[1]
        case "cut":
            del lines[4:]
        case "head":
            (folder / f"{chain}.head").unlink()
        case "torn":
            lines.append(b'{"n":7,"at":"20')
    path.write_bytes(b"".join(lines))
    status, out, _ = space("--json", "audit", "verify", "--files", str(folder), "--key", key)
    answer = json.loads(out)
    found = {one["chain"]: one for one in answer["chains"]}
    assert found["gateway"]["intact"]
    assert found[chain]["findings"]
    assert status == (0 if damage == "torn" else 1)
    assert answer["intact"] is (damage == "torn")
    assert space("audit", "verify", "--files", str(folder), "--key", key, "--chain", "gateway")[0] == 0


def test_an_export_is_the_lines_that_are_wanted_in_the_order_of_time(copy: tuple[Path, str], space: Space) -> None:
    folder, _ = copy

    def exported(*arguments: str) -> list[dict[str, Any]]:
        status, out, _ = space("audit", "export", "--files", str(folder), *arguments)
        assert status == 0
        return [json.loads(line) for line in out.splitlines()]

    everything = exported()
    assert len(everything) == 18
    assert [one["at"] for one in everything] == sorted(one["at"] for one in everything)
    assert {one["sandbox"] for one in exported("--sandbox", "sb-1")} == {"sb-1"}
    assert {one["type"] for one in exported("--kind", "dial")} == {"dial"}
    window = exported("--since", "2026-11-30T00:00:02Z", "--until", "2026-11-30T00:00:04Z", "--chain", "gateway")
    assert [one["n"] for one in window] == [3, 4]


def test_wrong_usage_is_told(copy: tuple[Path, str], space: Space, tmp_path: Path) -> None:
    folder, key = copy
    for wrong in (
        ("audit", "verify", "--files", str(folder)),
        ("audit", "verify", "--files", str(tmp_path / "none"), "--key", key),
        ("audit", "verify", "--files", str(folder), "--key", "no-key"),
        ("audit", "verify", "--files", str(folder), "--key", key, "--chain", "other"),
        ("audit", "export", "--files", str(folder), "--kind", "other"),
        ("audit", "export", "--files", str(folder), "--since", "soon"),
    ):
        assert space(*wrong)[0] == 2, wrong


def test_the_servers_own_records_are_verified_against_what_its_broker_remembers(
    tmp_path: Path, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    from space.audit.records import Dialled, Note, encode
    from space.rpc.audit_client import AuditControl, RecordSocket
    from space.rpc.broker_client import BrokerControl
    from space.rpc.packets import pair
    from space.testing.brokerprocess import AuditProcess, BrokerProcess

    broker, keeper = BrokerProcess(tmp_path), AuditProcess(tmp_path, "--writer", "broker")
    broker.start()
    keeper.start()

    async def write() -> None:
        client, toward = AuditControl.connect(keeper.socket), BrokerControl.connect(broker.socket)
        theirs, ours = pair()
        await toward.bind_writer(theirs, ("gateway", "dialer", "broker"))
        await client.bind_broker(ours)
        theirs, ours = pair()
        await client.bind_source(theirs, "dialer", "", 0)
        source = RecordSocket(ours)
        for number in range(1, 9):
            await source.written(number, encode(Note(Dialled(sandbox="sb-x", name="a.example.com", port=443), number)))
        client.close()
        toward.close()

    asyncio.run(write())
    keeper.stop()
    monkeypatch.setattr(audit_command, "_own", lambda _: (keeper.data, broker.socket))
    status, out, _ = space("audit", "verify")
    assert (status, "dialer: 8 records are vouched for" in out) == (0, True)
    _, key, _ = space("audit", "key")
    assert space("audit", "verify", "--files", str(keeper.data), "--key", key.strip())[0] == 0
    # Files that are put back with their older head: only the broker knows better.
    path = next(keeper.data.glob("dialer.*.jsonl"))
    path.write_bytes(b"")
    (keeper.data / "dialer.head").unlink()
    assert space("audit", "verify")[0] == 1
    broker.stop()
