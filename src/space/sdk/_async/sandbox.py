"""A sandbox in the hand: make one or connect to one, run commands, start processes, reach files and ports, move trees, delete."""

from __future__ import annotations

import builtins
import posixpath
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import httpx

from space.model.errors import Conflict, Gone, InvalidArgument, NotFound, SpaceError, StreamCut
from space.model.ids import new_process_id
from space.model.process import ProcessInfo, ProcessState, PtySize
from space.model.sandbox import DEFAULT_CPUS, DEFAULT_DISK_MIB, DEFAULT_MEMORY_MIB, DEFAULT_TEMPLATE, Action, IdlePolicy, SandboxInfo
from space.sdk.answers import Metrics, MetricsHistory, TreeSummary, metrics_history, process_info, process_infos, record, sandbox_info
from space.sdk.archive import Limits, Links, Staging, Unpacked
from space.sdk.output import DEFAULT_OUTPUT_LIMIT, CommandFailed, ProcessStream, Result
from space.sdk.pack import Exclude, pack
from space.sdk.policies import PolicySource, policy_request
from space.sdk.request import (
    KEEP,
    Command,
    Counted,
    Keep,
    Sink,
    Stdin,
    checked_port,
    checked_size,
    download_target,
    idle_rule,
    local_source,
    process_document,
    process_request,
    segment,
    stdin_bytes,
    tree_query,
    upload_place,
)
from space.sdk.retry import UNDECIDED

from ._wait import invoke, offload, sleep
from .client import ABANDON_SECONDS, HEARTBEAT_LIMIT_SECONDS, AsyncClient, abandon
from .code import AsyncSandboxCode
from .credentials import AsyncSandboxCredentials
from .egress import AsyncSandboxEgress
from .exposed import AsyncSandboxPorts
from .files import AsyncFiles
from .forward import AsyncForward
from .lives import AsyncSandboxLives
from .ports import AsyncConnection
from .process import AsyncProcess
from .terminal import AsyncTerminal

CREATE_SECONDS = 330.0  # a cold boot in a queue of boots; the server gives up after 300 s
SETTLE_SECONDS = 0.2
PORT_SECONDS = 160.0  # in a sandbox that booted a port may have to become ready; the server gives up after 150 s
TREE_SECONDS = 150.0  # between two pieces of a tree; the server gives up after 120 s


