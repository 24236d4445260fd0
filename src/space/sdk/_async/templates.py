"""Templates: the part of a client that lists, builds, tags and deletes them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import httpx

from space.model.errors import InvalidArgument, ProtocolError, from_code
from space.sdk.buildfiles import digest, packed, recipe_text
from space.sdk.localfile import Arriving, told
from space.sdk.request import segment

from ._wait import offload

BUILD_SECONDS = 24 * 3600.0
BUNDLE_SECONDS = 300.0  # between two pieces of a template's file
_HEARTBEAT_LIMIT_SECONDS = 30.0
_BUNDLE = "application/zstd"


class AsyncClientTemplates:
    """Of one server."""

    call: Callable[..., Any]
    stream: Callable[..., Any]
    lines: Callable[..., Any]
    pieces: Callable[..., Any]

    async def templates(self) -> list[dict[str, Any]]:
        """What sandboxes can be made of: the shipped templates, then the tenant's own."""
        answer = await self.call("GET", "/v1/templates")
        return [dict(item) for item in _listed(answer, "templates")]

    async def template(self, reference: str) -> dict[str, Any]:
        """One, by `name` or `name:tag`. NotFound."""
        path, params = _place(reference)
        return dict(await self.call("GET", path, params=params))

    async def delete_template(self, reference: str, *, force: bool = False) -> None:
        """Take the tag away, and with a build's last one its disk. Conflict while sandboxes of it are there, unless forced."""
        path, params = _place(reference)
        await self.call("DELETE", path, params=params | ({"force": "1"} if force else {}))

    async def tag_template(self, reference: str, build: str) -> dict[str, Any]:
        """Let `name:tag` lead to a build by its digest."""
        path, params = _place(reference)
        tag = params.get("tag", "latest")
        return dict(await self.call("PUT", f"{path}/tags/{segment(tag)}", json={"digest": build}, repeatable=True))

    async def rebake_template(self, reference: str) -> dict[str, Any]:
        """Make its disk boot with the kernel, initramfs and VMM that the server's machine has now."""
        path, params = _place(reference)
        return dict(await self.call("POST", f"{path}/rebake", params=params))

    async def export_template(self, reference: str, target: str | Path) -> int:
        """Write it to a file (zstd, without its holes), which is whole or not there; its bytes. Conflict when it is there already."""
        path, params = _place(reference)
        return await self.fetch_file(f"{path}/file", target, params)

    async def import_template(self, source: str | Path, reference: str) -> dict[str, Any]:
        """Make a template of such a file, under `name:tag`. InvalidArgument: it is none, or not whole; nothing is made then."""
        path, params = _place(reference)
        return dict(await self.send_file(f"{path}/file", source, params))

    async def fetch_file(self, path: str, target: str | Path, params: Mapping[str, str] = MappingProxyType({})) -> int:
        """Have what the server exports there in a file, which is whole or not there, and its owner's alone (0600); its bytes.

        Conflict when it is there already.
        """
        size = 0
        file = await offload(Arriving, target)
        try:
            headers = {"accept": _BUNDLE}
            async with self.stream("GET", path, params=dict(params), headers=headers, seconds=BUNDLE_SECONDS) as response:
                async for piece in self.pieces(response, BUNDLE_SECONDS):
                    await offload(file.write, piece)
                    size += len(piece)
            await offload(file.commit)
        finally:
            await offload(file.close)
        return size

    async def send_file(self, path: str, source: str | Path, params: Mapping[str, str] = MappingProxyType({})) -> Any:
        """Have the server import a file there; its answer. InvalidArgument when it cannot be read."""
        with told("read", Path(source)):
            file = await offload(Path(source).open, "rb")
        with file:

            async def body() -> AsyncIterator[bytes]:
                while piece := await offload(_piece, file, Path(source)):
                    yield piece

            headers = {"content-type": _BUNDLE}
            async with self.stream("POST", path, params=dict(params), content=body(), headers=headers, seconds=BUNDLE_SECONDS) as response:
                await response.aread()
                return response.json()

    async def prune(self, *, keep_seconds: int = 0, dry_run: bool = False) -> dict[str, Any]:
        """Drop what builds keep to be faster. An admin's key."""
        return dict(await self.call("POST", "/v1/prune", json={"keep_seconds": keep_seconds, "dry_run": dry_run}))

    async def plan_template(self, recipe: str) -> dict[str, Any]:
        """What has to come along with a recipe's text. InvalidArgument has every mistake with its path."""
        return dict(await self.call("POST", "/v1/builds/plan", json={"recipe": recipe}, repeatable=True))

    async def build_template(
        self, recipe: Path, *, name: str = "", tag: str = "latest", downloads: Path | None = None
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Build a recipe file: yields the lines of its log as they come; the last has the digest. BuildFailed names the step.

        What the recipe copies is read below its directory. downloads: a directory with what it lists, `<kind>/<file>`. Leaving early
        ends the build.
        """
        text = await offload(recipe_text, recipe)
        planned = await self.plan_template(text)
        inputs = [str(each) for each in planned["inputs"]]
        if planned["downloads"] and downloads is None:
            raise InvalidArgument("the recipe lists downloads", hint="`space template build` fetches them; or give the directory")
        asked = {
            "recipe": text,
            "name": name,
            "tag": tag,
            "inputs": {each: digest(recipe.parent / each) for each in inputs},
            "downloads": "" if downloads is None else digest(downloads),
        }
        build = await self.call("POST", "/v1/builds", json=asked)
        path, over = f"/v1/builds/{segment(str(build['id']))}", False

        async def body() -> AsyncIterator[bytes]:
            for piece in packed(recipe.parent, inputs, downloads):
                yield piece

        try:
            headers = {"content-type": "application/x-tar"}
            await self.call("PUT", f"{path}/files", body=body, headers=headers, seconds=BUILD_SECONDS, repeatable=False)
            async with self._log(path) as response, aclosing(self.lines(response, _HEARTBEAT_LIMIT_SECONDS)) as lines:
                async for line in lines:
                    if line.get("kind") == "heartbeat":
                        continue
                    over = line.get("kind") == "end"
                    if over and line.get("state") == "failed":
                        raise from_code(str(line.get("code")), str(line.get("reason")))
                    yield line
            if not over:
                raise ProtocolError("the build's log ended before the build")
        finally:
            if not over:
                await self.call("DELETE", path)

    @asynccontextmanager
    async def _log(self, path: str) -> AsyncIterator[httpx.Response]:
        params = {"follow": "1"}
        async with self.stream("GET", f"{path}/log", params=params, seconds=_HEARTBEAT_LIMIT_SECONDS) as response:
            yield response


def _place(reference: str) -> tuple[str, dict[str, str]]:
    name, _, tag = reference.partition(":")
    return f"/v1/templates/{segment(name)}", ({"tag": tag} if tag else {})


def _piece(file: BinaryIO, source: Path) -> bytes:
    with told("read", source):
        return file.read(256 << 10)


def _listed(answer: Any, name: str) -> list[Any]:
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, list):
        raise ProtocolError(f"the server's answer has no list {name!r}")
    return found
