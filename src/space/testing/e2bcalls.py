"""Calls of the in-sandbox API without any SDK: what goes over the wire, and what comes back."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from space.control.e2b.ids import to_e2b
from space.core.wire import envelopes
from space.testing.simcontrol import World


@dataclass(frozen=True, slots=True)
class Told:
    """A stream that has ended. code: of its fault, empty for none."""

    events: list[dict[str, Any]]
    code: str = ""
    message: str = ""

    @property
    def stdout(self) -> bytes:
        """All of it."""
        return self.output("stdout")

    def output(self, name: str) -> bytes:
        """All bytes of an output."""
        return b"".join(base64.b64decode(event["data"].get(name, "")) for event in self.events if "data" in event)

    @property
    def end(self) -> dict[str, Any]:
        """How the process ended."""
        return dict(next(event["end"] for event in self.events if "end" in event))

    @property
    def pid(self) -> int:
        """The process's."""
        return int(self.events[0]["start"]["pid"])


@dataclass(slots=True)
class Envd:
    """One sandbox's."""

    world: World
    sandbox: str
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    async def create(cls, world: World, **spec: Any) -> Envd:
        """A new sandbox's, with its token."""
        sandbox = await world.create(**spec)
        assert world.services is not None
        token = world.services.e2b.tokens.envd(sandbox)
        return cls(world, sandbox, {"E2b-Sandbox-Id": to_e2b(sandbox), "E2b-Sandbox-Port": "49983", "X-Access-Token": token})

    def client(self) -> httpx.AsyncClient:
        """One without a key."""
        return httpx.AsyncClient(base_url=self.world.url, headers=self.headers, timeout=30, trust_env=False)

    async def ask(self, method: str, message: Any = None, *, user: str | None = None, status: int = 200, **headers: str) -> dict[str, Any]:
        """A call with one answer: `process.Process/List`."""
        async with self.client() as client:
            head = {"Content-Type": "application/json", "Connect-Protocol-Version": "1", **_as(user), **_dashed(headers)}
            answer = await client.post("/" + method, content=json.dumps(message or {}), headers=head)
        assert answer.status_code == status, answer.text
        return dict(answer.json())

    async def refused(self, method: str, message: Any = None, *, user: str | None = None, **headers: str) -> tuple[int, str, str]:
        """A call that fails: status, code, message."""
        async with self.client() as client:
            head = {"Content-Type": "application/json", **_as(user), **_dashed(headers)}
            answer = await client.post("/" + method, content=json.dumps(message or {}), headers=head)
        body = answer.json()
        return answer.status_code, body["code"], body["message"]

    async def follow(self, method: str, *messages: Any, user: str | None = None, **headers: str) -> AsyncIterator[dict[str, Any]]:
        """A call with a stream: its messages, the last one too (`{"end of stream": ...}`)."""
        body = b"".join(envelopes.encode(json.dumps(message).encode()) for message in messages)
        head = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1", **_as(user), **_dashed(headers)}
        decoder = envelopes.Decoder(1 << 20)
        async with self.client() as client, client.stream("POST", "/" + method, content=body, headers=head) as answer:
            assert answer.status_code == 200, await answer.aread()
            assert answer.headers["content-type"] == "application/connect+json"
            async for piece in answer.aiter_raw():
                for envelope in decoder.feed(piece):
                    found = json.loads(envelope.payload)
                    yield {"end of stream": found} if envelope.ends else found

    async def run(self, method: str, *messages: Any, user: str | None = None, **headers: str) -> Told:
        """The same, to its end."""
        events: list[dict[str, Any]] = []
        async for message in self.follow(method, *messages, user=user, **headers):
            if "end of stream" in message:
                error = message["end of stream"].get("error", {})
                return Told(events, error.get("code", ""), error.get("message", ""))
            events.append(message.get("event", message))
        raise AssertionError("the stream has no end")

    async def start(self, cmd: str, *args: str, user: str | None = None, headers: dict[str, str] | None = None, **more: Any) -> Told:
        """Start a program, to its end."""
        return await self.run("process.Process/Start", program(cmd, *args, **more), user=user, **(headers or {}))


def program(cmd: str, *args: str, cwd: str | None = None, envs: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """The message of a Start."""
    process = {"cmd": cmd, "args": list(args), **({"cwd": cwd} if cwd else {}), **({"envs": envs} if envs else {})}
    return {"process": process, "stdin": False, **more}


def encoded(data: bytes) -> str:
    """Bytes in JSON."""
    return base64.b64encode(data).decode()


def _as(user: str | None) -> dict[str, str]:
    return {} if user is None else {"Authorization": "Basic " + encoded(f"{user}:".encode())}


def _dashed(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
