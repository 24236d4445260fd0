"""Contexts: a kernel each, with a language and a directory; what is executed in one is executed in turn."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from space_interpreter.wire import Refused

HOME = "/home/user"
MOST = 64
# Which kernel speaks a language, and what the language is called in answers.
LANGUAGES = {
    "python": ("python", "python"),
    "python3": ("python", "python"),
    "py": ("python", "python"),
    "javascript": ("node", "javascript"),
    "js": ("node", "javascript"),
    "typescript": ("node", "typescript"),
    "ts": ("node", "typescript"),
    "bash": ("bash", "bash"),
    "sh": ("bash", "bash"),
}


@dataclass(frozen=True, slots=True)
class Task:
    """Code to execute. variables: of the environment, for this execution. adopted: those that hold from now on."""

    code: str
    language: str
    variables: Mapping[str, str] = field(default_factory=dict)
    adopted: Mapping[str, str] = field(default_factory=dict)


class Kernel(Protocol):
    """What runs a context's code."""

    pid: int
    dead: asyncio.Event

    def execute(self, task: Task) -> AsyncIterator[dict[str, Any]]:
        """The lines that come of it; the last is DIED when it has died."""
        ...

    async def rehearse(self) -> None:
        """Run what most executions run, so that it is loaded; nothing of it is left, and it is not counted."""
        ...

    async def interrupt(self) -> None:
        """As Ctrl-C does."""
        ...

    def restored(self) -> None:
        """It is in another machine now: no number that it draws may be one that another clone draws."""
        ...

    def end(self) -> None:
        """Kill it. Idempotent."""
        ...


Begin = Callable[[str, str, Mapping[str, str]], Awaitable[Kernel]]
"""A kernel that is ready: its kind, its directory, variables."""


@dataclass(slots=True)
class Context:
    """One context. turn: who holds it executes. kernel: None before it is begun, or after it died. environment: what it was told."""

    id: str
    language: str
    cwd: str
    kernel: Kernel | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    environment: Mapping[str, str] = field(default_factory=dict)
    gone: bool = False

    @property
    def document(self) -> dict[str, str]:
        """As clients see it."""
        return {"id": self.id, "language": self.language, "cwd": self.cwd}


class Contexts:
    """All of them. environment: the sandbox's variables now, which kernels begin with and learn of."""

    def __init__(self, begin: Begin, environment: Callable[[], Mapping[str, str]]) -> None:
        self._begin = begin
        self._environment = environment
        self._contexts: dict[str, Context] = {}
        self._usual: dict[str, Context] = {}

    def usual(self, language: str) -> Context:
        """The context of a language that is used where none is named. Refused when the language is unknown."""
        name = known(language)[1]
        name = "javascript" if name == "typescript" else name  # the same kernel knows both
        if name not in self._usual:
            self._usual[name] = self._add(name, HOME)
        return self._usual[name]

    def named(self, name: str) -> Context:
        """Refused when there is none of that id."""
        if (found := self._contexts.get(name)) is None:
            raise Refused(404, f"Context {name[:80]} not found")
        return found

    def listed(self) -> list[dict[str, str]]:
        """All of them, oldest first."""
        return [context.document for context in self._contexts.values()]

    async def make(self, language: str, cwd: str) -> Context:
        """A new one, whose kernel is ready. Refused for an unknown language, or a directory that is none."""
        name = known(language)[1]
        place = _directory(cwd)
        if len(self._contexts) >= MOST:
            raise Refused(429, f"there are {MOST} contexts: remove one")
        context = self._add(name, place)
        try:
            async with context.turn:
                await self.ready(context)
        except BaseException:
            self.remove(context)
            raise
        return context

    def _add(self, language: str, cwd: str) -> Context:
        context = Context(secrets.token_hex(16), language, cwd)
        self._contexts[context.id] = context
        return context

    async def ready(self, context: Context) -> Kernel:
        """Its kernel; whoever asks has its turn. Refused when it does not begin."""
        if context.gone:
            raise Refused(404, f"Context {context.id} not found")
        if context.kernel is None or context.kernel.dead.is_set():
            self.drop(context)
            kind = known(context.language)[0]
            context.environment = self._environment()
            try:
                context.kernel = await self._begin(kind, context.cwd, context.environment)
            except (OSError, TimeoutError) as error:
                raise Refused(500, f"the {context.language} kernel did not begin: {str(error)[:300] or type(error).__name__}") from error
        return context.kernel

    async def warm(self, context: Context) -> None:
        """Its kernel has run something: what comes next finds everything loaded."""
        async with context.turn:
            await (await self.ready(context)).rehearse()

    def adopted(self, context: Context) -> Mapping[str, str]:
        """What its kernel has to learn of the sandbox's variables: those of a clone are known when it is claimed."""
        before, context.environment = context.environment, self._environment()
        return {name: value for name, value in context.environment.items() if before.get(name) != value}

    def remove(self, context: Context) -> None:
        """End it."""
        context.gone = True
        self.drop(context)
        self._contexts.pop(context.id, None)
        for language in [name for name, each in self._usual.items() if each is context]:
            del self._usual[language]

    def drop(self, context: Context) -> None:
        """End its kernel: the next execution begins another one."""
        if context.kernel is not None:
            context.kernel.end()
            context.kernel = None

    def restored(self) -> None:
        """This is another machine than it was."""
        for context in self._contexts.values():
            if context.kernel is not None:
                context.kernel.restored()

    def end(self) -> None:
        """End all of them."""
        for context in list(self._contexts.values()):
            self.remove(context)


def _directory(cwd: str) -> str:
    place = os.path.join(HOME, os.path.expanduser(cwd))
    if not os.path.isdir(place):
        raise Refused(400, f"cwd {cwd[:400]!r} is not a directory")
    return place


def known(language: str) -> tuple[str, str]:
    """The kind of kernel, and the language's name here."""
    if (found := LANGUAGES.get(language.strip().lower())) is None:
        raise Refused(400, f"language {language[:80]!r} is not known: python, javascript, typescript, bash")
    return found
