"""Ports of a sandbox that others may reach, by an address of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from space.model.errors import InvalidArgument, ProtocolError
from space.model.ports import ExposedPort
from space.sdk.answers import record

if TYPE_CHECKING:
    from .client import AsyncClient


class AsyncSandboxPorts:
    """Of one sandbox."""

    _client: AsyncClient
    _path: str

    async def expose(self, port: int, *, public: bool = False) -> ExposedPort:
        """Let a server in the sandbox be reached at that port, from now on; idempotent.

        public: by anybody who knows its address. Otherwise by who sends the token that the answer has (it is among `headers`).
        """
        return record(ExposedPort, await self._client.call("PUT", self._exposed(port), json={"public": public}, repeatable=True))

    async def unexpose(self, port: int) -> None:
        """Let it be reached no more; connections that are open end. Idempotent."""
        await self._client.call("DELETE", self._exposed(port))

    async def exposed(self) -> list[ExposedPort]:
        """Ports that were exposed, by number."""
        answer = await self._client.call("GET", f"{self._path}/exposed")
        return [record(ExposedPort, one) for one in _listed(answer)]

    async def url(self, port: int) -> str:
        """Where an exposed port is reached. NotFound: it is not exposed."""
        return record(ExposedPort, await self._client.call("GET", self._exposed(port))).url

    def _exposed(self, port: int) -> str:
        if not 1 <= port <= 65_535:
            raise InvalidArgument(f"{port} is no port", hint="1 to 65535")
        return f"{self._path}/exposed/{port}"


def _listed(answer: Any) -> list[Any]:
    found = answer.get("ports") if isinstance(answer, dict) else None
    if not isinstance(found, list):
        raise ProtocolError("the server's answer holds no list of ports", hint="is the server of another version?")
    return found
