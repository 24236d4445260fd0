"""Credentials that a real guest uses and never holds: clients work with them, and no place that the guest has or leaves has a value."""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.security.walled import Walled, eventually

import space
from space.sdk import EgressRecord, Event, Secret
from space.serve.private import Served
from space.testing import townshops
from space.testing.egresstown import Town
from space.testing.tokenendpoint import TokenEndpoint

AUTH, OAUTH = "auth.example.com", "mail.example.com"
API, GIT, PLAIN = "keyed.example.com", "keyed-git.example.com", "unkeyed.example.com"
CANARY = f"canary-{secrets.token_hex(16)}"
MARKER = f"marker-{secrets.token_hex(16)}"  # what is in the guest: the search that does not find the canary finds this


class Keyed(townshops.Site):
    """Answers who shows the key; `/echo` says all that came."""

    async def reply(self, method: str, target: str, head: bytes, body: bytes) -> tuple[str, str, bytes]:
        if f"\r\nauthorization: bearer {CANARY}\r\n".encode() not in head.lower():
            return "401 Unauthorized", "text/plain", b"who are you\n"
        return "200 OK", "text/plain", head if target == "/echo" else b"welcome\n"


class KeyedGit(townshops.GitSite):
    """A repository for who knows the password."""

    async def reply(self, method: str, target: str, head: bytes, body: bytes) -> tuple[str, str, bytes]:
        wanted = base64.b64encode(f"agent:{CANARY}".encode()).decode()
        if f"authorization: basic {wanted}".lower() not in head.decode("latin-1").lower():
            return "401 Unauthorized", "text/plain", b"who are you\n"
        return await super().reply(method, target, head, body)


class OauthApi(townshops.Site):
    """Answers who shows the token that its endpoint gave out last."""

    def __init__(self, endpoint: TokenEndpoint) -> None:
        super().__init__({})
        self.endpoint = endpoint

    async def reply(self, method: str, target: str, head: bytes, body: bytes) -> tuple[str, str, bytes]:
        wanted = f"\r\nauthorization: bearer {self.endpoint.granted[-1] if self.endpoint.granted else 'none yet'}\r\n"
        if wanted.encode() not in head.lower():
            return "401 Unauthorized", "text/plain", b"who are you\n"
        return "200 OK", "text/plain", b"welcome\n"


