"""Ports through an ingress: nothing that was not exposed, nobody without the token, and the API untouched by what is for a port."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from space.control import limits
from space.control.e2b.ids import to_e2b
from space.control.e2b.store import Extras
from space.rpc import ingress_api as api
from space.testing.simcontrol import World, an_ingress, controlled, dialogue, until

DOMAIN = "boxes.example.com"


def heads(sandbox: str, port: int, token: str | None = None) -> dict[str, str]:
    return {"E2b-Sandbox-Id": to_e2b(sandbox), "E2b-Sandbox-Port": str(port)} | (
        {} if token is None else {"E2b-Traffic-Access-Token": token}
    )


def plain() -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=False, timeout=20)


async def expose(world: World, sandbox: str, port: int, **asked: Any) -> dict[str, Any]:
    answer = await world.client.put(f"/v1/sandboxes/{sandbox}/exposed/{port}", json=asked)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@dialogue()
async def test_a_port_is_reached_once_it_is_exposed_and_no_more_when_it_is_not(world: World) -> None:
    sandbox = await world.create()
    async with an_ingress(world) as url, plain() as client:
        hidden = await client.get(url, headers=heads(sandbox, 80))
        assert (hidden.status_code, hidden.json()["code"]) == (403, 403)
        found = await expose(world, sandbox, 80, public=True)
        assert (found["public"], found["token"], found["address"]) == (True, None, url)
        assert found["url"] == f"http://80-{to_e2b(sandbox)}.localhost:{url.rsplit(':')[-1]}"
        assert (await client.get(url, headers=found["headers"])).text == "ok"
        assert (await client.get(url, headers=heads(sandbox, 7))).status_code == 403  # and no other one
        by_host = await client.get(url, headers={"Host": httpx.URL(found["url"]).netloc.decode()})
        assert by_host.text == "ok"
        held = world.node.sandboxes[sandbox].files
        await until(lambda: held.opened == 1)  # a connection that is kept for the next request
        assert (await world.client.delete(f"/v1/sandboxes/{sandbox}/exposed/80")).status_code == 204
        await until(lambda: held.opened == 0)  # what is open ends too
        assert (await client.get(url, headers=found["headers"])).status_code == 403


@dialogue()
async def test_a_private_port_wants_its_own_sandboxs_token(world: World) -> None:
    sandbox, other = await world.create(), await world.create()
    async with an_ingress(world) as url, plain() as client:
        found, others = await expose(world, sandbox, 80), await expose(world, other, 80)
        assert found["public"] is False
        assert (await client.get(url, headers=found["headers"])).text == "ok"
        envd = world.services.e2b.tokens.envd(sandbox) if world.services else ""
        for token in (None, "", others["token"], envd, world.key):
            refused = await client.get(url, headers=heads(sandbox, 80, token))
            assert refused.status_code == 403
            assert refused.json() == {"sandboxId": to_e2b(sandbox), "code": 403, "message": refused.json()["message"]}
        assert (await world.client.get(f"/v1/sandboxes/{sandbox}/exposed/80")).json() == found


@dialogue()
async def test_what_is_closed_and_what_is_gone_is_told_in_the_words_that_sdks_look_for(world: World) -> None:
    sandbox = await world.create()
    async with an_ingress(world) as url, plain() as client:
        await expose(world, sandbox, 81, public=True)
        closed = await client.get(url, headers=heads(sandbox, 81))
        assert (closed.status_code, closed.json()["message"]) == (502, "The sandbox is running but port is not open")
        assert (await world.client.delete(f"/v1/sandboxes/{sandbox}")).status_code in (202, 204)
        for gone in (sandbox, "sb-" + "a" * 20):
            answer = await client.get(url, headers=heads(gone, 81))
            assert (answer.status_code, answer.json()["message"]) == (502, "The sandbox was not found")


@dialogue()
async def test_exposed_ports_are_listed_kept_over_a_restart_and_gone_with_the_sandbox(world: World) -> None:
    sandbox = await world.create()
    async with an_ingress(world):
        for port in (8080, 80):
            await expose(world, sandbox, port)
        found = (await world.client.get(f"/v1/sandboxes/{sandbox}/exposed")).json()["ports"]
        assert [one["port"] for one in found] == [80, 8080]
        assert (await world.client.put(f"/v1/sandboxes/{sandbox}/exposed/49983", json={})).status_code == 400
        assert (await world.client.put(f"/v1/sandboxes/{sandbox}/exposed/0", json={})).status_code == 400
        stranger = await world.other_tenant()
        assert (await stranger.put(f"/v1/sandboxes/{sandbox}/exposed/80", json={})).status_code == 404
        assert (await stranger.get(f"/v1/sandboxes/{sandbox}/exposed")).status_code == 404
        await stranger.aclose()


@dialogue()
async def test_the_apis_own_address_serves_ports_as_well(world: World) -> None:
    sandbox = await world.create()
    async with an_ingress(world), plain() as client:
        await expose(world, sandbox, 80, public=True)
        for _ in range(3):
            assert (await client.get(world.url, headers=heads(sandbox, 80))).text == "ok"
            assert (await client.get(f"{world.url}/healthz")).json()["status"] == "ok"
        answer = await client.get(world.url, headers=heads(sandbox, 80) | {"Host": "evil.example.com"})
        assert answer.status_code == 403  # a name that was rebound to us
        assert (await client.get(world.url, headers=heads(sandbox, 80) | {"Origin": "https://app.example.com"})).text == "ok"


@dialogue()
async def test_what_is_behind_a_request_for_a_port_is_never_the_apis(world: World) -> None:
    sandbox = await world.create()
    async with an_ingress(world):
        await expose(world, sandbox, 80, public=True)
        fields = "".join(f"{name}: {value}\r\n" for name, value in heads(sandbox, 80).items())
        port = f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n{fields}\r\n".encode()
        own = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        answer = await world.raw(port + own)
        assert answer.count(b"HTTP/1.1 200") == 1
        assert answer.endswith(b"ok")
        answer = await world.raw(own + port)  # in one piece: who would read the second one from where?
        assert b"\r\n\r\nok" not in answer


@dialogue()
async def test_without_an_ingress_the_api_says_so_and_goes_on(world: World) -> None:
    sandbox = await world.create()
    async with plain() as client:
        answer = await client.get(world.url, headers=heads(sandbox, 80))
        assert (answer.status_code, answer.json()["code"]) == (503, 503)
        assert (await client.get(f"{world.url}/healthz")).status_code == 200


@dialogue(domain=DOMAIN)
async def test_names_below_the_domain_lead_to_ports_to_the_sandboxs_own_api_and_to_ours(world: World) -> None:
    sandbox = await world.create()
    name = to_e2b(sandbox)
    async with an_ingress(world) as url, plain() as client:
        found = await expose(world, sandbox, 80, public=True)
        assert httpx.URL(found["url"]).host == f"80-{name}.{DOMAIN}"
        assert (await client.get(url, headers={"Host": f"80-{name}.{DOMAIN}"})).text == "ok"
        listed = await client.get(f"{url}/v1/sandboxes", headers={"Host": f"api.{DOMAIN}", "X-API-Key": world.key})
        assert [one["id"] for one in listed.json()["sandboxes"]] == [sandbox]
        assert (await client.get(f"{url}/v1/sandboxes", headers={"Host": f"api.{DOMAIN}"})).status_code == 401
        own = {"Host": f"49983-{name}.{DOMAIN}"}
        assert (await client.get(f"{url}/health", headers=own)).status_code == 204
        assert (await client.get(f"{url}/files?path=/etc/hostname", headers=own)).status_code == 401
        assert (await client.get(f"{url}/init", headers=own)).status_code == 404
        assert (await client.get(f"{world.url}/", headers={"Host": f"80-{name}.{DOMAIN}"})).text == "ok"


@dialogue()
async def test_wrong_keys_through_the_ingress_are_counted_by_client_and_told_in_the_audit(world: World) -> None:
    reader, writer = await asyncio.open_unix_connection(world.instance.ports_socket)
    writer.write(api.word(api.Api("192.0.2.9", secure=True)) + b"GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: x\r\n\r\n")
    assert b" 401 " in await reader.readline()
    writer.close()


@dialogue()
async def test_an_ingress_that_was_taken_gets_no_more_than_its_clients(world: World) -> None:
    sandbox = await world.create()

    async def ask(data: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(world.instance.ports_socket)
        writer.write(data)
        try:
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()

    def refusal(answer: bytes) -> str:
        said = api.WordReader().receive(answer, api.ANSWER)
        assert isinstance(said, api.Refused)
        return said.reason

    assert refusal(await ask(api.word(api.Resolve(to_e2b(sandbox), 80)))) == "hidden"
    assert refusal(await ask(api.word(api.Resolve(to_e2b(sandbox), 49983)))) == "hidden"
    assert refusal(await ask(api.word(api.Resolve(sandbox[3:], 80)))) == "not_found"
    for nonsense in (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\1\xc0", b"\0\0\x10\x01" + bytes(5000)):
        assert await ask(nonsense) == b""
    # Nor is a client that it passes on handed back to it: that would go round for ever.
    fields = "".join(f"{name}: {value}\r\n" for name, value in heads(sandbox, 80).items())
    answer = await ask(api.word(api.Api("x")) + f"GET / HTTP/1.1\r\nHost: localhost\r\n{fields}Connection: close\r\n\r\n".encode())
    assert b" 502 " in answer.split(b"\r\n")[0]


@dialogue()
async def test_a_connection_to_a_port_keeps_a_sandbox_from_being_idle_and_its_end_does_not(world: World) -> None:
    sandbox = await world.create()
    assert world.services is not None
    activity, held = world.services.activity, world.node.sandboxes[sandbox].files
    async with an_ingress(world) as url, plain() as client:
        await expose(world, sandbox, 9, public=True)  # takes everything and says nothing
        asking = asyncio.create_task(client.get(url, headers=heads(sandbox, 9)))
        await until(lambda: held.opened == 1 and activity.active(sandbox) == 1)
        asking.cancel()
        await until(lambda: held.opened == 0 and activity.active(sandbox) == 0)


@dialogue()
async def test_connections_to_ports_are_bounded_by_control_as_well(world: World) -> None:
    sandbox = await world.create()
    most = limits.PORT_CONNECTIONS_PER_SANDBOX
    async with an_ingress(world):
        await expose(world, sandbox, 9, public=True)
        writers = []
        for _ in range(most):
            reader, writer = await asyncio.open_unix_connection(world.instance.ports_socket)
            writer.write(api.word(api.Resolve(to_e2b(sandbox), 9)))
            assert await asyncio.wait_for(reader.read(4096), 20)
            writers.append(writer)
        reader, writer = await asyncio.open_unix_connection(world.instance.ports_socket)
        writer.write(api.word(api.Resolve(to_e2b(sandbox), 9)))
        said = api.WordReader().receive(await asyncio.wait_for(reader.read(), 20), api.ANSWER)
        assert isinstance(said, api.Refused)
        assert said.reason == "busy"
        for one in (*writers, writer):
            one.close()
        await until(lambda: world.node.sandboxes[sandbox].files.opened == 0)


@dialogue(start=False)
async def test_a_sandbox_of_the_e2b_face_is_public_unless_it_was_told_otherwise(world: World) -> None:
    async with controlled(world):
        assert world.services is not None
        extras = world.services.e2b.extras
        sandbox = await world.create()
        async with an_ingress(world) as url, plain() as client:
            await extras.put(sandbox, Extras(made=True, public=True, mask_host="masked.example.com:${PORT}"))
            assert (await client.get(url, headers=heads(sandbox, 80))).text == "ok"
            assert b"host: masked.example.com:80\r\n" in world.node.sandboxes[sandbox].files.got_after_eof
            reader, writer = await asyncio.open_unix_connection(world.instance.ports_socket)
            writer.write(api.word(api.Resolve(to_e2b(sandbox), 49983)))  # which is control's, and nobody's in the guest
            said = api.WordReader().receive(await asyncio.wait_for(reader.read(), 20), api.ANSWER)
            assert isinstance(said, api.Refused)
            assert said.reason == "hidden"
            writer.close()
            await extras.put(sandbox, Extras(made=True, public=False))
            assert (await client.get(url, headers=heads(sandbox, 80))).status_code == 403
            token = world.services.e2b.tokens.traffic(sandbox)
            assert (await client.get(url, headers=heads(sandbox, 80, token))).text == "ok"
            await extras.put(sandbox, Extras(holds="x"))
            assert (await client.get(url, headers=heads(sandbox, 80, token))).status_code == 502
    async with controlled(world), an_ingress(world) as url, plain() as client:
        assert world.services is not None
        await world.services.e2b.extras.put(sandbox, Extras(exposed={"80": True}))
        assert (await client.get(url, headers=heads(sandbox, 80))).text == "ok"
    async with controlled(world), an_ingress(world) as url, plain() as client:  # and after a restart
        assert (await client.get(url, headers=heads(sandbox, 80))).text == "ok"
        assert json.loads((await world.client.get(f"/v1/sandboxes/{sandbox}/exposed/80")).text)["public"] is True


@dialogue()
async def test_traffic_wakes_what_a_rule_put_to_rest_and_not_what_somebody_did(world: World) -> None:
    sandbox = await world.create()
    async with an_ingress(world) as url, plain() as client:
        await expose(world, sandbox, 80, public=True)
        assert (await world.client.post(f"/v1/sandboxes/{sandbox}/suspend")).status_code == 200
        asleep = await client.get(url, headers=heads(sandbox, 80))
        assert (asleep.status_code, asleep.json()["message"]) == (502, "The sandbox was not found")
        assert (await world.client.post(f"/v1/sandboxes/{sandbox}/wake")).status_code == 200
        assert (await client.get(url, headers=heads(sandbox, 80))).text == "ok"
        ruled = await world.create(idle={"seconds": 1, "action": "suspend"})
        await expose(world, ruled, 80, public=True)
        await until(lambda: _phase(world, ruled, "suspended"))
        assert (await client.get(url, headers=heads(ruled, 80))).text == "ok"
        assert await world.phase(ruled) == "running"


async def _phase(world: World, sandbox: str, wanted: str) -> bool:
    return await world.phase(sandbox) == wanted
