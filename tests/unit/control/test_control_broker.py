"""The same routes before the real broker, a process of its own: what is kept, refused and sealed there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from space.rpc.broker_client import BrokerControl
from space.testing.brokerprocess import BrokerProcess
from space.testing.simcontrol import World, dialogue

CANARY = "canary-9a1d70c4ef"
GRANT: dict[str, Any] = {"secret": "token", "where": {"host": "api.example.com"}, "slot": {"kind": "header"}}


@asynccontextmanager
async def brokered(world: World) -> AsyncIterator[BrokerProcess]:
    """The node's questions about credentials go to a broker."""
    directory = world.instance.data_root.parent
    broker = BrokerProcess(directory)
    broker.start()
    control = BrokerControl.connect(broker.socket)
    world.node.credentials.broker = lambda: control  # type: ignore[method-assign]
    try:
        yield broker
    finally:
        control.close()
        broker.stop()


@dialogue()
async def test_the_broker_keeps_what_the_routes_pass_on_and_no_file_of_its_holds_the_value(world: World) -> None:
    async with brokered(world):
        client = world.client
        made = await client.post("/v1/secrets/token", json={"value": CANARY, "labels": {"a": "b"}, "expires": "2030-01-01T00:00:00Z"})
        assert (made.status_code, made.json()["version"], made.json()["labels"]) == (201, 1, {"a": "b"}), made.text
        assert (await client.post("/v1/secrets/token", json={"value": CANARY})).status_code == 409
        assert (await client.post("/v1/secrets/other/rotate", json={"value": CANARY})).status_code == 404
        assert (await client.post("/v1/secrets/token/rotate", json={"value": CANARY + "2"})).json()["version"] == 2
        aws = {"kind": "aws", "value": {"secret_access_key": CANARY}, "public": {"access_key_id": "AKIDEXAMPLE"}}
        assert (await client.put("/v1/secrets/s3", json=aws)).json()["public"] == {"access_key_id": "AKIDEXAMPLE"}
        assert (await client.post("/v1/grants/none", json=GRANT | {"secret": "missing"})).status_code == 404
        assert (await client.post("/v1/grants/wrong", json=GRANT | {"secret": "s3"})).status_code == 400, "aws is signed, not shown"
        granted = await client.post("/v1/grants/g", json=GRANT | {"uses": 3, "who": {"labels": {"team": "a"}}})
        assert (granted.status_code, granted.json()["used"]) == (201, 0), granted.text
        assert (await client.post("/v1/grants/g", json=GRANT)).status_code == 409
        assert (await client.delete("/v1/secrets/token")).status_code == 409
        sandbox = await world.create(grants=["g"])
        assert (await client.get(f"/v1/sandboxes/{sandbox}/grants")).json() == {"grants": ["g"]}
        assert (await client.get("/v1/grants/g")).json()["attached"] == 1
        assert (await client.post("/v1/sandboxes", json={"grants": ["missing"]})).status_code == 404
        assert (await client.delete(f"/v1/sandboxes/{sandbox}/grants/g")).status_code == 204
        assert (await client.get(f"/v1/sandboxes/{sandbox}/grants")).json() == {"grants": []}
        assert [one["name"] for one in (await client.get("/v1/secrets")).json()["secrets"]] == ["s3", "token"]
        assert [one["name"] for one in (await client.get("/v1/grants?secret=token")).json()["grants"]] == ["g"]
        assert (await client.post("/v1/grants/g/revoke")).json()["revoked_at"] is not None
        assert (await client.delete("/v1/grants/g")).status_code == 204
        assert (await client.post("/v1/secrets/token/revoke")).json()["revoked_at"] is not None
        assert (await client.delete("/v1/secrets/token")).status_code == 204
    assert _holding(world.instance.data_root.parent, CANARY) == []


@dialogue()
async def test_seventy_secrets_of_the_broker_are_listed_once_each(world: World) -> None:
    async with brokered(world):
        for number in range(70):
            assert (await world.client.post(f"/v1/secrets/s{number:03}", json={"value": "x"})).status_code == 201
        first = (await world.client.get("/v1/secrets?limit=50")).json()
        rest = (await world.client.get(f"/v1/secrets?limit=50&cursor={first['next_cursor']}")).json()
        assert [one["name"] for one in first["secrets"] + rest["secrets"]] == [f"s{number:03}" for number in range(70)]


def _holding(directory: Path, text: str) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
