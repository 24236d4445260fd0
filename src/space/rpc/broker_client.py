"""The broker, as those see it who may ask it something: the node and set-up, a worker, the keeper of the records."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Self

from space.model.errors import Unavailable
from space.rpc import broker_api as api
from space.rpc.asking import Asker


class _Client:
    """Over a connected socket, which it takes over.

    first: where its questions are counted from, where others have asked before. ended: called when the broker hangs up.
    """

    def __init__(self, sock: socket.socket, first: int = 0, ended: Callable[[], None] | None = None) -> None:
        self._asker = Asker(sock, api.Answer, who="the broker", first=first, ended=ended)

    def close(self) -> None:
        """Hang up."""
        self._asker.close()


class BrokerControl(_Client):
    """The node's, and set-up's."""

    @classmethod
    def connect(cls, path: Path, ended: Callable[[], None] | None = None) -> Self:
        """Unavailable when nobody listens there."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(os.fspath(path))
        except OSError as error:
            sock.close()
            raise Unavailable(f"the broker cannot be reached at {path}: {error.strerror}") from error
        return cls(sock, ended=ended)

    async def make_root(self, template: str, generation: int) -> bytes:
        """The certificate (PEM) of that root, which is there for good when this returns."""
        number = self._asker.number()
        return (await self._asker.ask(number, api.encode(api.MakeRoot(number, template, generation)), api.Certificate)).pem

    async def root(self, template: str, generation: int) -> bytes:
        """The certificate of a root that is there. NotFound."""
        number = self._asker.number()
        return (await self._asker.ask(number, api.encode(api.GetRoot(number, template, generation)), api.Certificate)).pem

    async def forget_root(self, template: str, generation: int) -> None:
        """NotFound."""
        await self._do(api.ForgetRoot(self._asker.number(), template, generation))

    async def bind_sandbox(self, sock: socket.socket, sandbox: str, generation: int, template: str, template_generation: int) -> None:
        """Hand over the other end of a worker's socket; this end is closed here once it was handed over."""
        await self._do(api.BindSandbox(self._asker.number(), sandbox, generation, template, template_generation), sock)

    async def end_sandbox(self, sandbox: str, generation: int) -> None:
        """Its keys are dropped."""
        await self._do(api.EndSandbox(self._asker.number(), sandbox, generation))

    async def bind_writer(self, sock: socket.socket, writers: tuple[str, ...]) -> None:
        """Hand over the other end of the socket of whoever keeps these chains; this end is closed here."""
        await self._do(api.BindWriter(self._asker.number(), writers), sock)

    async def bind_minter(self, sock: socket.socket) -> None:
        """Hand over the other end of a socket that the minter has as the broker's; this end is closed here."""
        await self._do(api.BindMinter(self._asker.number()), sock)

    async def begin_anew(self, writer: str) -> None:
        """That chain begins at nothing."""
        await self._do(api.BeginAnew(self._asker.number(), writer))

    async def head_key(self) -> bytes:
        """The public key of the audit heads."""
        number = self._asker.number()
        return (await self._asker.ask(number, api.encode(api.HeadKey(number)), api.PublicKey)).key

    async def head(self, writer: str, what: api.What = "head") -> tuple[int, bytes]:
        """How far a chain was vouched for: (count, hash)."""
        number = self._asker.number()
        found = await self._asker.ask(number, api.encode(api.GetHead(number, writer, what)), api.Head)
        return found.count, found.last

    async def _do(self, question: api.ToControl, sock: socket.socket | None = None) -> None:
        try:
            await self._asker.ask(question.id, api.encode(question), api.Done, None if sock is None else sock.fileno())
        finally:
            if sock is not None:
                sock.close()


class Signer(_Client):
    """A worker's."""

    async def leaf(self, name: str) -> tuple[bytes, bytes]:
        """(chain, key), PEM, for exactly that canonical name. RateLimited, InvalidArgument, Unavailable."""
        number = self._asker.number()
        found = await self._asker.ask(number, api.encode(api.AskLeaf(number, name)), api.LeafOf)
        return found.chain, found.key


class Voucher(_Client):
    """The keeper's."""

    async def vouch(self, writer: str, what: api.What, count: int, last: bytes) -> bytes:
        """The signature. Conflict: that would be going back."""
        number = self._asker.number()
        return (await self._asker.ask(number, api.encode(api.Vouch(number, writer, what, count, last)), api.Vouched)).mac

    async def head(self, writer: str, what: api.What = "head") -> tuple[int, bytes]:
        """How far a chain was vouched for: (count, hash)."""
        number = self._asker.number()
        found = await self._asker.ask(number, api.encode(api.GetHead(number, writer, what)), api.Head)
        return found.count, found.last

    async def head_key(self) -> bytes:
        """The public key."""
        number = self._asker.number()
        return (await self._asker.ask(number, api.encode(api.HeadKey(number)), api.PublicKey)).key