@pytest.fixture(scope="module")
def keyed(place: Town, client: space.Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two sites that ask for a key, and grants of it."""
    place.serve(API, Keyed({}))
    place.serve(PLAIN)
    place.serve(GIT, KeyedGit(townshops.git_repository(tmp_path_factory.mktemp("git")), "/project.git"))
    client.put_secret("key", Secret(CANARY.encode()))
    client.put_grant("api", {"secret": "key", "where": {"host": API, "methods": ["GET"]}, "slot": {"kind": "header"}})
    client.put_grant("git", {"secret": "key", "where": {"host": GIT}, "slot": {"kind": "basic", "username": "agent"}})
    yield
    for name in ("api", "git"):
        client.delete_grant(name)
    client.delete_secret("key")


@pytest.fixture
def granted(keyed: None, guest: Walled) -> Iterator[Walled]:
    """The guest, with both grants."""
    guest.allow({"host": API}, {"host": GIT}, {"host": PLAIN})
    for name in ("api", "git"):
        guest.sandbox.attach_grant(name)
    yield guest
    for name in ("api", "git"):
        guest.sandbox.detach_grant(name)


def test_clients_work_with_a_credential_that_the_guest_never_holds(granted: Walled, client: space.Client) -> None:
    assert granted.get(f"https://{API}/me") == ("200", "welcome\n")
    assert granted.get(f"https://{API}/me", "-H 'Authorization: Bearer of-the-guest'") == ("200", "welcome\n"), "its own is replaced"
    python = f"import urllib.request as u; print(u.urlopen('https://{API}/me').read().decode())"
    assert granted.sh(f'python3 -c "{python}"') == (0, "welcome\n\n")
    status, said = granted.sh(f"rm -rf /tmp/p; git clone -q https://{GIT}/project.git /tmp/p && git -C /tmp/p log --oneline | wc -l")
    assert (status, said.strip() != "0") == (0, True), said
    assert granted.get(f"https://{PLAIN}/me")[0] == "200"
    log = eventually(lambda: [one for one in client.credential_log(secret="key") if isinstance(one, EgressRecord)] or None)
    assert {(one.grant, one.reason, one.version) for one in log} >= {("api", "", 1), ("git", "", 1)}
    assert granted.sandbox.id in {one.sandbox for one in log}


def test_beyond_its_scope_and_after_its_end_there_is_no_credential(granted: Walled, client: space.Client) -> None:
    assert granted.get(f"https://{API}/me", "-X POST")[0] in ("401", "403"), "the grant is for GET"
    granted.sandbox.detach_grant("api")
    assert granted.get(f"https://{API}/me")[0] == "401"
    granted.sandbox.attach_grant("api")
    assert eventually(lambda: granted.get(f"https://{API}/me")[0] == "200" or None)
    client.put_grant("api", {**client.grant("api").grant, "until": "2020-01-01T00:00:00Z"}, replace=True)
    assert granted.get(f"https://{API}/me")[0] in ("401", "403")
    client.put_grant("api", {**client.grant("api").grant, "until": ""}, replace=True)
    assert eventually(lambda: granted.get(f"https://{API}/me")[0] == "200" or None)


def test_an_echo_is_overwritten_recorded_and_told_as_an_alarm(granted: Walled, client: space.Client) -> None:
    status, body = granted.get(f"https://{API}/echo")
    assert (status, "authorization" in body.lower(), CANARY in body) == ("200", True, False)
    alarms = eventually(lambda: _alarms(client) or None)
    assert alarms[-1].alarm is not None
    assert (alarms[-1].alarm.kind, alarms[-1].alarm.grant, alarms[-1].alarm.host) == ("tripwire", "api", API)
    assert alarms[-1].sandbox == granted.sandbox.id


def test_an_oauth_api_is_used_with_tokens_that_are_got_and_turned_outside(granted: Walled, client: space.Client) -> None:
    endpoint = TokenEndpoint(expires_in=31)  # less half a minute: good for a second
    endpoint.refresh_tokens.add("first")
    granted.place.serve(AUTH, endpoint.serve)
    granted.place.serve(OAUTH, OauthApi(endpoint))
    granted.allow({"host": OAUTH})
    parts, public = {"refresh_token": "first", "client_secret": "s3cret"}, {"endpoint": "mail", "client_id": "agent"}
    client.put_secret("mail", {name: Secret(value.encode()) for name, value in parts.items()}, kind="oauth_refresh", public=public)
    client.put_grant("mail", {"secret": "mail", "where": {"host": OAUTH}, "slot": {"kind": "header"}, "rate": {"count": 100, "seconds": 1}})
    try:
        granted.sandbox.attach_grant("mail")
        assert granted.get(f"https://{OAUTH}/inbox") == ("200", "welcome\n")
        assert eventually(lambda: len(endpoint.granted) > 1 or (granted.get(f"https://{OAUTH}/inbox")[0] == "200" and None))
        assert granted.get(f"https://{OAUTH}/inbox")[0] == "200"
        assert [one["refresh_token"] for one in endpoint.asked][:2] == ["first", "refresh-1"], "what the endpoint turned was kept"
        assert client.secret("mail").version > 1
        assert granted.get(f"https://{AUTH}/token", "-X POST")[0] != "200", "the endpoint is no host of the guest's"
    finally:
        client.delete_grant("mail")
        client.delete_secret("mail")


def test_a_fork_has_no_grant_until_it_is_granted_again(granted: Walled) -> None:
    assert granted.get(f"https://{API}/me")[0] == "200"
    (child,) = granted.sandbox.fork(1)
    try:
        other = Walled(child, granted.place)
        assert other.get(f"https://{API}/me")[0] == "401"
        child.attach_grant("api")
        assert eventually(lambda: other.get(f"https://{API}/me")[0] == "200" or None)
    finally:
        child.delete()


def test_a_broker_that_is_killed_answers_503_with_a_reason_and_is_back_without_a_restart(granted: Walled, served: Served) -> None:
    assert granted.get(f"https://{API}/me")[0] == "200"
    assert granted.get(f"https://{PLAIN}/me")[0] == "200"
    services = json.loads((served.instance.run / "services.json").read_text())
    (broker,) = [one["pid"] for one in services if one["role"] == "broker"]
    os.kill(broker, signal.SIGKILL)
    said = [granted.get(f"https://{API}/me") for _ in range(3)]
    assert granted.get(f"https://{PLAIN}/me")[0] == "200", "others go on"
    for status, body in said:
        assert status in ("200", "503")
        assert status == "200" or json.loads(body)["reason"] == "credential_unavailable"
    assert eventually(lambda: granted.get(f"https://{API}/me")[0] == "200" or None, 30)


def test_no_place_of_the_guest_or_of_the_instance_has_the_value(granted: Walled, served: Served) -> None:
    assert granted.get(f"https://{API}/me")[0] == "200"
    granted.sh(f"echo {MARKER} >/root/marker; sync; MARKER={MARKER} sleep 1000 >/dev/null 2>&1 &")
    status, said = granted.sh(f"env | grep -c {CANARY[:14]}; grep -rlsF {CANARY[:14]} /root /home /tmp /etc /var /run | head")
    assert (status, said) == (0, "0\n"), "the guest finds nothing of it"
    checkpoint = granted.sandbox.checkpoint()
    try:
        assert _holding(served.instance.data, MARKER), "what is in the guest is found by this search"
        assert _holding(served.instance.data, CANARY) == []
        assert _holding(served.instance.run, CANARY) == []
    finally:
        granted.sandbox.drop_checkpoint(checkpoint.id)


def _holding(directory: Path, text: str) -> list[str]:
    """Files below it with that text in them: disks, memory, stores, records, logs."""
    words = ["grep", "--recursive", "--text", "--fixed-strings", "--files-with-matches", "--devices=skip", "--no-messages"]
    return subprocess.run([*words, text, str(directory)], capture_output=True, check=False, text=True).stdout.splitlines()


def _alarms(client: space.Client) -> list[Event]:
    return [one for one in client.events(follow=False) if isinstance(one, Event) and one.kind == "credential_alarm"]
