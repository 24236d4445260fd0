"""The dialer's own copies of policies: each document parsed once, however many sandboxes it holds for, and what holds for which sandbox."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Address

from space.core.policy.document import Document
from space.core.policy.verdict import Deny, Stack
from space.model.errors import Conflict, NoCapacity, NotFound

MOST_DOCUMENTS = 8192
_NOTHING = Stack(())  # of the empty digest: without a layer nothing is allowed


@dataclass(frozen=True, slots=True)
class Refused:
    """No socket. denied: by rule, rather than for want of success."""

    reason: str
    denied: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """Which policy a sandbox has. number: its generation, which only goes up."""

    number: int
    digest: str
    stack: Stack


class Policies:
    """Values in memory; nothing is read or written here."""

    def __init__(self) -> None:
        self._documents: dict[str, Document] = {}
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._documents)

    def add(self, document: Document) -> None:
        """Hold a document. NoCapacity: there are too many."""
        if document.digest not in self._documents and len(self._documents) >= MOST_DOCUMENTS:
            raise NoCapacity(f"{MOST_DOCUMENTS} policy documents are held", hint="drop those that no sandbox has any more")
        self._documents.setdefault(document.digest, document)

    def has(self, digest: str) -> bool:
        """Whether it is held."""
        return digest in self._documents

    def keep(self, digests: Collection[str]) -> None:
        """Drop every document that is not one of these and that no sandbox has."""
        used = {*digests, *(held.digest for held in self._held.values())}
        self._documents = {digest: document for digest, document in self._documents.items() if digest in used}

    def put(self, sandbox: str, number: int, digest: str) -> None:
        """That policy holds for the sandbox. NotFound: the document. Conflict: a newer one is held, or another one by that number."""
        held = self._held.get(sandbox)
        if held is not None and (held.number > number or (held.number == number and held.digest != digest)):
            raise Conflict(f"{sandbox} has policy {held.number} already, {number} came after it")
        if digest and digest not in self._documents:
            raise NotFound(f"there is no policy document {digest}", hint="put it first")
        self._held[sandbox] = Held(number, digest, self._documents[digest].stack if digest else _NOTHING)

    def remove(self, sandbox: str) -> None:
        """Nothing may be dialled for it any more."""
        self._held.pop(sandbox, None)

    def held(self, sandbox: str) -> Held | None:
        """What it has."""
        return self._held.get(sandbox)

    def refusal(self, sandbox: str, target: str | IPv4Address, port: int, number: int | None = None) -> Refused | None:
        """Why it may not be dialled; None when it may. number: what the asker judged by, None for whatever holds now."""
        held = self._held.get(sandbox)
        if held is None:
            return Refused("no_policy", denied=True)
        if number is not None and number != held.number:
            return Refused("policy_generation")
        verdict = held.stack.flow(target, port) if isinstance(target, str) else held.stack.literal(target, port)
        return Refused(verdict.reason, denied=True) if isinstance(verdict, Deny) else None
