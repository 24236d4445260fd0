"""Servers in sandboxes, by `get_host` and by headers, with E2B's own SDKs: public and private, masked hosts, closed ports, rest."""

from __future__ import annotations

import shlex
import time

import httpx
import pytest
from tests.e2b.stage import Js, Running

from e2b import Sandbox  # isort: skip

SERVER = "python3 -m http.server 8000 --bind 127.0.0.1"
ECHO = """
import http.server, json
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({name.lower(): value for name, value in self.headers.items()}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers(); self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""
CLOSED = "The sandbox is running but port is not open"


def served(server: Running, made: Sandbox, **more: str) -> httpx.Response:
    """What port 8000 answers once something listens there."""
    heads = {"E2b-Sandbox-Id": made.sandbox_id, "E2b-Sandbox-Port": "8000", **more}
    deadline = time.monotonic() + 30
    while True:
        answer = httpx.get(server.served.url, headers=heads, timeout=60, trust_env=False)
        if answer.status_code != 502 or CLOSED not in answer.text or time.monotonic() > deadline:
            return answer
        time.sleep(0.2)


def test_a_host_names_the_port_and_the_sandbox(server: Running) -> None:
    made = Sandbox.create()
    try:
        assert made.get_host(8000).startswith(f"8000-{made.sandbox_id}.")
        made.commands.run(SERVER, background=True)
        assert served(server, made).status_code == 200
        closed = httpx.get(
            server.served.url, headers={"E2b-Sandbox-Id": made.sandbox_id, "E2b-Sandbox-Port": "8001"}, timeout=60, trust_env=False
        )
        assert closed.json() == {"sandboxId": made.sandbox_id, "message": CLOSED, "port": 8001, "code": 502}
    finally:
        made.kill()
    assert served(server, made).json() == {"sandboxId": made.sandbox_id, "message": "The sandbox was not found", "code": 502}


def test_private_traffic_wants_the_token_and_the_server_sees_the_masked_host(server: Running) -> None:
    made = Sandbox.create(network={"allow_public_traffic": False, "mask_request_host": "localhost:${PORT}"})
    try:
        made.commands.run(f"python3 -c {shlex.quote(ECHO)}", background=True)
        assert served(server, made).status_code == 403
        token = made.traffic_access_token
        assert token
        seen = served(server, made, **{"e2b-traffic-access-token": token}).json()
        assert seen["host"] == "localhost:8000"
        assert token not in str(seen)
    finally:
        made.kill()


def test_javascript_reaches_a_port_by_the_headers_that_its_sdk_sends(server: Running, js: Js) -> None:
    said = js(
        """
        const made = await Sandbox.create()
        await made.commands.run('python3 -m http.server 8000 --bind 127.0.0.1', { background: true })
        const heads = { 'E2b-Sandbox-Id': made.sandboxId, 'E2b-Sandbox-Port': '8000' }
        let answer
        for (let turn = 0; turn < 100; turn++) {
            answer = await fetch(given.url, { headers: heads })
            if (answer.status === 200) break
            await sleep(200)
        }
        const host = made.getHost(8000)
        await made.kill()
        return [answer.status, host.startsWith(`8000-${made.sandboxId}.`)]
        """,
        url=server.served.url,
    )
    assert said == [200, True]


@pytest.mark.parametrize("wakes", [True, False])
def test_traffic_wakes_a_paused_sandbox_that_says_so_and_no_other(server: Running, wakes: bool) -> None:
    made = Sandbox.create(timeout=300, lifecycle={"on_timeout": "pause", "auto_resume": wakes})
    try:
        made.commands.run(SERVER, background=True)
        assert served(server, made).status_code == 200
        made.pause()
        answer = served(server, made)
        assert (answer.status_code == 200) is wakes
        assert wakes or "was not found" in answer.text
    finally:
        made.kill()
