"""A guest that used a credential of each kind in every way that leaves words somewhere: no place of it or of its server has a value."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tests.security.test_canary import CANARIES, CHUNK, MARKER, SHOP, files_of, held, kept, named, processes_have_none, walk  # noqa: F401
from tests.security.walled import Walled, eventually

import space
from space.core.credentials.tripwire import Needles, needles
from space.serve.private import Served
from space.testing import townshops
from space.testing.egresstown import Town
from space.testing.tokenendpoint import TokenEndpoint

AUTH, OAUTH, BUCKET = "auth.example.com", "canary-mail.example.com", "canary-s3.example.com"


class Echoing(townshops.Site):
    """Says all that came, so that a credential is on the way back as well."""

    async def reply(self, method: str, target: str, head: bytes, body: bytes) -> tuple[str, str, bytes]:
        return "200 OK", "text/plain", head + body


@pytest.fixture
def used(kept: None, guest: Walled, place: Town, client: space.Client, served: Served) -> Walled:  # noqa: F811
    """A guest with a grant of each kind, which it has used in every way that leaves words somewhere."""
    endpoint = TokenEndpoint(expires_in=31, client=("agent", CANARIES["client"]))
    endpoint.refresh_tokens.add(CANARIES["refresh"])
    for name, server in ((AUTH, endpoint.serve), (OAUTH, Echoing({})), (SHOP, Echoing({})), (BUCKET, Echoing({}))):
        place.serve(name, server)
    slots: dict[str, tuple[str, str, dict[str, object], dict[str, object]]] = {
        "canary-header": ("canary", SHOP, {"kind": "header"}, {"paths": ["/header/**"]}),
        "canary-basic": ("canary", SHOP, {"kind": "basic", "username": "u"}, {"paths": ["/basic"]}),
        "canary-query": ("canary", SHOP, {"kind": "query", "name": "key"}, {"paths": ["/query"]}),
        "canary-mark": (
            "canary",
            SHOP,
            {"kind": "placeholder", "env": "CANARY_KEY", "in": "header", "name": "x-key"},
            {"paths": ["/mark"]},
        ),
        "canary-mail": ("canary-mail", OAUTH, {"kind": "header"}, {}),
        "canary-aws": ("canary-aws", BUCKET, {"kind": "sigv4", "service": "s3", "region": "eu-test-1"}, {}),
    }
    for name, (secret, host, slot, where) in slots.items():
        client.put_grant(name, {"secret": secret, "where": {"host": host, **where}, "slot": slot}, replace=True)
        guest.sandbox.attach_grant(name)
    rated = {
        "secret": "canary",
        "where": {"host": SHOP, "paths": ["/rated"]},
        "slot": {"kind": "header"},
        "rate": {"count": 1, "seconds": 60},
    }
    client.put_grant("canary-rated", rated)
    guest.sandbox.attach_grant("canary-rated")
    guest.allow({"host": SHOP}, {"host": OAUTH}, {"host": BUCKET})
    guest.sh(f"echo {MARKER} >/root/marker; sync; MARKER={MARKER} sleep 1000 >/dev/null 2>&1 &")
    script = f"""
cd /root; for path in header/{MARKER} basic query rated rated other; do curl -s https://{SHOP}/$path; done
curl -s -H "X-Key: $CANARY_KEY" https://{SHOP}/mark; curl -s -H "X-Other: $CANARY_KEY" https://{SHOP}/mark; curl -s -X TRACE https://{SHOP}/header/x
curl -s https://{OAUTH}/in; curl -s https://{BUCKET}/bucket/key; curl -s -T /root/marker https://{BUCKET}/bucket/key; curl -s https://{AUTH}/token
"""
    guest.sh(f"({script}) >/root/answers 2>&1")
    assert MARKER in guest.sh("cat /root/answers")[1]
    os.kill(_pid(served, "broker"), signal.SIGKILL)
    guest.sh(f"({script}) >>/root/answers 2>&1")
    assert eventually(lambda: guest.get(f"https://{SHOP}/header/a")[0] == "200" or None, 30)
    return guest


@pytest.mark.timeout(400)
def test_no_place_of_a_guest_that_used_them_or_of_its_server_has_a_value(used: Walled, served: Served) -> None:
    canaries = needles(*[value.encode() for value in CANARIES.values()])
    marker = needles(MARKER.encode())
    _, answers = walk(served, used.sandbox.id)
    assert named(marker, answers), "the marker, which is a path that was asked for, is in the answers"
    assert named(canaries, {**answers, "of hosts": used.sandbox.files.read("/root/answers", user="root")}) == []
    machines = [pid for pid, role in processes_have_none(served, canaries).items() if role == "vmm"]
    checkpoint = used.sandbox.checkpoint()
    try:
        files = files_of(served)
        assert any(held(path, marker) for path in files), "what is in the guest is found by this search"
        assert [str(path) for path in files if held(path, canaries)] == []
    finally:
        used.sandbox.drop_checkpoint(checkpoint.id)
    assert any(_remembered(pid, marker) for pid in machines)
    assert [pid for pid in machines if _remembered(pid, canaries)] == []


def _pid(served: Served, role: str) -> int:
    services = json.loads((served.instance.run / "services.json").read_text())
    return int(next(one["pid"] for one in services if one["role"] == role))


def _remembered(pid: int, sought: Needles) -> bool:
    """Whether a process has any in its memory: of a machine, its guest's too."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights, *_ = line.split()
            if "r" not in rights or "[v" in line:
                continue
            at, end = (int(one, 16) for one in place.split("-"))
            while at < end:
                try:
                    found = os.pread(memory.fileno(), min(CHUNK + sought.longest, end - at), at)
                except OSError:
                    break
                if sought.found(found):
                    return True
                at += CHUNK
    return False
