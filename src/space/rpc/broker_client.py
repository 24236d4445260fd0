"""The broker, as those see it who may ask it something: the node and set-up, a worker, the keeper of the records."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import msgspec

from space.core.credentials.grant import Kind
from space.model.errors import Unavailable
from space.model.secret import Secret
from space.rpc import broker_api as api
from space.rpc.asking import Asker, Refused

_Decoder = msgspec.msgpack.Decoder[Any]


class _Client:
    """Over a connected socket, which it takes over.

    first: where its questions are counted from, where others have asked before. ended: called when the broker hangs up. unasked: gets
    what it says by itself.
    """

    _ANSWERS: ClassVar[_Decoder] = msgspec.msgpack.Decoder(api.Answer)

    def __init__(
        self,
        sock: socket.socket,
        first: int = 0,
        ended: Callable[[], None] | None = None,
        unasked: Callable[[object], None] | None = None,
    ) -> None:
        self._asker = Asker(sock, self._ANSWERS, who="the broker", first=first, ended=ended, unasked=unasked)

    def close(self) -> None:
        """Hang up."""
        self._asker.close()


class BrokerControl(_Client):
    """The node's, and set-up's."""

    @classmethod
    def connect(cls, path: Path, ended: Callable[[], None] | None = None, unasked: Callable[[object], None] | None = None) -> Self:
        """Unavailable when nobody listens there. unasked: gets `api.Alarm`s."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(os.fspath(path))
        except OSError as error:
            sock.close()
            raise Unavailable(f"the broker cannot be reached at {path}: {error.strerror}") from error
        return cls(sock, ended=ended, unasked=unasked)

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

    async def bind_sandbox(
        self,
        sock: socket.socket,
        sandbox: str,
        generation: int,
        template: str,
        template_generation: int,
        *,
        tenant: str = "",
        template_name: str = "",
        labels: Mapping[str, str] | None = None,
        forked: bool = False,
    ) -> None:
        """Hand over the other end of a worker's socket; this end is closed here once it was handed over. What grants look at is kept."""
        number = self._asker.number()
        what = api.BindSandbox(
            number, sandbox, generation, template, template_generation, tenant, template_name, dict(labels or {}), forked
        )
        await self._do(what, sock)

    async def end_sandbox(self, sandbox: str, generation: int) -> None:
        """Its keys are dropped."""
        await self._do(api.EndSandbox(self._asker.number(), sandbox, generation))

    async def bind_writer(self, sock: socket.socket, writers: tuple[str, ...]) -> None:
        """Hand over the other end of the socket of whoever keeps these chains; this end is closed here."""
        await self._do(api.BindWriter(self._asker.number(), writers), sock)

    async def bind_minter(self, sock: socket.socket) -> None:
        """Hand over the other end of a socket that the minter has as the broker's; this end is closed here."""
        await self._do(api.BindMinter(self._asker.number()), sock)

    async def bind_audit(self, sock: socket.socket) -> None:
        """Hand over a socket that the keeper of the records has as its source `broker`; this end is closed here."""
        await self._do(api.BindAudit(self._asker.number()), sock)

    async def put_secret(
        self,
        tenant: str,
        name: str,
        kind: Kind,
        value: Secret,
        *,
        public: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        description: str = "",
        expires: str = "",
        mode: Literal["new", "rotate", "either"] = "new",
    ) -> api.SecretInfo:
        """It is on the disk when this returns. value: packed parts. Conflict, NotFound (by mode), InvalidArgument, NoCapacity."""
        number = self._asker.number()
        what = api.PutSecret(number, tenant, name, kind, value.reveal(), dict(public or {}), dict(labels or {}), description, expires, mode)
        return await self._asker.ask(number, api.encode(what), api.SecretInfo)

    async def secret(self, tenant: str, name: str) -> api.SecretInfo:
        """NotFound."""
        number = self._asker.number()
        return await self._asker.ask(number, api.encode(api.GetSecret(number, tenant, name)), api.SecretInfo)

    async def secrets(self, tenant: str, after: str = "", limit: int = api.PAGE) -> api.SecretInfos:
        """A page, in order of names."""
        number = self._asker.number()
        return await self._asker.ask(number, api.encode(api.ListSecrets(number, tenant, after, limit)), api.SecretInfos)

    async def revoke_secret(self, tenant: str, name: str) -> api.SecretInfo:
        """Its value is gone."""
        number = self._asker.number()
        return await self._asker.ask(number, api.encode(api.RevokeSecret(number, tenant, name)), api.SecretInfo)

    async def delete_secret(self, tenant: str, name: str) -> None:
        """Conflict while grants name it."""
        await self._do(api.DeleteSecret(self._asker.number(), tenant, name))

    async def put_grant(self, tenant: str, grant: bytes, *, replace: bool = False) -> api.GrantInfo:
        """It holds when this returns. InvalidArgument with the place of the mistake, NotFound (the secret), Conflict."""
        number = self._asker.number()
        return await self._asker.ask(number, api.encode(api.PutGrant(number, tenant, grant, replace)), api.GrantInfo)

    async def grant(self, tenant: str, name: str) -> api.GrantInfo:
        """NotFound."""
        number = self._asker.number()
        return await self._asker.ask(number, api.encode(api.GetGrant(number, tenant, name)), api.GrantInfo)

    async def grants(self, tenant: str, after: str = "", limit: int = api.PAGE, secret: str = "") -> api.GrantInfos:
        """A page, in order of names."""
        number = self._asker.number()
        return await self._asker.ask(number, api.encode(api.ListGrants(number, tenant, after, limit, secret)), api.GrantInfos)

    async def revoke_grant(self, tenant: str, name: str) -> api.GrantInfo:
        """Whoever has it has it no more, when this returns."""
        number = self._asker.number()
        return await self._asker.ask(number, api.encode(api.RevokeGrant(number, tenant, name)), api.GrantInfo)

    async def delete_grant(self, tenant: str, name: str) -> None:
        """Revoked, and forgotten."""
        await self._do(api.DeleteGrant(self._asker.number(), tenant, name))

    async def attach_grants(self, tenant: str, sandbox: str, names: tuple[str, ...]) -> None:
        """All or none. NotFound."""
        await self._do(api.AttachGrants(self._asker.number(), tenant, sandbox, names))

    async def detach_grant(self, tenant: str, sandbox: str, name: str) -> None:
        """Idempotent."""
        await self._do(api.DetachGrant(self._asker.number(), tenant, sandbox, name))

    async def attached(self, tenant: str, sandbox: str) -> list[str]:
        """Names of grants."""
        number = self._asker.number()
        return (await self._asker.ask(number, api.encode(api.Attached(number, tenant, sandbox)), api.Names)).names

    async def forget_sandbox(self, sandbox: str) -> None:
        """It is gone for good."""
        await self._do(api.ForgetSandbox(self._asker.number(), sandbox))

    async def placeholders(self, sandbox: str, generation: int) -> dict[str, str]:
        """By variable. Gone: that life is not bound."""
        number = self._asker.number()
        return (await self._asker.ask(number, api.encode(api.Placeholders(number, sandbox, generation)), api.Environment)).variables

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
    """A worker's. unasked: gets `api.Grants`."""

    # Of what a worker is told, and made before there are workers: a decoder of every answer takes each of them half a MiB.
    _ANSWERS: ClassVar[_Decoder] = msgspec.msgpack.Decoder(api.LeafOf | api.Credential | api.Grants | api.Done | Refused)

    async def leaf(self, name: str) -> tuple[bytes, bytes]:
        """(chain, key), PEM, for exactly that canonical name. RateLimited, InvalidArgument, Unavailable."""
        number = self._asker.number()
        found = await self._asker.ask(number, api.encode(api.AskLeaf(number, name)), api.LeafOf)
        return found.chain, found.key

    async def credential(
        self, grant: str, host: str, port: int, method: str, path: str, request: str = "", *, approved: bool = False
    ) -> api.Credential:
        """A lease. PermissionDenied with the reason as its message; Unavailable: nothing can be released now."""
        number = self._asker.number()
        what = api.AskCredential(number, grant, host, port, method, path, request, approved)
        return await self._asker.ask(number, api.encode(what), api.Credential)

    async def grants(self) -> None:
        """Have the sandbox's grants told: they were when this returns. Unavailable."""
        number = self._asker.number()
        await self._asker.ask(number, api.encode(api.AskGrants(number)), api.Done)


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