class AsyncSandbox(AsyncSandboxEgress, AsyncSandboxCredentials, AsyncSandboxLives, AsyncSandboxCode, AsyncSandboxPorts):
    """One sandbox. `create` or `connect` make this object; as a context manager it deletes what it created.

    Cancelling a call (or Ctrl-C) closes its connection: a command ends with its connection.
    """

    def __init__(self, client: AsyncClient, info: SandboxInfo, *, owns_client: bool, deletes: bool) -> None:
        self._client = client
        self._info = info
        self._owns_client = owns_client
        self._deletes = deletes
        self._path = f"/v1/sandboxes/{segment(info.id)}"
        self.files = AsyncFiles(client, self._path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    @property
    def id(self) -> str:
        """The sandbox's identifier, `sb-...`."""
        return self._info.id

    # -- making one ----------------------------------------------------------------------------------------------------
    @classmethod
    async def create(
        cls,
        template: str = DEFAULT_TEMPLATE,
        *,
        cpus: int = DEFAULT_CPUS,
        memory_mib: int = DEFAULT_MEMORY_MIB,
        disk_mib: int = DEFAULT_DISK_MIB,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        ttl_seconds: int | None = None,
        idle: IdlePolicy | None = None,
        on_timeout: Action = "delete",
        wake_on_call: bool = True,
        policy: PolicySource | None = None,
        grants: Iterable[str] = (),
        idempotency_key: str | None = None,
        client: AsyncClient | None = None,
        api_url: str | None = None,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> Self:
        """A new sandbox, running. memory, disk: MiB. ttl_seconds: from now on (an hour unless given); then on_timeout says what becomes of
        it. idle: what does when nothing happens in it. wake_on_call: a call wakes it when one of these put it to rest. policy: what may
        leave it, as a table, TOML text, a path, or the name of a stored policy; without one the tenant's default, else nothing.
        grants: names of credentials that it has besides those that select it.

        The request carries an idempotency key (a random one unless given), so a repeat after a lost answer makes no second
        sandbox. When the call is cancelled (or Ctrl-C comes), or its outcome is unknown in the end, the sandbox that may be on its way is
        deleted; in the latter case not if the key was given: then a repeat of the call finds it. Raises NoCapacity, NotFound (no such
        template), InvalidArgument, ConnectionFailed and the other errors of the tree.
        """
        spec: dict[str, Any] = {"template": template, "cpus": cpus, "memory_mib": memory_mib, "disk_mib": disk_mib}
        spec |= {"env": dict(env or {}), "metadata": dict(metadata or {})} | ({} if ttl_seconds is None else {"ttl_seconds": ttl_seconds})
        spec |= ({} if idle is None else {"idle": idle_rule(idle)}) | ({} if on_timeout == "delete" else {"on_timeout": on_timeout})
        spec |= {} if wake_on_call else {"wake_on_call": False}
        spec |= ({} if policy is None else {"policy": policy_request(policy)}) | ({"grants": names} if (names := list(grants)) else {})
        headers = {"idempotency-key": idempotency_key or secrets.token_hex(16)}
        used = client or AsyncClient(api_url=api_url, api_key=api_key, transport=transport)
        try:
            answer = await used.call("POST", "/v1/sandboxes", json=spec, headers=headers, seconds=CREATE_SECONDS, repeatable=True)
            return cls(used, sandbox_info(answer), owns_client=client is None, deletes=True)
        except BaseException as error:
            if not isinstance(error, Exception) or (idempotency_key is None and isinstance(error, UNDECIDED)):
                await abandon(used, spec, headers)
            if client is None:
                await used.aclose()
            raise

    @classmethod
    async def connect(
        cls,
        sandbox_id: str,
        *,
        client: AsyncClient | None = None,
        api_url: str | None = None,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> Self:
        """A sandbox that is there already; leaving its context manager does not delete it. NotFound when there is none."""
        used = client or AsyncClient(api_url=api_url, api_key=api_key, transport=transport)
        try:
            answer = await used.call("GET", f"/v1/sandboxes/{segment(sandbox_id)}")
            return cls(used, sandbox_info(answer), owns_client=client is None, deletes=False)
        except BaseException:
            if client is None:
                await used.aclose()
            raise

    @classmethod
    async def list(
        cls,
        *,
        phase: str | None = None,
        metadata: Mapping[str, str] | None = None,
        client: AsyncClient | None = None,
        api_url: str | None = None,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> AsyncGenerator[SandboxInfo, None]:
        """Every sandbox of the key's tenant, fetched page by page as they are taken."""
        used = client or AsyncClient(api_url=api_url, api_key=api_key, transport=transport)
        try:
            async for info in used.sandboxes(phase=phase, metadata=metadata):
                yield info
        finally:
            if client is None:
                await used.aclose()

    # -- its life ------------------------------------------------------------------------------------------------------
    async def info(self) -> SandboxInfo:
        """What the server says of it now."""
        self._info = sandbox_info(await self._client.call("GET", self._path))
        return self._info

    def _child(self, info: SandboxInfo) -> Self:
        return type(self)(self._client, info, owns_client=False, deletes=True)

    @classmethod
    def _connected(cls, api_url: str | None, api_key: str | None) -> AsyncClient:
        return AsyncClient(api_url=api_url, api_key=api_key)

    @classmethod
    def _there(cls, client: AsyncClient, info: SandboxInfo, *, owns_client: bool) -> Self:
        return cls(client, info, owns_client=owns_client, deletes=False)

    async def noop(self) -> None:
        """A round trip to the daemon in the guest."""
        await self._client.call("POST", f"{self._path}/noop")

    async def metrics(self) -> Metrics:
        """Memory, processors, disk of the guest, and what its VM takes on the host."""
        return record(Metrics, await self._client.call("GET", f"{self._path}/metrics"))

    async def metrics_history(self, since: float | None = None) -> MetricsHistory:
        """The same figures over time, oldest first, as far back as the server keeps them. since: UNIX seconds."""
        params = None if since is None else {"since": repr(float(since))}
        return metrics_history(await self._client.call("GET", f"{self._path}/metrics/history", params=params))

    async def update(
        self,
        *,
        ttl_seconds: int | None = None,
        metadata: Mapping[str, str | None] | None = None,
        idle: IdlePolicy | Keep | None = KEEP,
        on_timeout: Action | None = None,
        wake_on_call: bool | None = None,
        revision: int | None = None,
    ) -> SandboxInfo:
        """Change what is given, leave the rest. ttl_seconds: from now on, longer or shorter. metadata: merged, None removes a name.

        idle: None for no such rule. revision: Conflict when it was changed by somebody else since this one. InvalidArgument when nothing
        was given.
        """
        wanted: dict[str, Any] = {} if ttl_seconds is None else {"ttl_seconds": ttl_seconds}
        wanted |= ({} if metadata is None else {"metadata": dict(metadata)}) | ({} if on_timeout is None else {"on_timeout": on_timeout})
        wanted |= {} if wake_on_call is None else {"wake_on_call": wake_on_call}
        wanted |= {} if isinstance(idle, Keep) else {"idle": None if idle is None else idle_rule(idle)}
        headers = None if revision is None else {"if-match": f'"{revision}"'}
        # Without a revision a second arrival changes nothing but the moment from which the time to live counts.
        answer = await self._client.call("PATCH", self._path, json=wanted, headers=headers, repeatable=revision is None)
        self._info = sandbox_info(answer)
        return self._info

    async def delete(self) -> None:
        """End it and remove everything of it. Idempotent: one that is gone already is no error."""
        with suppress(NotFound, Gone):
            await self._client.call("DELETE", self._path)
        self._deletes = False

    async def aclose(self) -> None:
        """Let go of it without deleting it; closes the connections that `create` or `connect` opened."""
        if self._owns_client:
            await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self._deletes:
                await self.delete()
        except SpaceError as fault:
            if error is None:
                raise
            error.add_note(f"and sandbox {self.id} could not be deleted: {fault}")
        finally:
            await self.aclose()

    # -- commands ------------------------------------------------------------------------------------------------------
    async def run(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: Stdin | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_stdout_bytes: Callable[[bytes], object] | None = None,
        on_stderr_bytes: Callable[[bytes], object] | None = None,
        capture: bool = True,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
        check: bool = False,
    ) -> Result:
        """Run a command to its end, its output delivered as it comes.

        command: a list of arguments, run as it is; or a string for `/bin/sh -c` (not a login shell). cwd: the user's home
        unless given. user: `user` unless given. timeout: seconds, then the whole process group is killed and `timed_out`
        set. stdin: up to 16 MiB, read to its end before the command starts. Text callbacks get whole characters
        (what is no UTF-8 as U+FFFD), byte callbacks the raw pieces. An exception of a callback ends the command and comes out.
        capture: keep the output for the result, up to `output_limit` bytes of each stream (TooLarge beyond).
        check: raise CommandFailed unless the command ended with exit code 0.

        Raises NotFound (no such program or sandbox), InvalidArgument, SandboxDied, StreamCut (the stream broke off, or no frame for
        30 s: nothing may be concluded) and the other errors of the tree. A command is never repeated.
        """
        given = None if stdin is None else await offload(stdin_bytes, stdin)
        body, headers = process_request(command, cwd=cwd, env=env, user=user, timeout=timeout, stdin=given)
        sinks = {"stdout": Sink(on_stdout, on_stdout_bytes), "stderr": Sink(on_stderr, on_stderr_bytes)}
        limit = HEARTBEAT_LIMIT_SECONDS
        path = f"{self._path}/processes"
        async with self._client.stream("POST", path, params={"stream": "1"}, content=body, headers=headers, seconds=limit) as response:
            stream = ProcessStream(capture=capture, limit=output_limit, request_id=response.headers.get("x-request-id"))
            try:
                async for data in self._client.pieces(response, limit):
                    for piece in stream.receive(data):
                        for callback, value in sinks[piece.stream].calls(piece.data):
                            await invoke(callback, value)
            except StreamCut:
                # A connection that breaks behind the exit frame takes nothing away.
                if not stream.has_ended:
                    raise
            result = stream.result()
        for sink in sinks.values():
            for callback, value in sink.calls(b"", final=True):
                await invoke(callback, value)
        if check and not result.ok:
            raise CommandFailed(command if isinstance(command, str) else " ".join(command), result)
        return result

    # -- processes -----------------------------------------------------------------------------------------------------
    async def start(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        pty: PtySize | None = None,
        stdin: bool = False,
        overflow: Literal["block", "drop_oldest"] = "drop_oldest",
        spool_bytes: int | None = None,
        process_id: str | None = None,
    ) -> AsyncProcess:
        """Start a process that lives on when nobody listens; returns when it runs.

        command, cwd, env, user, timeout: as in `run`. pty: give it a terminal of this size. stdin: keep its standard input open for
        `AsyncProcess.write_stdin` (a terminal's always is). Its output is kept by the server, up to `spool_bytes` (the server's setting
        unless given); beyond that the oldest is dropped and told as a `Gap`, or with overflow="block" the process waits while somebody is
        attached who has not read it.

        The request carries the process's id (a random one unless given: `pr-` and 16 hex digits), so a repeat after a lost answer makes no
        second process. When the call is cancelled (or Ctrl-C comes), or its outcome is unknown in the end, the process that may be on its
        way is deleted, unless its id was given: then a repeat of the call finds it.

        Raises NotFound (no such program or sandbox), InvalidArgument, NoCapacity, Conflict (another process has that id).
        """
        size = None if pty is None else checked_size(pty.rows, pty.cols)
        name = process_id or new_process_id()
        more = {"id": name, "pty": size, "stdin_open": True if stdin else None, "overflow": overflow, "spool_bytes": spool_bytes}
        body = process_document(command, cwd=cwd, env=env, user=user, timeout=timeout, **more)
        path, headers = f"{self._path}/processes", {"content-type": "application/json"}
        try:
            answer = await self._client.call("POST", path, content=body, headers=headers, repeatable=True)
            return AsyncProcess(self._client, self.id, process_info(answer))
        except BaseException as error:
            if process_id is None and (not isinstance(error, SpaceError) or isinstance(error, UNDECIDED)):
                # A start that arrives behind this is refused, so it matters not which of the two is quicker.
                with suppress(SpaceError):
                    await self._client.call("DELETE", f"{path}/{name}", seconds=ABANDON_SECONDS, repeatable=False)
            raise

    async def processes(self, state: ProcessState | None = None) -> builtins.list[ProcessInfo]:
        """The processes that were started in it, oldest first, ended ones too as long as the server keeps them."""
        params = None if state is None else {"state": state}
        return process_infos(await self._client.call("GET", f"{self._path}/processes", params=params))

    async def process(self, process_id: str) -> AsyncProcess:
        """A process that was started before, by anybody. NotFound when there is none, or its record was kept long enough."""
        answer = await self._client.call("GET", f"{self._path}/processes/{segment(process_id)}")
        return AsyncProcess(self._client, self.id, process_info(answer))

    async def shell(
        self,
        command: Command | None = None,
        *,
        rows: int = 24,
        cols: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> AsyncTerminal:
        r"""A terminal in the sandbox: the user's login shell, or `command`. A context manager; it ends with its connection.

        async with await sandbox.shell() as terminal:
            await terminal.send("exit 3\n")
            status = await terminal.wait()
        """
        wanted: Command = ["/bin/sh", "-c", 'exec "${SHELL:-/bin/sh}" -l'] if command is None else command
        process = await self.start(wanted, cwd=cwd, env=env, user=user, pty=PtySize(rows, cols), overflow="block")
        try:
            return await process.attach_terminal()
        except BaseException as error:
            try:
                await process.delete()
            except SpaceError as fault:
                error.add_note(f"and process {process.id} could not be deleted: {fault}")
            raise

    # -- ports ---------------------------------------------------------------------------------------------------------
    async def connect_port(self, port: int) -> AsyncConnection:
        """A connection to what listens on this port of the sandbox's 127.0.0.1 or ::1. NotFound when nothing does."""
        checked_port(port)
        return AsyncConnection(await self._client.socket(f"{self._path}/ports/{port}", seconds=PORT_SECONDS))

    def forward(self, local: int, remote: int, *, host: str = "127.0.0.1") -> AsyncForward:
        """Let a port of this machine lead to a port in the sandbox, while the block lasts. local: 0 takes a free one.

        async with sandbox.forward(0, 8000) as forward:
            host, port = forward.address
        """
        checked_port(remote)
        return AsyncForward(lambda: self.connect_port(remote), host, local, alive=self.info)

    # -- trees ---------------------------------------------------------------------------------------------------------
    async def upload(
        self,
        local_path: str | Path,
        guest_path: str,
        *,
        user: str | None = None,
        exclude: Exclude = (),
        on_progress: Callable[[int], object] | None = None,
    ) -> TreeSummary:
        """Send a file or a directory. `guest_path` is its name there; with a trailing slash, the directory that it goes into.

        A directory's contents are merged into one that is there. Symbolic links stay links. `exclude`: see `space.sdk.pack`.
        A path that is not absolute begins at the user's home. Size and checksum are compared before this returns. A file appears whole or
        not at all, and so does a directory that was not there, unless this program dies as well; into one that was, what comes is merged
        as it comes, and what had come before a failure stays.
        on_progress: called with the bytes that were sent so far, from any thread.
        """
        source = local_source(local_path)
        if not await offload(source.exists):
            raise InvalidArgument(f"there is no {source}")
        is_directory = await offload(source.is_dir)
        place, name = upload_place(guest_path, (await offload(source.absolute)).name, is_directory=is_directory)
        if is_directory:
            doomed = None if await self.files.exists(place, user=user) else place
            try:
                return await self.put_tar(pack(source, name=name, exclude=exclude), place, user=user, on_progress=on_progress)
            except BaseException:
                await self._unmake(doomed, user)
                raise
        beside = f".space-{secrets.token_hex(8)}"
        try:
            tree = pack(source, name=beside, exclude=exclude)
            summary = await self.put_tar(tree, place, user=user, on_progress=on_progress)
            if summary.entries:
                await self.files.move(posixpath.join(place, beside), posixpath.join(place, name), replace=True, user=user)
        except BaseException as error:
            await self._unmake(posixpath.join(place, beside), user)
            refused = isinstance(error, (Conflict, InvalidArgument)) and not guest_path.endswith("/")
            if refused and await self.files.is_directory(guest_path, user=user):
                raise Conflict(f"{guest_path!r} is a directory", hint="end it with / to copy into it") from error
            raise
        return summary

    async def _unmake(self, path: str | None, user: str | None) -> None:
        """Remove what a failed upload has made. Twice: its last piece may still be on its way when its connection was closed."""
        if path is not None:
            for pause in (0.0, SETTLE_SECONDS):
                with suppress(SpaceError):
                    await sleep(pause)
                    await self.files.remove(path, recursive=True, missing_ok=True, user=user)

    async def put_tar(
        self,
        stream: Iterable[bytes],
        guest_path: str,
        *,
        user: str | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> TreeSummary:
        """Unpack a tar stream in the directory `guest_path` (made if missing) as that user. `stream`: pieces, as an open file gives."""
        counted = Counted(stream, on_progress)

        async def body() -> AsyncIterator[bytes]:
            while piece := await offload(counted.step):
                yield piece

        headers = {"content-type": "application/x-tar"}
        params = tree_query(guest_path, user)
        path = f"{self._path}/tree"
        async with self._client.stream("PUT", path, params=params, content=body(), headers=headers, seconds=TREE_SECONDS) as response:
            await response.aread()
            return counted.compare(record(TreeSummary, response.json()))

    async def download(
        self,
        guest_path: str,
        local_path: str | Path,
        *,
        user: str | None = None,
        replace: bool = False,
        links: Links = "refuse",
        limits: Limits | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> Unpacked:
        """Fetch a file or a directory, unpacked safely: see `space.sdk.archive` for what is refused.

        `local_path` is its name here; an existing directory, or a trailing slash, means into that directory, under its own name.
        A file replaces a file; what else is there is a Conflict, unless `replace`; a device or pipe always is. Nothing is left of a tree
        that was refused or cut off. links: "skip" leaves out symbolic links that lead out of the tree (of a venv, say).
        on_progress: called with the bytes that have come so far.
        """
        target, came = await offload(download_target, local_path, guest_path), 0
        with Staging(target.parent, limits=limits, links=links) as staging:
            async with aclosing(self.get_tar(guest_path, user=user)) as pieces:
                async for piece in pieces:
                    await offload(staging.receive, piece)
                    came += len(piece)
                    if on_progress is not None:
                        on_progress(came)
            return await offload(staging.commit, target, replace=replace)

    async def get_tar(self, guest_path: str, *, user: str | None = None) -> AsyncGenerator[bytes, None]:
        """The tar stream of a file or directory, in pieces, as the guest wrote it: do not unpack it with a tool that trusts it."""
        params = tree_query(guest_path, user)
        headers = {"accept": "application/x-tar"}
        async with self._client.stream("GET", f"{self._path}/tree", params=params, headers=headers, seconds=TREE_SECONDS) as response:
            async for piece in self._client.pieces(response, TREE_SECONDS):
                yield piece
