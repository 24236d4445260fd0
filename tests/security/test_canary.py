"""No answer, event, record, log line, argument, variable, file or page of a store of a server has a secret's value.

All routes are walked, from the table that the document of the API is made of, on a live instance whose secrets are canaries. Values are
also put where none belongs: into fields and queries of requests about secrets. All is searched for every form that the tripwire knows,
and for something public of a secret, which is there.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import space
from space.control.openapi import document
from space.core.credentials.tripwire import Needles, needles
from space.sdk import Secret
from space.serve.private import Served
from space.testing.machine import Runtime

SHOP = "canary.example.com"
NAMES = ("static", "earlier", "refresh", "client", "aws", "session", "mistaken", "hopeless")
CANARIES = {name: f"cnry{name}{secrets.token_hex(14)}" for name in NAMES}
MARKER = f"mrkr{secrets.token_hex(14)}"
CHUNK = 4 << 20
_JSON = {"content-type": "application/json"}


@pytest.fixture
def kept(client: space.Client) -> Iterator[None]:
    """Secrets of three kinds, one of them rotated, and a grant."""
    client.put_secret("canary", Secret(CANARIES["earlier"].encode()))
    client.rotate_secret("canary", Secret(CANARIES["static"].encode()))
    parts = {"refresh_token": Secret(CANARIES["refresh"].encode()), "client_secret": Secret(CANARIES["client"].encode())}
    client.put_secret("canary-mail", parts, kind="oauth_refresh", public={"endpoint": "mail", "client_id": "agent"})
    keys = {"secret_access_key": Secret(CANARIES["aws"].encode()), "session_token": Secret(CANARIES["session"].encode())}
    client.put_secret("canary-aws", keys, kind="aws", public={"access_key_id": "AKIDCANARY"})
    client.put_grant("canary", {"secret": "canary", "where": {"host": SHOP, "paths": ["/header/**"]}, "slot": {"kind": "header"}})
    yield
    for grant in list(client.grants()):
        if grant.name.startswith("canary"):
            client.delete_grant(grant.name)
    for secret in list(client.secrets()):
        if secret.name.startswith("canary"):
            client.delete_secret(secret.name)


def test_no_answer_argument_variable_or_file_of_a_server_has_a_value(kept: None, served: Served, runtime: Runtime) -> None:
    """Every route and the commands about credentials, also asked wrong; without a guest."""
    canaries = needles(*[value.encode() for value in CANARIES.values()])
    walked, answers = walk(served, f"sb-{'b' * 20}")
    assert walked == {one["operationId"] for path in json.loads(document("0"))["paths"].values() for one in path.values()}
    told = {name.split(" ")[0] for name, answer in answers.items() if answer.startswith(b"2")}
    assert told >= {
        "list_secrets",
        "get_secret",
        "create_secret",
        "put_secret",
        "list_grants",
        "get_grant",
        "credential_log",
        "events",
        "metrics",
    }
    assert told >= {"list_audit", "list_keys", "list_templates", "tenant_egress_log", "get_quota", "health", "openapi"}
    public = needles(b"AKIDCANARY")
    assert named(public, answers), "what is public of a secret is in the answers"
    assert named(canaries, answers) == []
    said = {words: _space(runtime, served, *words.split(" ")) for words in COMMANDS}
    assert named(public, said)
    assert named(canaries, said) == []
    processes_have_none(served, canaries)
    files = files_of(served)
    assert any(held(path, public) for path in files), "it is in the broker's store, and found by this search"
    assert [str(path) for path in files if held(path, canaries)] == []


COMMANDS = (
    "secret list", "secret show canary", "secret show canary-aws", "secret show none", "grant list", "grant show canary",
    "secret rotate canary-mail --from-env NONE", "secret log --secret canary", "egress log --all", "events", "audit",
    "secret list --json", "grant list --json", "secret revoke none", "grant create x --secret none --host a", "list --json",
)  # fmt: skip
"""What is asked on the command line; also what is wrong, for its words."""


def _space(runtime: Runtime, served: Served, *words: str) -> bytes:
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "SPACE_API_URL": served.url, "SPACE_API_KEY": served.api_key}
    done = subprocess.run(runtime.space(*words), env=env, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    assert b"Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


# -- routes --------------------------------------------------------------------------------------------------------------


def walk(served: Served, sandbox: str) -> tuple[set[str], dict[str, bytes]]:
    """What was asked, by its name; each answer with its head. Nothing of it changes what the sandbox is or has."""
    walked, answers = set(), {}
    fills = {"id": sandbox, "name": "canary", "tenant": "default", "tag": "1", "port": "9", "build": "bld-none", "process": "none"}
    with httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {served.api_key}"}, timeout=60, trust_env=False) as http:
        for path, operations in json.loads(document("0"))["paths"].items():
            for method, operation in operations.items():
                name = operation["operationId"]
                walked.add(name)
                known = {one["name"] for one in operation["parameters"] if one["in"] == "query"}
                for number, (fill, wanted, body) in enumerate(_asked(name, method, fills)):
                    query = {key: value for key, value in wanted.items() if key in known or body is not None}
                    where = re.sub(r"\{(\w+)\}", lambda found, fill=fill: fill.get(found[1], "none"), path)  # type: ignore[misc]
                    try:
                        content = None if body is None else json.dumps(body)
                        answer = http.request(method, where, params=query, content=content, headers=_JSON if content else {})
                    except httpx.TimeoutException:
                        raise AssertionError(f"{name} has no end") from None
                    head = "".join(f"{key}: {value}\n" for key, value in answer.headers.items()).encode()
                    answers[f"{name} {number}"] = b"%d\n" % answer.status_code + head + answer.content
                    assert answer.status_code < 500 or answer.status_code in (503, 504), (name, answer.text)
    return walked, answers


def _asked(name: str, method: str, fills: dict[str, str]) -> Iterator[tuple[dict[str, str], dict[str, str], object]]:
    """Of one route: what it is asked, with values where they belong and where they do not."""
    mistaken, hopeless = CANARIES["mistaken"], CANARIES["hopeless"]
    other = {**fills, "id": f"sb-{'a' * 20}", "name": "canary-none"}
    query = {"follow": "false", "path": "/root/marker", "user": "root"}
    if method in ("get", "head"):
        if name == "watch_files":
            query["path"] = "/nowhere"
        yield fills, query, None
        yield other, {**query, "secret": "canary", "limit": "200"}, None
    elif name in ("create_secret", "put_secret", "rotate_secret"):
        secret = {**fills, "name": "canary-tried"} if name != "rotate_secret" else {**fills, "name": "canary-none"}
        for body in (
            {"value": mistaken}, {"value": [mistaken]}, {"value": {"value": mistaken, "other": "x"}}, {"value": {"other": mistaken}},
            {"valeu": mistaken}, {"value": mistaken, "more": hopeless}, {"value": mistaken, "kind": hopeless}, {"value": mistaken * 4000},
            {"value": mistaken, "expires": hopeless}, {"value": "x", "labels": [hopeless]}, mistaken, [mistaken],
            {"value": {"secret_access_key": mistaken}, "kind": "aws", "public": {"access_key_id": 5}},
            {"value": {"refresh_token": mistaken}, "kind": "oauth_refresh", "public": {"endpoint": "none", "client_id": "x"}},
            {"value": mistaken + "\ud800"}, {"value": mistaken, "description": 5},
        ):  # fmt: skip
            yield secret, {}, body
        yield secret, {"value": mistaken}, {"value": mistaken}
        yield {**secret, "name": "NO-NAME"}, {}, {"value": mistaken}
    elif name in ("create_grant", "put_grant"):
        for body in (
            {"secret": "none", "value": mistaken},
            {"secret": "canary", "slot": mistaken},
            {"secret": "canary", "where": {"host": "a", "more": hopeless}},
            mistaken,
        ):
            yield {**fills, "name": "canary-tried"}, {}, body
    elif name == "create_sandbox":
        yield fills, {}, {"grants": ["canary-none"], "value": mistaken}
    elif name in ("delete_secret", "revoke_secret"):
        yield {**fills, "name": "canary-tried"}, {}, None
    else:  # of another sandbox, for nothing is to be changed
        yield other, {}, {"value": mistaken} if method in ("post", "put", "patch") else None


# -- where to look -------------------------------------------------------------------------------------------------------


def named(sought: Needles, texts: dict[str, bytes]) -> list[str]:
    return [name for name, text in texts.items() if sought.found(text)]


def files_of(served: Served) -> list[Path]:
    found = [path for top in (served.instance.data, served.instance.run) for path in top.rglob("*") if path.is_file()]
    assert {path.suffix for path in found} >= {".db", ".db-wal", ".jsonl", ".log"}
    return found


def processes_have_none(served: Served, canaries: Needles) -> dict[int, str]:
    """In their arguments and variables; nor can what they have go into a core file."""
    processes = _processes(served)
    assert {"broker", "minter", "control", "node", "audit"} <= set(processes.values())
    for pid, role in processes.items():
        for what in ("cmdline", "environ"):
            assert not canaries.found(Path(f"/proc/{pid}/{what}").read_bytes()), f"{what} of {role}"
        assert re.search(r"Max core file size +0 +0 ", Path(f"/proc/{pid}/limits").read_text()), role
    return processes


def _processes(served: Served) -> dict[int, str]:
    """Every process of the instance: services by their roles, workers and machines by what they are."""
    found = {one["pid"]: one["role"] for one in json.loads((served.instance.run / "services.json").read_text())}
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        try:
            uid, words = path.stat().st_uid, (path / "cmdline").read_bytes()
        except OSError:
            continue
        if pid not in found and uid in served.instance.uid_range:
            found[pid] = "vmm" if b"qemu" in words else "worker"
    return found


def held(path: Path, sought: Needles) -> bool:
    """Whether a file holds any; its holes hold none."""
    try:
        with path.open("rb") as file:
            if not file.seekable():  # a network namespace that is mounted there
                return False
            at, end = 0, file.seek(0, os.SEEK_END)
            while at < end:
                try:
                    at = os.lseek(file.fileno(), at, os.SEEK_DATA)
                except OSError:
                    return False
                if sought.found(os.pread(file.fileno(), CHUNK + sought.longest, at)):
                    return True
                at += CHUNK
    except FileNotFoundError:
        return False
    return False
