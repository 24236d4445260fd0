"""Webhooks: where they may lead, how they are signed, and that receivers that fail, hang, redirect or are slow lose and repeat nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.control import limits
from space.control.addresses import Destination, destination, literal_address, networks, refusal
from space.control.delivery import NotDelivered, Sender, is_own, signature
from space.control.wire_tenants import WebhookRequest
from space.model.errors import InvalidArgument, PermissionDenied
from space.sdk.webhooks import verify
from space.testing.certificates import certificate
from space.testing.controlprocess import a_process
from space.testing.simcontrol import World, controlled, dialogue, until

LOOPBACK = ("127.0.0.1/32",)


# -- addresses: pure -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200",
        "192.0.0.192", "198.18.0.1", "192.0.2.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "168.63.129.16",
        "::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "2001:db8::1", "::127.0.0.1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b:1::1",
        "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "100::1", "::ffff:1.1.1.1", "64:ff9b::101:101",
        "2a00:1450::5efe:10.0.0.1", "2a00:1450::200:5efe:7f00:1",
    ],
)  # fmt: skip
def test_an_address_that_only_this_server_may_reach_is_refused(address: str) -> None:
    assert "is not an address of the public internet" in str(refusal(ip_address(address), ()))


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.215.14", "2606:4700:4700::1111", "2a00:1450:4001:81b::200e"])
def test_an_address_of_the_internet_is_not_refused(address: str) -> None:
    assert refusal(ip_address(address), ()) is None


@pytest.mark.parametrize(
    ("address", "listed", "fine"),
    [
        ("10.1.2.3", ("10.1.0.0/16",), True),
        ("10.2.2.3", ("10.1.0.0/16",), False),
        ("::ffff:10.1.2.3", ("10.1.0.0/16",), False),
        ("127.0.0.1", ("::1/128",), False),
        ("fd00::5", ("10.0.0.0/8", "fd00::/64"), True),
    ],
)
def test_the_operator_may_list_networks(address: str, listed: tuple[str, ...], fine: bool) -> None:
    assert (refusal(ip_address(address), networks(listed)) is None) == fine


@pytest.mark.parametrize(("listed", "fine"), [((), False), (("0.0.0.0/0",), False), (("1.1.1.1/32",), True)])
def test_an_address_of_this_machine_is_refused_unless_it_is_listed_by_itself(listed: tuple[str, ...], fine: bool) -> None:
    assert (refusal(ip_address("1.1.1.1"), networks(listed), own=True) is None) == fine


def test_what_can_be_bound_to_is_this_machines_own() -> None:
    assert is_own(ip_address("127.0.0.1"))
    assert not is_own(ip_address("192.0.2.1"))
    assert not is_own(ip_address("2001:db8::1"))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://example.com/", "http to example.com"),
        ("ftp://example.com/", "no https URL"),
        ("file:///etc/passwd", "no https URL"),
        ("https:///hook", "no https URL"),
        ("https://user:password@example.com/", "no user, password"),
        ("https://example.com/#part", "fragment"),
        ("https://example.com:0/", "no https URL"),
        ("https://example.com:99999/", "url: "),
        ("https://[::1/", "url: "),
        ("https://exämple.com/", "ASCII"),
        ("https://example.com/\r\nHost: other", "ASCII"),
        ("https://127.0.0.1/", "public internet"),
        ("http://127.0.0.1/", "public internet"),
        ("https://[::ffff:169.254.169.254]/", "public internet"),
        ("https://[fe80::1%25eth0]/", "zone"),
        ('https://a_b"c.example.com/', "no name of a host"),
        ("https://-example.com/", "no name of a host"),
        ("https://" + "a" * 300 + ".example.com/", "no name of a host"),
    ],
)
def test_a_url_that_cannot_be_right_is_refused_with_a_hint(url: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as refused:
        destination(url, allow_http=False, allowed=())
    assert refused.value.hint or "99999" in url or "[::1" in url


def test_a_url_is_taken_apart_once() -> None:
    assert destination("https://Example.com.:8443/a?b=c", allow_http=False, allowed=()) == Destination(True, "example.com", 8443, "/a?b=c")
    assert destination("https://example.com", allow_http=False, allowed=()).authority == "example.com"
    assert destination("http://localhost:80/", allow_http=False, allowed=()).authority == "localhost"
    assert destination("http://example.com:81/", allow_http=True, allowed=()).authority == "example.com:81"
    assert destination("https://[2606:4700::1]:444/", allow_http=False, allowed=()).authority == "[2606:4700::1]:444"


_PARTS = st.sampled_from(
    ["http", "https", "://", ":", "/", "//", "\\", "@", "#", "?", "[", "]", "%", "%25", ".", "..", "127.0.0.1", "::1", "::ffff:10.0.0.1",
     "0x7f.1", "2130706433", "localhost", "example.com", "443", "0", "-", "\t", "\n", "\0", "é", " ", "a"]
)  # fmt: skip


@given(st.lists(_PARTS, max_size=12).map("".join) | st.text(max_size=60))
def test_any_text_is_refused_or_leads_where_the_http_client_would_go(url: str) -> None:
    try:
        to = destination(url, allow_http=True, allowed=())
    except InvalidArgument:
        return
    parsed = httpx.URL(url)
    assert parsed.host.rstrip(".") == to.host
    assert (parsed.port or (443 if to.secure else 80)) == to.port
    assert to.target.startswith("/")
    # The request is made for an address in place of the name: nothing of the rest may move it elsewhere.
    moved = httpx.URL(f"https://192.0.2.1:{to.port}{to.target}")
    assert moved.host == "192.0.2.1"
    literal = literal_address(to.host)
    assert literal is None or refusal(literal, ()) is None


@given(st.ip_addresses())
def test_what_is_not_refused_is_global_by_the_registry(address: IPv4Address | IPv6Address) -> None:
    if refusal(address, ()) is None:
        assert address.is_global
        assert not any((address.is_private, address.is_loopback, address.is_link_local, address.is_multicast, address.is_reserved))


# -- one delivery --------------------------------------------------------------------------------------------------------------


def test_a_signature_is_what_openssl_computes_and_what_the_sdk_verifies() -> None:
    body = b'{"kind":"created"}'
    told = signature("secret-of-sixteen", 1_700_000_000, body)
    done = subprocess.run(
        ["openssl", "dgst", "-sha256", "-hmac", "secret-of-sixteen"], input=b"1700000000." + body, capture_output=True, check=True
    )
    assert told == "t=1700000000,v1=" + done.stdout.decode().strip().rpartition(" ")[2]
    verify("secret-of-sixteen", told, body, now=1_700_000_010)
    with pytest.raises(PermissionDenied):
        verify("secret-of-sixteen", told, body + b" ", now=1_700_000_010)


@dataclass
class Receiver:
    """An HTTP server that answers what it is told to, and remembers what came."""

    port: int = 0
    status: int | str = 200
    headers: str = ""
    came: list[dict[str, Any]] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    hold: float = 0.0
    statuses: list[int] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            head = dict(line.lower().split(": ", 1) for line in lines[1:-2])
            exact = dict(line.split(": ", 1) for line in lines[1:-2])
            body = await reader.readexactly(int(head["content-length"]))
            self.lines.append(lines[0])
            self.heads.append({name.lower(): value for name, value in exact.items()})
            self.bodies.append(body)
            self.came.append(json.loads(body))
            if self.hold:
                await asyncio.sleep(self.hold)
            status = self.statuses.pop(0) if self.statuses else self.status
            writer.write(f"HTTP/1.1 {status} X\r\n{self.headers}Content-Length: 0\r\n\r\n".encode())
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def a_receiver(**how: Any) -> AsyncIterator[Receiver]:
    context = how.pop("ssl", None)
    receiver = Receiver(**how)
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0, ssl=context)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()


def test_the_connection_goes_to_the_address_that_was_judged_and_tls_to_the_name(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, subject="DNS:hooks.example.com")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    trusting = ssl.create_default_context(cafile=str(cert))
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    async def talk() -> None:
        async with a_receiver(ssl=context) as receiver:
            sender = Sender(networks(LOOPBACK), resolve=resolve, context=trusting)
            good = Destination(True, "hooks.example.com", receiver.port, "/hook?x=1")
            await sender.send(good, b"{}", {}, "s" * 16)
            assert asked == ["hooks.example.com"]  # resolved once, and connected there
            assert receiver.lines == ["POST /hook?x=1 HTTP/1.1"]
            assert receiver.heads[0]["host"] == f"hooks.example.com:{receiver.port}"
            with pytest.raises(NotDelivered, match=r"(?i)certificate"):
                await sender.send(Destination(True, "example.com", receiver.port, "/"), b"{}", {}, "s" * 16)
            assert len(receiver.came) == 1
            await sender.aclose()

    asyncio.run(talk())


def test_a_name_that_leads_inside_is_not_connected_to_however_it_is_mixed() -> None:
    answers = {"inside": ["169.254.169.254"], "none": [], "mixed": ["10.0.0.1", "::1"], "rebinds": ["127.0.0.1"]}
    turns: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        turns.append(host)
        if host == "fails":
            raise OSError("no such name")
        return answers[host]

    async def talk() -> None:
        async with a_receiver() as receiver:
            sender = Sender((), resolve=resolve)
            for host, words in (
                ("inside", "no address of the public internet"),
                ("none", "has no address"),
                ("mixed", "no address of the public internet"),
                ("rebinds", "no address of the public internet"),
                ("fails", "could not be resolved"),
                ("127.0.0.1", "no address of the public internet"),
                ("::1", "no address of the public internet"),
            ):
                with pytest.raises(NotDelivered, match=words) as refused:
                    await sender.send(Destination(False, host, receiver.port, "/"), b"{}", {}, "s" * 16)
                assert not any(address in str(refused.value) for address in answers.get(host, ())), "a tenant learns no name of the inside"
            assert receiver.came == []
            await sender.aclose()

    asyncio.run(talk())


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"status": 500}, "answered 500"),
        ({"status": 302, "headers": "Location: http://127.0.0.1:1/\r\n"}, "answered 302; redirects are not followed"),
        ({"status": 404}, "answered 404"),
        ({"status": "garbage"}, "could not be reached"),
        ({"hold": 5.0}, "did not answer within 0.3 s"),
    ],
)
def test_an_answer_that_is_no_success_is_told_in_a_sentence(how: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WEBHOOK_SECONDS", 0.3)

    async def talk() -> None:
        async with a_receiver(**how) as receiver:
            sender = Sender(networks(LOOPBACK))
            with pytest.raises(NotDelivered, match=words):
                await sender.send(Destination(False, "127.0.0.1", receiver.port, "/"), b"{}", {}, "s" * 16)
            await sender.aclose()

    asyncio.run(talk())


# -- over HTTP -----------------------------------------------------------------------------------------------------------------


async def hook(world: World, receiver: Receiver, **more: Any) -> dict[str, Any]:
    answer = await world.client.post("/v1/webhooks", json={"url": f"http://127.0.0.1:{receiver.port}/hook", **more})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def shown(world: World) -> dict[str, Any]:
    [found] = (await world.client.get("/v1/webhooks")).json()["webhooks"]
    return dict(found)


async def events(world: World, **params: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (await world.client.get("/v1/events", params=params)).text.splitlines()]


@dialogue(webhook_networks=LOOPBACK)
async def test_every_event_is_delivered_signed_and_in_order(world: World) -> None:
    async with a_receiver() as receiver:
        await world.create()
        made = await hook(world, receiver)
        after = made["webhook"]["cursor"]
        assert made["secret"].startswith("whsec_")
        sandbox = await world.create()
        await world.client.delete(f"/v1/sandboxes/{sandbox}")
        await until(lambda: receiver.came and receiver.came[-1]["kind"] == "deleted")
        assert receiver.came == await events(world, after=after)
        for head, body in zip(receiver.heads, receiver.bodies, strict=True):
            verify(made["secret"], head["space-signature"], body)
            assert head["space-webhook"] == made["webhook"]["id"]
            assert head["space-event"] == str(json.loads(body)["id"])
            assert head["content-type"] == "application/json"
        found = await shown(world)
        assert (found["failing_since"], found["delivered"]) == (None, len(receiver.came))
        assert "secret" not in found
        assert made["secret"] not in (await world.client.get("/v1/webhooks")).text
        assert "space_webhook_deliveries_total" in (await world.client.get("/metrics")).text


@dialogue(webhook_networks=LOOPBACK)
async def test_a_receiver_that_fails_hangs_and_redirects_gets_everything_in_order_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WEBHOOK_SECONDS", 0.3)
    monkeypatch.setattr(limits, "WEBHOOK_FIRST_PAUSE", 0.02)
    monkeypatch.setattr(limits, "WEBHOOK_LONGEST_PAUSE", 0.1)
    async with a_receiver(status=503) as receiver:
        after = (await hook(world, receiver))["webhook"]["cursor"]
        sandbox = await world.create()

        async def is_failing() -> bool:
            return str((await shown(world))["last_error"]) == "127.0.0.1 answered 503"

        await until(is_failing)
        since = (await shown(world))["failing_since"]
        assert abs(since - time.time()) < 10
        assert "space_webhooks_failing 1.0" in (await world.client.get("/metrics")).text
        await world.client.delete(f"/v1/sandboxes/{sandbox}")
        await until(lambda: len(receiver.came) >= 3)
        assert len({one["id"] for one in receiver.came}) == 1  # nothing overtakes what was not taken
        receiver.status, receiver.headers = 307, "Location: http://127.0.0.1:1/\r\n"
        await asyncio.sleep(0.3)
        receiver.hold = 1.0
        await asyncio.sleep(0.5)
        assert len({one["id"] for one in receiver.came}) == 1
        assert (await shown(world))["failing_since"] == since
        receiver.hold, receiver.status, receiver.headers = 0.0, 204, ""
        await until(lambda: receiver.came[-1]["kind"] == "deleted")
        order = [one["id"] for one in receiver.came]
        assert order == sorted(order)
        assert list(dict.fromkeys(order)) == [one["id"] for one in await events(world, after=after)]

        async def is_well() -> bool:
            found = await shown(world)
            return (found["failing_since"], found["last_error"]) == (None, None)

        await until(is_well)


@dialogue(webhook_networks=LOOPBACK)
async def test_a_receiver_that_hangs_holds_up_neither_the_server_nor_another_webhook(world: World) -> None:
    async with a_receiver(hold=30.0) as slow, a_receiver() as quick:
        await hook(world, slow)
        await hook(world, quick)
        began = time.monotonic()
        sandbox = await world.create()
        await world.client.delete(f"/v1/sandboxes/{sandbox}")
        await until(lambda: quick.came and quick.came[-1]["kind"] == "deleted")
        assert time.monotonic() - began < 5
        await until(lambda: len(slow.came) == 1)


@dialogue(webhook_networks=LOOPBACK)
async def test_only_the_kinds_that_were_asked_for_are_delivered(world: World) -> None:
    async with a_receiver() as receiver:
        made = await hook(world, receiver, kinds=["deleted", "created"], secret="chosen-by-the-tenant")
        assert made["secret"] == "chosen-by-the-tenant"
        sandbox = await world.create()
        await world.client.delete(f"/v1/sandboxes/{sandbox}")
        await until(lambda: len(receiver.came) == 2)
        assert [one["kind"] for one in receiver.came] == ["created", "deleted"]


@dialogue(start=False, webhook_networks=LOOPBACK)
async def test_a_webhook_goes_on_after_a_restart_where_it_was(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WEBHOOK_FIRST_PAUSE", 0.02)
    async with a_receiver() as receiver:
        async with controlled(world):
            assert world.services is not None
            await world.services.link.wait_up()
            made = await hook(world, receiver)
            await world.create()
            await until(lambda: [one["phase"] for one in receiver.came][-1:] == ["running"])
            receiver.status = 500
            await world.create()
            await until(lambda: (receiver.came[-1]["kind"], receiver.came[-1]["phase"]) == ("created", "requested"))
        failed = receiver.came[-1]["id"]
        taken = [one for one in receiver.came if one["id"] < failed]
        receiver.status, receiver.came = 200, []
        async with controlled(world):
            await until(lambda: receiver.came and receiver.came[-1]["phase"] == "running")
            assert taken + receiver.came == await events(world, after=made["webhook"]["cursor"])


@dialogue(start=False, webhook_networks=LOOPBACK)
async def test_a_kill_of_the_server_loses_no_delivery_and_changes_no_order(world: World) -> None:
    async with a_receiver() as receiver, a_process(world) as control:
        after = (await hook(world, receiver))["webhook"]["cursor"]
        sandbox = await world.create()
        there = world.node.sandboxes[sandbox]
        for number in range(60):
            world.node._move(there, "paused" if number % 2 == 0 else "running")
            await asyncio.sleep(0.01)
            if number in (20, 40):
                await control.kill()
                await control.start()
        await world.client.delete(f"/v1/sandboxes/{sandbox}")
        await until(lambda: receiver.came[-1]["kind"] == "deleted")
        firsts = list({one["id"]: one for one in receiver.came}.values())
        assert firsts == await events(world, after=after)
        assert [one["id"] for one in firsts] == sorted(one["id"] for one in firsts)
        assert await control.end() == 0


@dialogue(webhook_networks=LOOPBACK, events_per_tenant=5)
async def test_what_was_pruned_while_a_receiver_was_away_is_delivered_as_a_gap(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WEBHOOK_FIRST_PAUSE", 0.02)
    async with a_receiver(status=500) as receiver:
        await hook(world, receiver)
        sandbox = await world.create()
        there = world.node.sandboxes[sandbox]
        for number in range(60):
            world.node._move(there, "paused" if number % 2 == 0 else "running")
            await asyncio.sleep(0.005)
        await until(lambda: receiver.came)
        receiver.status = 200
        await until(lambda: any(one["kind"] == "gap" for one in receiver.came))
        await world.client.delete(f"/v1/sandboxes/{sandbox}")
        await until(lambda: receiver.came[-1]["kind"] == "deleted")


@dialogue(webhook_networks=LOOPBACK)
async def test_a_deleted_webhook_gets_nothing_more_and_is_its_tenants_alone(world: World) -> None:
    async with a_receiver() as receiver:
        made = await hook(world, receiver)
        path = f"/v1/webhooks/{made['webhook']['id']}"
        async with await world.other_tenant() as stranger:
            assert (await stranger.get("/v1/webhooks")).json() == {"webhooks": []}
            assert (await stranger.delete(path)).status_code == 404
            await stranger.post("/v1/sandboxes", json={})
        assert (await world.client.delete(path)).status_code == 204
        assert (await world.client.delete(path)).status_code == 404
        await world.create()
        await asyncio.sleep(0.2)
        assert receiver.came == []


@dialogue()
async def test_what_a_webhook_may_not_be_is_refused_with_the_remedy(world: World) -> None:
    for asked, word in (
        ({"url": "http://example.com/"}, "allow_http_webhooks"),
        ({"url": "https://169.254.169.254/latest/meta-data"}, "webhook_networks"),
        ({"url": "https://example.com/", "kinds": ["all"]}, "kinds"),
        ({"url": "https://example.com/", "kinds": []}, "kinds"),
        ({"url": "https://example.com/", "secret": "short"}, "secret"),
        ({}, "url"),
    ):
        answer = await world.client.post("/v1/webhooks", json=asked)
        assert answer.status_code == 400, asked
        assert word in answer.text
    for _ in range(limits.WEBHOOKS_PER_TENANT):
        assert (await world.client.post("/v1/webhooks", json={"url": "https://example.com/"})).status_code == 201
    assert (await world.client.post("/v1/webhooks", json={"url": "https://example.com/"})).status_code == 409


def test_a_secret_is_in_no_repr() -> None:
    assert "hidden-hidden-hidden" not in repr(WebhookRequest(url="https://example.com", secret="hidden-hidden-hidden"))
