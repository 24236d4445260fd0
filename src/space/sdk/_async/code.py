"""Code executed in a sandbox with a code interpreter: values, pictures and output as they come, with what was defined before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from space.model.errors import InvalidArgument, NotFound
from space.sdk.code import (
    DEFAULT_SECONDS,
    NO_INTERPRETER,
    PORT,
    CodeContext,
    CodeError,
    CodeResult,
    Collecting,
    Exchange,
    Execution,
    Sinks,
    Whole,
    context_of,
    contexts_of,
)
from space.sdk.request import segment

from ._wait import invoke

if TYPE_CHECKING:
    from .ports import AsyncConnection


class AsyncSandboxCode:
    """Of one sandbox."""

    async def connect_port(self, port: int) -> AsyncConnection:
        """A connection to what listens on this port."""
        raise NotImplementedError

    async def run_code(
        self,
        code: str,
        *,
        language: str | None = None,
        context: CodeContext | str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = DEFAULT_SECONDS,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_result: Callable[[CodeResult], object] | None = None,
        on_error: Callable[[CodeError], object] | None = None,
    ) -> Execution:
        """Execute code; what it defines is there for the next. The sandbox's template has an interpreter (`code-interpreter-v1`).

        language: python (unless given), javascript, typescript, bash; each has a context that is there already. context: one of
        `create_code_context`, in place of a language. Executions of one context wait for each other. env: variables for this execution.
        timeout: seconds, then it is interrupted and `timed_out` set. The callbacks hear of what comes as it comes; an exception of theirs
        comes out, and the code is interrupted, as it is when the call is cancelled (or Ctrl-C comes).

        An error of the code is no exception here: see `Execution.error`. Raises NotFound (no interpreter, or no such context),
        InvalidArgument (no such language), StreamCut (nothing may be concluded) and the other errors of the tree.
        """
        if language is not None and context is not None:
            raise InvalidArgument("both a language and a context", hint="a context has its language")
        if not timeout > 0:
            raise InvalidArgument(f"a timeout of {timeout} seconds", hint="more than 0")
        name = context.id if isinstance(context, CodeContext) else context
        asked = {"code": code, "language": language, "context_id": name, "env_vars": dict(env or {}), "timeout_seconds": timeout}
        collecting = Collecting(Sinks(on_stdout, on_stderr, on_result, on_error))
        exchange = Exchange("POST", "/execute", asked)
        async with await self._interpreter() as connection:
            await connection.send(exchange.request)
            while not exchange.ended:
                for piece in exchange.receive(await connection.receive()):
                    for callback, value in collecting.receive(piece):
                        await invoke(callback, value)
        return collecting.execution()

    async def create_code_context(self, *, language: str = "python", cwd: str | None = None) -> CodeContext:
        """A context of its own. cwd: a directory (`/home/user` unless given); InvalidArgument when it is none."""
        return context_of(await self._ask("POST", "/contexts", {"language": language} | ({} if cwd is None else {"cwd": cwd})))

    async def code_contexts(self) -> list[CodeContext]:
        """All contexts, oldest first; those of the languages that were used without a context are among them."""
        return contexts_of(await self._ask("GET", "/contexts"))

    async def restart_code_context(self, context: CodeContext | str) -> None:
        """Begin it anew: what was defined there is gone, and what runs there ends."""
        await self._ask("POST", f"{_path(context)}/restart")

    async def interrupt_code_context(self, context: CodeContext | str) -> None:
        """Interrupt what runs there, as Ctrl-C does; what was defined stays."""
        await self._ask("POST", f"{_path(context)}/interrupt")

    async def delete_code_context(self, context: CodeContext | str) -> None:
        """End it."""
        await self._ask("DELETE", _path(context))

    async def _ask(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> Any:
        exchange, whole = Exchange(method, path, document), Whole()
        async with await self._interpreter() as connection:
            await connection.send(exchange.request)
            while not exchange.ended:
                for piece in exchange.receive(await connection.receive()):
                    whole.add(piece)
        return whole.document()

    async def _interpreter(self) -> AsyncConnection:
        try:
            return await self.connect_port(PORT)
        except NotFound as error:
            if "listen" in error.message:
                raise NotFound("no code interpreter listens in the sandbox", hint=NO_INTERPRETER) from error
            raise


def _path(context: CodeContext | str) -> str:
    return f"/contexts/{segment(context.id if isinstance(context, CodeContext) else context)}"
