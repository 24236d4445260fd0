"""Servers in real guests, reached through the ingress: by headers, by host names over TLS, with tokens, over rest and death."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

import space
from space.config.instance import Instance
from space.serve import records
from space.testing import leaks
from space.testing.machine import Runtime, Server

DOMAIN = "boxes.example.com"
CLOSED = "The sandbox is running but port is not open"
AWAY = "The sandbox was not found"
# What runs in the guest: nothing but Python's own.
PROGRAM = r"""
import base64, hashlib, http.server, json, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def whole(self, body, kind="text/plain"):
        self.send_response(200); self.send_header("Content-Type", kind); self.send_header("Content-Length", str(len(body)))
        self.end_headers(); self.wfile.write(body)
    def do_GET(self):
        if self.path == "/head":
            self.whole(json.dumps({name.lower(): value for name, value in self.headers.items()}).encode())
        elif self.path.startswith("/big"):
            size = int(self.path.partition("=")[2]) << 20
            self.send_response(200); self.send_header("Content-Length", str(size)); self.end_headers()
            for _ in range(size >> 18): self.wfile.write(bytes(1 << 18))
        elif self.path == "/stream":
            self.send_response(200); self.send_header("Transfer-Encoding", "chunked"); self.end_headers()
            for number in range(5):
                self.wfile.write(b"2\r\n%d\n\r\n" % number); self.wfile.flush(); time.sleep(0.3)
            self.wfile.write(b"0\r\n\r\n")
        elif self.path == "/ws":
            key = self.headers["Sec-WebSocket-Key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101); self.send_header("Upgrade", "websocket"); self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key).digest()).decode()); self.end_headers()
            self.close_connection = True
            while True:
                head = self.rfile.read(2)
                if len(head) < 2: return
                size = head[1] & 127
                mask = self.rfile.read(4)
                body = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(size)))
                self.wfile.write(bytes([head[0], size]) + body); self.wfile.flush()
                if head[0] & 15 == 8: return
        else:
            self.whole(b"from the guest")
    def do_POST(self):
        digest, left = hashlib.sha256(), int(self.headers["Content-Length"])
        while left:
            piece = self.rfile.read(min(left, 1 << 16)); left -= len(piece); digest.update(piece)
        self.whole(digest.hexdigest().encode())

http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""


@dataclass
class Place:
    """A server, a sandbox in which PROGRAM runs, and how its port is reached."""

    server: Server
    api: httpx.Client
    box: space.Sandbox
    address: str
    ca: str

    @property
    def name(self) -> str:
        return "i" + self.box.id.removeprefix("sb-")

    def heads(self, port: int = 8000) -> dict[str, str]:
        return {"E2b-Sandbox-Id": self.name, "E2b-Sandbox-Port": str(port)}

    def expose(self, port: int, *, public: bool = True) -> dict[str, Any]:
        answer = self.api.put(f"/v1/sandboxes/{self.box.id}/exposed/{port}", json={"public": public})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def named(self) -> httpx.Client:
        """A client to whom every name below the domain is this machine, and that trusts the authority."""
        here = int(self.address.rpartition(":")[2])

        class Here(httpx.HTTPTransport):
            def handle_request(self, request: httpx.Request) -> httpx.Response:
                request.extensions["sni_hostname"] = request.url.host
                request.url = request.url.copy_with(host="127.0.0.1", port=here)
                return super().handle_request(request)

        return httpx.Client(transport=Here(verify=ssl.create_default_context(cadata=self.ca)), timeout=60, trust_env=False)


