"""The sandbox provider `space`: a sandbox for each sample, on the server that SPACE_API_URL and SPACE_API_KEY name.

    Task(..., sandbox="space")
    Task(..., sandbox=SandboxEnvironmentSpec("space", Config(memory_mib=1024, policy="packages")))
    Task(..., sandbox=("space", "sandbox.toml"))     # the same fields in a file

A command is never repeated, also where Inspect would let it be after a timeout: nobody knows what the first one did.
"""

from __future__ import annotations

import posixpath
import secrets
import shlex
import tomllib
from pathlib import Path
from typing import Any

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from space import AsyncClient, AsyncSandbox
from space.model.errors import InvalidArgument, NotFound, PermissionDenied, SpaceError, TooLarge

_AT_ONCE = 8 << 20  # bytes of standard input that go along with a command; more of it goes through a file
_MOST_WORDS = 100 << 10  # bytes of a command's words that go in one request
_NO_PROGRAM, _SIGNALLED = 127, 128


class Config(BaseModel):
    """What each sample's sandbox is. policy: the name of a stored policy, or a document; without one nothing leaves it but what the
    tenant's own allows. user: of commands and files that name none; empty for the template's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    template: str = "base"
    cpus: int = 1
    memory_mib: int = 512
    disk_mib: int = 2048
    ttl_seconds: int = 4 * 3600
    user: str = ""
    policy: str | dict[str, Any] | None = None
    grants: tuple[str, ...] = ()
    env: dict[str, str] = {}

    def __hash__(self) -> int:
        """Inspect keeps configurations in a set."""
        return hash(self.model_dump_json())


@sandboxenv(name="space")
class SpaceSandbox(SandboxEnvironment):
    """One sandbox. Relative paths are below the home of its user."""

    def __init__(self, client: AsyncClient, sandbox: AsyncSandbox, config: Config, home: str) -> None:
        super().__init__()
        self.client, self.sandbox, self.config, self.home = client, sandbox, config, home

    # -- its life ------------------------------------------------------------------------------------------------
    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        """One sandbox, as the configuration says."""
        return {"default": await cls.made(task_name, configured(config), AsyncClient())}

    @classmethod
    async def made(cls, task_name: str, config: Config, client: AsyncClient) -> SpaceSandbox:
        """One of that client, which is closed with it."""
        try:
            sandbox = await AsyncSandbox.create(
                config.template,
                cpus=config.cpus,
                memory_mib=config.memory_mib,
                disk_mib=config.disk_mib,
                ttl_seconds=config.ttl_seconds,
                policy=config.policy,
                grants=config.grants,
                env=config.env,
                metadata={"inspect": task_name[:60] or "-"},
                client=client,
            )
            where = await sandbox.run(["pwd"], user=config.user or None, check=True)
        except BaseException:
            await client.aclose()
            raise
        return cls(client, sandbox, config, where.text.strip())

    @classmethod
    async def sample_cleanup(cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool) -> None:
        """Delete them; one that is gone is no fault."""
        for one in environments.values():
            if isinstance(one, SpaceSandbox):
                await one.aclose()

    async def aclose(self) -> None:
        """Delete the sandbox, and let go of its client."""
        try:
            await self.sandbox.delete()
        except NotFound:
            pass
        finally:
            await self.client.aclose()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Delete sandboxes that samples left behind: one of them, or all of this key's tenant that came from Inspect."""
        async with AsyncClient() as client:
            found = [
                one async for one in client.sandboxes() if "inspect" in one.spec.metadata and one.phase != "gone" and id in (None, one.id)
            ]
            for one in found:
                await client.call("DELETE", f"/v1/sandboxes/{one.id}")
                print(f"deleted {one.id}")

    @classmethod
    def config_files(cls) -> list[str]:
        """Beside a task."""
        return ["space.toml"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Of a log."""
        return Config(**config)

    # -- commands ------------------------------------------------------------------------------------------------
    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """As Inspect says, but that a command which ran into its time is not tried again."""
        whose, given, words = user or self.config.user or None, input.encode() if isinstance(input, str) else input, cmd
        beside: list[str] = []
        try:
            if sum(map(len, cmd)) > _MOST_WORDS:  # as a script that is nothing but the command
                words = ["/bin/sh", await self._beside(beside, f"exec {shlex.join(cmd)}\n".encode(), whose)]
            if given is not None and len(given) > _AT_ONCE:
                words, given = ["/bin/sh", "-c", 'exec "$@" < "$0"', await self._beside(beside, given, whose), *words], None
            result = await self.sandbox.run(
                words,
                cwd=posixpath.join(self.home, cwd or ""),
                env=env,
                user=whose,
                timeout=timeout,
                stdin=given,
                output_limit=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
            )
        except TooLarge:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, None) from None
        except PermissionDenied as error:
            raise PermissionError(str(error)) from None
        except (NotFound, InvalidArgument) as error:
            if user is not None and user in error.message and "user" in error.message:
                raise SandboxUserUnsupportedError(error.message) from None
            return ExecResult(success=False, returncode=_NO_PROGRAM, stdout="", stderr=error.message)
        finally:
            for path in beside:
                await self.sandbox.files.remove(path, missing_ok=True, user=whose)
        if result.timed_out:
            raise TimeoutError(f"{cmd[0]} did not end within {timeout} s")
        code = result.exit_code if result.exit_code is not None else _SIGNALLED + (result.signal or 0)
        return ExecResult(success=code == 0, returncode=code, stdout=result.text, stderr=result.error_text)

    async def _beside(self, kept: list[str], data: bytes, user: str | None) -> str:
        """A file of that data for one command."""
        kept.append(f"/tmp/.inspect-{secrets.token_hex(8)}")
        await self.sandbox.files.write(kept[-1], data, user=user)
        return kept[-1]

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """How a person gets in."""
        named = f" --user {user}" if user else ""
        return SandboxConnection(type="space", command=f"space shell {self.sandbox.id}{named}", container=self.sandbox.id)

    # -- files ---------------------------------------------------------------------------------------------------
    async def write_file(self, file: str, contents: str | bytes) -> None:
        """In the place of what was there; directories above it are made."""
        path, user = posixpath.join(self.home, file), self.config.user or None
        data = contents.encode() if isinstance(contents, str) else contents
        try:
            if await self._is_there(path):
                await self._must_be_writable(path)
            await self.sandbox.files.write(path, data, parents=True, user=user)
        except SpaceError as error:
            raise _as_local(error, path) from None

    async def _is_there(self, path: str) -> bool:
        if not await self.sandbox.files.exists(path, user=self.config.user or None):
            return False
        if await self.sandbox.files.is_directory(path, user=self.config.user or None):
            raise IsADirectoryError(f"{path} is a directory")
        return True

    async def _must_be_writable(self, path: str) -> None:
        """A file is replaced as a whole, which asks for nothing of the file itself; whoever uses it through Inspect expects that."""
        looked = await self.sandbox.run(["/usr/bin/test", "-w", path], user=self.config.user or None)
        if looked.exit_code != 0:
            raise PermissionError(f"{path} is not writable")

    async def read_file(self, file: str, text: bool = True) -> Any:
        """As text or bytes."""
        path, user = posixpath.join(self.home, file), self.config.user or None
        try:
            found = await self.sandbox.files.stat(path, user=user)
            if found.kind == "directory":
                raise IsADirectoryError(f"{path} is a directory")
            if found.size > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
            data = await self.sandbox.files.read(path, user=user)
        except SpaceError as error:
            raise _as_local(error, path) from None
        return data.decode() if text else data


def configured(config: Any) -> Config:
    """What somebody gave as configuration: nothing, ours, or the name of a file."""
    if config is None:
        return Config()
    if isinstance(config, str):
        return Config(**tomllib.loads(Path(config).read_text()))
    if not isinstance(config, Config):
        raise TypeError(f"the configuration of a sandbox of space is a {Config.__name__} or the name of a TOML file, not {config!r:.80}")
    return config


def _as_local(error: SpaceError, path: str) -> Exception:
    """The exception that Inspect knows."""
    kinds: dict[type[SpaceError], type[OSError]] = {NotFound: FileNotFoundError, PermissionDenied: PermissionError}
    for kind, local in kinds.items():
        if isinstance(error, kind):
            return local(f"{path}: {error.message}")
    return error


space = SpaceSandbox
