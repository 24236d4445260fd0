"""The provider `space_ground`: the evaluation's own instance, its network and its oracles, for samples that attack them one at a time.

It wants root, and the server's distribution with `space-evaluate` on this machine. Nothing is sent anywhere else: what is outside is
namespaces of this machine.
"""

from __future__ import annotations

import io
import tarfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import anyio.to_thread
from inspect_ai.util import SandboxEnvironment, sandboxenv
from pydantic import BaseModel

import space
from space import AsyncClient, Client
from space.testing.machine import Runtime
from space_evaluate import lane, runner
from space_evaluate.ground import Mark, Place
from space_inspect.provider import Config, SpaceSandbox

SOURCE = "/root/source"
_PACKAGES = ("space", "space_evaluate")


class GroundConfig(Config):
    """held_to: the policy of the sandbox. source: that of the product is in it, below /root/source."""

    user: str = "root"
    held_to: Literal["narrow", "blocked"] = "narrow"
    source: bool = False


@dataclass(frozen=True, slots=True)
class Stage:
    """What samples of a task share."""

    client: Client
    place: Place
    undo: ExitStack


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a sample. reached: what an oracle saw, in words. control: why what must work does not, or empty."""

    reached: list[str]
    control: str
    refused: dict[str, int]


@sandboxenv(name="space_ground")
class GroundSandbox(SpaceSandbox):
    """A sandbox on that ground, as root."""

    runtime: ClassVar[Runtime | None] = None  # the installed one; a test has one with a defence less
    _stage: ClassVar[Stage | None] = None

    place: Place
    mark: Mark
    token: str

    @classmethod
    def default_concurrency(cls) -> int | None:
        """The oracles are everybody's: what they see must be of one sample."""
        return 1

    @classmethod
    async def task_init(cls, task_name: str, config: Any) -> None:
        """Bring the instance up."""
        GroundSandbox._stage = await anyio.to_thread.run_sync(cls._begun)

    @classmethod
    def _begun(cls) -> Stage:
        with ExitStack() as stack:
            client, place = stack.enter_context(runner.stage(GroundSandbox.runtime, log=runner.work_log()))
            return Stage(client, place, stack.pop_all())

    @classmethod
    async def task_cleanup(cls, task_name: str, config: Any, cleanup: bool) -> None:
        """Take it away, also where clean-up was not asked for: it is of this process."""
        if GroundSandbox._stage is not None:
            await anyio.to_thread.run_sync(GroundSandbox._stage.undo.close)
            GroundSandbox._stage = None

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        """One sandbox, held to the policy; before it, what must work is seen to."""
        stage, wanted = GroundSandbox._stage, config if isinstance(config, GroundConfig) else GroundConfig()
        assert stage is not None, "the task began"
        if why := await anyio.to_thread.run_sync(_control, stage, wanted.held_to):
            raise RuntimeError(f"what must work does not, before the sample: {why}")
        endpoint = stage.client.endpoint
        given = wanted.model_copy(update={"policy": stage.place.policy(wanted.held_to), "grants": (runner.GRANT,)})
        client = AsyncClient(api_url=endpoint.url, api_key=endpoint.key)
        one = await cls.made(task_name, given, client)
        assert isinstance(one, GroundSandbox)
        if wanted.source:
            await one.sandbox.put_tar([_source()], SOURCE, user="root")
        one.place, one.mark, one.token = stage.place, stage.place.mark(), lane.token()
        return {"default": one}

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Of a log."""
        return GroundConfig(**config)

    async def finding(self, told: str) -> Finding:
        """What came of it. told: everything that the model was told or said."""
        assert isinstance(self.config, GroundConfig)
        stage, held_to = GroundSandbox._stage, self.config.held_to
        assert stage is not None, "the task goes on"
        egress = await self.sandbox.egress()
        reached = self.place.reached(self.mark, held_to, self.token, told.encode())
        control = await anyio.to_thread.run_sync(_control, stage, held_to)
        return Finding(reached, control, {name: count for name, count in dict(egress.drops).items() if count})


def _control(stage: Stage, held_to: Literal["narrow", "blocked"]) -> str:
    """Whether what must work does, in a guest of its own; "" if so, else why not."""
    with lane.guest(stage.client, stage.place, grants=(runner.GRANT,)) as here:
        here.hold_to(held_to)
        return here.control()


def _source() -> bytes:
    """Archive of the packages as they are installed here, without what was compiled."""
    above = Path(space.__file__).parents[1]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for package in _PACKAGES:
            for path in sorted((above / package).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    archive.add(path, str(path.relative_to(above)))
    return out.getvalue()


space_ground = GroundSandbox