@pytest.fixture(scope="module")
def place(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    before = leaks.of_host()
    server = Server(runtime, tmp_path_factory.mktemp("ports") / "serve.log", {"domain": DOMAIN})
    instance: Instance | None = None
    try:
        served = server.start()
        instance = served.instance
        with (
            httpx.Client(base_url=served.url, headers={"X-API-Key": served.api_key}, timeout=60, trust_env=False) as api,
            space.Client(api_url=served.url, api_key=served.api_key) as client,
            space.Sandbox.create(client=client) as box,
        ):
            info = api.get("/v1/ingress").json()
            box.start(["python3", "-c", PROGRAM])
            yield Place(server, api, box, info["url"].replace("https", "http"), info["ca"])
    finally:
        server.close()
    assert instance is not None
    leaks.settle(lambda: leaks.of_instance(instance))
    leaks.settle(leaks.of_host, before)


def answered(place: Place, headers: dict[str, str], path: str = "/", base: str | None = None) -> httpx.Response:
    """What a port says once its server listens."""
    deadline = time.monotonic() + 30
    while True:
        answer = httpx.get((base or place.address) + path, headers=headers, timeout=60, trust_env=False)
        if answer.status_code != 502 or answer.json()["message"] != CLOSED or time.monotonic() > deadline:
            return answer
        time.sleep(0.2)


def test_nothing_is_reached_before_it_is_exposed_and_then_that_port_alone(place: Place) -> None:
    hidden = httpx.get(place.address, headers=place.heads(9000), trust_env=False)
    assert (hidden.status_code, hidden.json()["code"]) == (403, 403)
    place.expose(8000)
    assert answered(place, place.heads()).text == "from the guest"
    place.expose(9001)
    closed = httpx.get(place.address, headers=place.heads(9001), trust_env=False)
    assert closed.status_code == 502
    assert closed.json() == {"sandboxId": place.name, "message": CLOSED, "port": 9001, "code": 502}


def test_a_host_name_leads_there_over_tls_and_the_server_learns_the_way(place: Place) -> None:
    found = place.expose(8000)
    assert found["url"].startswith(f"https://8000-{place.name}.{DOMAIN}")
    answered(place, place.heads())
    with place.named() as client:
        seen = client.get(f"{found['url']}/head").json()
        assert seen["host"] == seen["x-forwarded-host"] == found["url"].removeprefix("https://")
        assert (seen["x-forwarded-proto"], seen["x-forwarded-for"]) == ("https", "127.0.0.1")
        assert client.get(f"https://api.{DOMAIN}/v1/sandboxes").status_code == 401
    with place.named() as client, pytest.raises(httpx.ConnectError):
        client.get("https://www.example.org/")  # which the authority is not good for


def test_the_apis_own_address_leads_there_as_well(place: Place) -> None:
    place.expose(8000)
    assert answered(place, place.heads(), base=str(place.api.base_url).rstrip("/")).text == "from the guest"
    assert place.api.get("/healthz").status_code == 200


def test_a_private_port_opens_to_its_token_alone(place: Place) -> None:
    found = place.expose(8000, public=False)
    assert httpx.get(place.address, headers=place.heads(), trust_env=False).status_code == 403
    assert httpx.get(place.address, headers=place.heads() | {"E2b-Traffic-Access-Token": "0" * 64}, trust_env=False).status_code == 403
    assert answered(place, found["headers"]).text == "from the guest"
    seen = httpx.get(f"{place.address}/head", headers=found["headers"], trust_env=False).json()
    assert found["token"] not in str(seen)  # it opens the port, and is nobody's behind it
    place.expose(8000)


def test_streams_come_as_they_are_made_and_bodies_arrive_whole(place: Place) -> None:
    place.expose(8000)
    answered(place, place.heads())
    with httpx.stream("GET", f"{place.address}/stream", headers=place.heads(), timeout=60, trust_env=False) as answer:
        came = [(time.monotonic(), piece) for piece in answer.iter_raw()]
    assert b"".join(piece for _, piece in came) == b"0\n1\n2\n3\n4\n"
    assert came[-1][0] - came[0][0] > 0.8
    data = os.urandom(8 << 20)
    said = httpx.post(f"{place.address}/sum", content=data, headers=place.heads(), timeout=120, trust_env=False).text
    assert said == hashlib.sha256(data).hexdigest()
    big = httpx.get(f"{place.address}/big?mib=16", headers=place.heads(), timeout=120, trust_env=False)
    assert len(big.content) == 16 << 20


def test_a_websocket_echoes(place: Place) -> None:
    found = place.expose(8000)
    answered(place, place.heads())
    url = place.address.replace("http", "ws")
    with connect(f"{url}/ws", additional_headers=place.heads(), proxy=None, compression=None) as plain:
        for text in ("one", "zwei ü", "x" * 100):
            plain.send(text)
            assert plain.recv(timeout=30) == text
    name = httpx.URL(found["url"]).host
    trusting = ssl.create_default_context(cadata=place.ca)
    sock = socket.create_connection(("127.0.0.1", int(place.address.rpartition(":")[2])))
    with connect(f"wss://{name}/ws", sock=sock, ssl=trusting, server_hostname=name, proxy=None, compression=None) as secure:
        secure.send(base64.b64encode(os.urandom(60)).decode())
        assert len(secure.recv(timeout=30)) == 80


def test_a_suspended_sandbox_is_away_unless_a_rule_put_it_to_rest_and_then_traffic_wakes_it(place: Place) -> None:
    place.expose(8000)
    answered(place, place.heads())
    place.box.suspend()
    asleep = httpx.get(place.address, headers=place.heads(), trust_env=False)
    assert (asleep.status_code, asleep.json()["message"]) == (502, AWAY)
    place.box.wake()
    assert answered(place, place.heads()).text == "from the guest"
    place.box.update(ttl_seconds=5, on_timeout="suspend")
    deadline = time.monotonic() + 60
    while place.box.info().phase != "suspended" and time.monotonic() < deadline:
        time.sleep(0.2)
    assert place.box.info().phase == "suspended"
    woken = httpx.get(place.address, headers=place.heads(), timeout=120, trust_env=False)
    assert woken.text == "from the guest"  # held until it ran; its server had never ended
    place.box.update(ttl_seconds=3600, on_timeout="delete")


def test_an_ingress_that_is_killed_comes_back_and_nobody_else_notices(place: Place) -> None:
    place.expose(8000)
    answered(place, place.heads())
    before = {record.role: record.pid for record in records.load(place.server.instance.services)}
    place.server.kill("ingress")
    assert place.api.get("/healthz").status_code == 200
    assert place.box.run(["echo", "still here"]).stdout == b"still here\n"
    assert answered(place, place.heads()).text == "from the guest"  # it waited in the listener
    after = {record.role: record.pid for record in records.load(place.server.instance.services)}
    assert {role for role in before if before[role] != after[role]} == {"ingress"}


def test_the_ingress_has_nothing_but_its_listeners_and_the_way_to_control(place: Place) -> None:
    pid = place.server.pid("ingress")
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    uid = str(place.server.instance.ingress_uid)
    assert set(status["Uid"].split()) == set(status["Gid"].split()) == {uid}
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    assert not Path(f"/proc/{pid}/environ").read_bytes().count(b"SPACE")


def test_speed_through_the_ingress_is_a_good_part_of_the_bare_tunnels(place: Place, record_property: Any) -> None:
    place.expose(8000)
    answered(place, place.heads())
    bulk, asked = _rates_through_ingress(place)
    bare_bulk, bare_asked = _rates_of_tunnel(place)
    for name, value in (("bulk", bulk / bare_bulk), ("requests", asked / bare_asked)):
        record_property(name, round(value, 2))
    ratios = f"{bulk / bare_bulk:.2f}, {asked / bare_asked:.2f}"
    print(f"\nMiB/s {bulk:.1f} of {bare_bulk:.1f}, requests/s {asked:.0f} of {bare_asked:.0f}: {ratios}")
    assert bulk > 0.4 * bare_bulk
    assert asked > 0.4 * bare_asked


_MIB, _TIMES = 32, 60


def _rates_through_ingress(place: Place) -> tuple[float, float]:
    with socket.create_connection(("127.0.0.1", int(place.address.rpartition(":")[2]))) as sock:
        heads = "".join(f"{name}: {value}\r\n" for name, value in place.heads().items())
        return _rates(sock.sendall, lambda: sock.recv(1 << 20), f"Host: localhost\r\n{heads}")


def _rates_of_tunnel(place: Place) -> tuple[float, float]:
    with place.box.connect_port(8000) as connection:
        return _rates(connection.send, connection.receive, "Host: localhost\r\n")


def _rates(send: Any, receive: Any, fields: str) -> tuple[float, float]:
    """MiB/s of one large reply, and small requests a second, one after another on one connection."""

    def ask(path: str) -> None:
        send(f"GET {path} HTTP/1.1\r\n{fields}\r\n".encode())
        data = b""
        while b"\r\n\r\n" not in data:
            data += receive()
        head, _, rest = data.partition(b"\r\n\r\n")
        length = next(int(line.partition(b":")[2]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        got = len(rest)
        while got < length:
            got += len(receive())

    ask("/")
    began = time.monotonic()
    for _ in range(_TIMES):
        ask("/")
    asked = _TIMES / (time.monotonic() - began)
    began = time.monotonic()
    ask(f"/big?mib={_MIB}")
    return _MIB / (time.monotonic() - began), asked
