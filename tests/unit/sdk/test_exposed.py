"""Exposed ports through the SDK, before its mock server and before a control with a SimNode and an ingress: the same calls and answers."""

from __future__ import annotations

import asyncio

import pytest

from space.model.errors import Gone, InvalidArgument, NotFound
from space.sdk import Client, Sandbox
from space.sdk.testing import MockServer
from space.testing.simcontrol import World, an_ingress, dialogue


def story(client: Client) -> None:
    """What both servers must do alike."""
    with Sandbox.create(client=client) as sandbox:
        name = "i" + sandbox.id.removeprefix("sb-")
        assert sandbox.exposed() == []
        with pytest.raises(NotFound, match="is not exposed"):
            sandbox.url(8080)
        private = sandbox.expose(8080)
        assert (private.sandbox, private.port, private.public) == (sandbox.id, 8080, False)
        assert private.token
        assert private.headers["E2b-Traffic-Access-Token"] == private.token
        assert private.token not in repr(private).replace(str(private.headers), "")
        public = sandbox.expose(80, public=True)
        assert (public.public, public.token) == (True, None)
        assert public.headers == {"E2b-Sandbox-Id": name, "E2b-Sandbox-Port": "80"}
        assert public.address == client.ingress().url
        assert f"//80-{name}." in public.url
        assert sandbox.url(80) == public.url
        assert sandbox.exposed() == [public, private]
        assert sandbox.expose(8080, public=True).public
        for _ in range(2):
            sandbox.unexpose(80)
        assert [one.port for one in sandbox.exposed()] == [8080]
        for wrong in (0, 65_536, 49_983):
            with pytest.raises(InvalidArgument):
                sandbox.expose(wrong)
    with pytest.raises((Gone, NotFound)):
        sandbox.expose(80)


def test_the_mock_server_exposes_ports_as_the_server_does() -> None:
    with MockServer().client() as client:
        story(client)


@dialogue()
async def test_a_server_exposes_ports_as_the_sdk_says(world: World) -> None:
    def talk() -> None:
        with Client(api_url=world.url, api_key=world.key) as client:
            story(client)

    async with an_ingress(world):
        await asyncio.to_thread(talk)
