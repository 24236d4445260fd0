"""The minter, as the node sees it, and as the broker does."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Self

from space.model.errors import Unavailable
from space.model.secret import Secret
from space.rpc import minter_api as api
from space.rpc.asking import Asker, Refused


class MinterControl:
    """The node's, over a connected socket, which it takes over. ended: called when the minter hangs up."""

    def __init__(self, sock: socket.socket, ended: Callable[[], None] | None = None) -> None:
        self._asker = Asker(sock, api.Answer, who="the minter", ended=ended)

    @classmethod
    def connect(cls, path: Path, ended: Callable[[], None] | None = None) -> Self:
        """Unavailable when nobody listens there."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(os.fspath(path))
        except OSError as error:
            sock.close()
            raise Unavailable(f"the minter cannot be reached at {path}: {error.strerror}") from error
        return cls(sock, ended)

    def close(self) -> None:
        """Hang up. What is bound stays bound."""
        self._asker.close()

    async def bind_broker(self, sock: socket.socket) -> None:
        """Hand over the other end of the broker's socket; this end is closed here in any case."""
        with sock:
            number = self._asker.number()
            await self._asker.ask(number, api.encode(api.BindBroker(number)), api.Done, sock.fileno())

    async def bind_dialer(self, sock: socket.socket) -> None:
        """Hand over the other end of a socket that the dialer knows as the minter's; this end is closed here in any case."""
        with sock:
            number = self._asker.number()
            await self._asker.ask(number, api.encode(api.BindDialer(number)), api.Done, sock.fileno())

    async def describe(self) -> api.Standing:
        """How it stands."""
        number = self._asker.number()
        return await self._asker.ask(number, api.encode(api.Describe(number)), api.Standing)


class MinterSocket:
    """The broker's, over a connected socket, which it takes over. ended: called when the minter hangs up."""

    def __init__(self, sock: socket.socket, ended: Callable[[], None] | None = None) -> None:
        self._asker = Asker(sock, api.Token | Refused, who="the minter", ended=ended)

    @property
    def open(self) -> bool:
        """Whether the minter has not hung up."""
        return self._asker.open

    async def exchange(self, endpoint: str, form: Secret, basic: Secret | None = None) -> tuple[int, Secret]:
        """Status and body of the endpoint's answer. NotFound: no such endpoint. Unavailable: it, the dialer or the minter is away."""
        number = self._asker.number()
        question = api.Exchange(number, endpoint, form.reveal(), b"" if basic is None else basic.reveal())
        token = await self._asker.ask(number, api.encode(question), api.Token)
        return token.status, Secret(token.body)

    def close(self) -> None:
        """Hang up."""
        self._asker.close()
