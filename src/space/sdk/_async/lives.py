"""The life of a sandbox: paused, suspended, stopped, woken, taken back to an instant, forked."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from space.model.errors import ProtocolError
from space.model.sandbox import Checkpoint, SandboxInfo
from space.sdk.answers import record, sandbox_info
from space.sdk.request import segment

if TYPE_CHECKING:
    from .client import AsyncClient

LIFE_SECONDS = 330.0  # memory goes to the disk or comes from it, in a queue of others; the server gives up after 300 s


class AsyncSandboxLives:
    """Of one sandbox."""

    _client: AsyncClient
    _path: str
    _info: SandboxInfo

    def _child(self, info: SandboxInfo) -> Self:
        """A sandbox that a fork made, with the same client."""
        raise NotImplementedError

    async def pause(self) -> None:
        """Stop its processors; memory and processes stay. Idempotent."""
        await self._live("pause", repeatable=False)

    async def resume(self) -> None:
        """Let a paused one's processors run. Idempotent. `wake` does it too, and whatever else it takes."""
        await self._live("resume", repeatable=False)

    async def suspend(self) -> None:
        """Store its memory, processes and disk, and free the memory that it took. Idempotent.

        Its time to live stands still until it wakes.
        """
        await self._live("suspend")

    async def stop(self) -> None:
        """Shut its guest down and keep its disk; processes end. Idempotent. Its time to live stands still until it wakes."""
        await self._live("stop")

    async def wake(self, *, cold: bool = False) -> None:
        """Whatever it takes until it runs: resume, go on from stored memory, or boot from its disk (stopped, or failed). Idempotent.

        cold: boot a suspended one from its disk and give its stored memory up, as where that cannot be gone on from (Conflict says so).
        """
        await self._live("wake", json={"cold": True} if cold else None)

    async def checkpoint(self) -> Checkpoint:
        """Keep memory and disk of this instant; it goes on after some milliseconds."""
        return record(Checkpoint, await self._client.call("POST", f"{self._path}/checkpoint", seconds=LIFE_SECONDS))

    async def checkpoints(self) -> list[Checkpoint]:
        """Its checkpoints, oldest first."""
        answer = await self._client.call("GET", f"{self._path}/checkpoints")
        return [record(Checkpoint, one) for one in _listed(answer, "checkpoints")]

    async def drop_checkpoint(self, checkpoint: Checkpoint | str) -> None:
        """Forget a checkpoint. Idempotent."""
        await self._client.call("DELETE", f"{self._path}/checkpoints/{segment(_name(checkpoint))}")

    async def rollback(self, checkpoint: Checkpoint | str) -> None:
        """Make it what it was at a checkpoint, memory, processes and disk; its present is lost. NotFound when there is no such one."""
        await self._live("rollback", json={"checkpoint": _name(checkpoint)}, repeatable=False)

    async def fork(
        self,
        count: int = 1,
        *,
        ttl_seconds: int | None = None,
        metadata: Mapping[str, str] | None = None,
        grants: Sequence[str] = (),
        idempotency_key: str | None = None,
    ) -> list[Self]:
        """Children of this instant, each a sandbox of its own that goes on from here; this one goes on too. All of them run, or none.

        ttl_seconds, metadata: of each; as this one's unless given. grants: names of those that each has besides those that select it; this
        one's are not theirs. Leaving a child's context manager deletes it. The request carries an
        idempotency key (a random one unless given), so a repeat after a lost answer makes no second children.
        """
        wanted: dict[str, Any] = {"count": count} | ({} if ttl_seconds is None else {"ttl_seconds": ttl_seconds})
        wanted |= {} if metadata is None else {"metadata": dict(metadata)}
        wanted |= {"grants": list(grants)} if grants else {}
        headers = {"idempotency-key": idempotency_key or secrets.token_hex(16)}
        answer = await self._client.call("POST", f"{self._path}/fork", json=wanted, headers=headers, seconds=LIFE_SECONDS, repeatable=True)
        return [self._child(sandbox_info(one)) for one in _listed(answer, "sandboxes")]

    async def keep_as_template(self, reference: str, *, idempotency_key: str | None = None) -> dict[str, Any]:
        """Make a template `name` or `name:tag` of its disk of this instant; it goes on. What its processes have in memory is not in it.

        The request carries an idempotency key (a random one unless given), so a repeat after a lost answer makes no second one.
        """
        name, _, tag = reference.partition(":")
        wanted = {"name": name} | ({"tag": tag} if tag else {})
        headers = {"idempotency-key": idempotency_key or secrets.token_hex(16)}
        return dict(
            await self._client.call("POST", f"{self._path}/template", json=wanted, headers=headers, seconds=LIFE_SECONDS, repeatable=True)
        )

    async def export(self, target: str | Path) -> int:
        """Write a suspended one to a file (zstd, without holes), which is whole or not there; its bytes. Conflict when it is there already,
        or while the sandbox is not suspended. The file holds all of its memory, secrets that a program had in it too; the server that wrote
        it makes a sandbox of it again, and no other does.
        """
        return await self._client.fetch_file(f"{self._path}/file", target)

    @classmethod
    async def import_file(
        cls, source: str | Path, *, client: AsyncClient | None = None, api_url: str | None = None, api_key: str | None = None
    ) -> Self:
        """A suspended sandbox of such a file: another one than went out, which wakes with the same memory, processes and disk. Leaving its
        context manager does not delete it. InvalidArgument: it is none, not whole, or another server's; nothing is made then.
        """
        used = client or cls._connected(api_url, api_key)
        try:
            return cls._there(used, sandbox_info(await used.send_file("/v1/sandboxes/file", source)), owns_client=client is None)
        except BaseException:
            if client is None:
                await used.aclose()
            raise

    @classmethod
    def _connected(cls, api_url: str | None, api_key: str | None) -> AsyncClient:
        """A client of its own."""
        raise NotImplementedError

    @classmethod
    def _there(cls, client: AsyncClient, info: SandboxInfo, *, owns_client: bool) -> Self:
        """A sandbox that is not deleted when its context manager is left."""
        raise NotImplementedError

    async def _live(self, verb: str, *, json: Any = None, repeatable: bool = True) -> None:
        answer = await self._client.call("POST", f"{self._path}/{verb}", json=json, seconds=LIFE_SECONDS, repeatable=repeatable)
        self._info = sandbox_info(answer)


def _name(checkpoint: Checkpoint | str) -> str:
    return checkpoint.id if isinstance(checkpoint, Checkpoint) else checkpoint


def _listed(answer: Any, name: str) -> list[Any]:
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, list):
        raise ProtocolError(f"the server's answer holds no list of {name}", hint="is the server of another version?")
    return found
