"""What is asked of the broker, over three kinds of SEQPACKET sockets; MessagePack, tagged, every value bounded.

| socket | who holds it | asks |
|---|---|---|
| control | the node and set-up (peer's uid) | all but AskLeaf, AskCredential, AskGrants and Vouch; a Bind comes with a socket |
| of a sandbox | that sandbox's worker, for one generation | AskLeaf, AskCredential, AskGrants; it is told its Grants unasked |
| of a writer | the keeper of the records | Vouch, GetHead, HeadKey |

No answer holds the key of a root, of an intermediate or of the audit heads. The value of a secret comes in once, and goes out in the one
answer to AskCredential (`Credential`), after the keeper of the records has written that it does.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from space.core.credentials.grant import MOST_GRANT, NAME, Kind, Outline, Slot
from space.rpc.asking import Refused

Id = Annotated[int, Meta(ge=1, lt=1 << 53)]
Generation = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Sandbox = Annotated[str, Meta(pattern=r"\Asb-[a-z2-7]{20}\Z")]
Template = Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9._-]{0,62}\Z")]
WriterName = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9-]{0,31}\Z")]
What = Literal["head", "base"]
MOST_CONTROL = 65_536  # bytes of a question
MOST_VALUE = 49_152  # bytes of the secret parts of one
PAGE = 32  # secrets or grants in one answer
Tenant = Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9._-]{0,62}\Z")]
Name = Annotated[str, Meta(pattern=NAME)]
Labels = Annotated[dict[Annotated[str, Meta(max_length=128)], Annotated[str, Meta(max_length=256)]], Meta(max_length=64)]


class _Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    id: Id


class MakeRoot(_Question, frozen=True):
    """The root of a generation of a template, made if it is not there. Answer: Certificate."""

    template: Template
    generation: Generation


class GetRoot(_Question, frozen=True):
    """The root that is there. Answer: Certificate."""

    template: Template
    generation: Generation


class ForgetRoot(_Question, frozen=True):
    """The template is gone. Answer: Done."""

    template: Template
    generation: Generation


class BindSandbox(_Question, frozen=True):
    """The socket beside it speaks for that life of that sandbox from now on; an earlier socket is closed, an earlier life ends. Done."""

    sandbox: Sandbox
    generation: Generation
    template: Template
    template_generation: Generation
    tenant: Annotated[str, Meta(max_length=63)] = ""
    template_name: Annotated[str, Meta(max_length=128)] = ""
    labels: Labels = {}
    forked: bool = False


class EndSandbox(_Question, frozen=True):
    """That life has ended: its keys are dropped, its socket closed. Idempotent. Done."""

    sandbox: Sandbox
    generation: Generation


class BindWriter(_Question, frozen=True):
    """The socket beside it speaks for those chains of records; earlier sockets of the same chains are closed. Done."""

    writers: Annotated[tuple[WriterName, ...], Meta(min_length=1, max_length=8)]


class BindMinter(_Question, frozen=True):
    """The socket beside it leads to the minter (`space.rpc.minter_api`); an earlier one is closed. Done."""


class BindAudit(_Question, frozen=True):
    """The socket beside it leads to the keeper of the records, as the source `broker`. Until there is one nothing is released. Done."""


class PutSecret(_Question, frozen=True):
    """Keep a secret, on the disk when it is answered. mode: `new` (Conflict if it is there), `rotate` (NotFound if it is not), `either`.

    value: `core.credentials.secret.packed` parts. public: parts that may be told. expires: RFC 3339, or empty. Answer: SecretInfo.
    """

    tenant: Tenant
    name: Name
    kind: Kind
    value: Annotated[bytes, Meta(min_length=1, max_length=MOST_VALUE)]
    public: Annotated[dict[str, Annotated[str, Meta(max_length=1024)]], Meta(max_length=8)] = {}
    labels: Labels = {}
    description: Annotated[str, Meta(max_length=256)] = ""
    expires: Annotated[str, Meta(max_length=40)] = ""
    mode: Literal["new", "rotate", "either"] = "new"

    def __repr__(self) -> str:
        return f"PutSecret({self.id}, {self.tenant!r}, {self.name!r})"


class GetSecret(_Question, frozen=True):
    """Answer: SecretInfo. NotFound."""

    tenant: Tenant
    name: Name


class ListSecrets(_Question, frozen=True):
    """Those of a tenant behind that name. Answer: SecretInfos."""

    tenant: Tenant
    after: Annotated[str, Meta(max_length=63)] = ""
    limit: Annotated[int, Meta(ge=1, le=PAGE)] = PAGE


class RevokeSecret(_Question, frozen=True):
    """Its value is gone for good; the name stays, so that a use of it is refused and told. Idempotent. Answer: SecretInfo."""

    tenant: Tenant
    name: Name


class DeleteSecret(_Question, frozen=True):
    """Conflict while grants name it. Idempotent. Done."""

    tenant: Tenant
    name: Name


class PutGrant(_Question, frozen=True):
    """grant: JSON (`core.credentials.grant`). replace: whether one that is there gives way. Answer: GrantInfo."""

    tenant: Tenant
    grant: Annotated[bytes, Meta(max_length=MOST_GRANT)]
    replace: bool = False


class GetGrant(_Question, frozen=True):
    """Answer: GrantInfo. NotFound."""

    tenant: Tenant
    name: Name


class ListGrants(_Question, frozen=True):
    """Those of a tenant behind that name, of one secret if that is named. Answer: GrantInfos."""

    tenant: Tenant
    after: Annotated[str, Meta(max_length=63)] = ""
    limit: Annotated[int, Meta(ge=1, le=PAGE)] = PAGE
    secret: Annotated[str, Meta(max_length=63)] = ""


class RevokeGrant(_Question, frozen=True):
    """Nobody has it from now on; whoever uses it is cut. The name stays. Idempotent. Answer: GrantInfo."""

    tenant: Tenant
    name: Name


class DeleteGrant(_Question, frozen=True):
    """Revoked, and forgotten. Idempotent. Done."""

    tenant: Tenant
    name: Name


class AttachGrants(_Question, frozen=True):
    """That sandbox has these as well, over all its lives: all or none. NotFound. Done."""

    tenant: Tenant
    sandbox: Sandbox
    names: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=64)]


class DetachGrant(_Question, frozen=True):
    """Idempotent. Done."""

    tenant: Tenant
    sandbox: Sandbox
    name: Name


class Attached(_Question, frozen=True):
    """What was attached to a sandbox. Answer: Names."""

    tenant: Tenant
    sandbox: Sandbox


class ForgetSandbox(_Question, frozen=True):
    """It is gone for good, and what was attached to it with it. Idempotent. Done."""

    sandbox: Sandbox


class Placeholders(_Question, frozen=True):
    """Answer: Environment, of a life that is bound."""

    sandbox: Sandbox
    generation: Generation


class HeadKey(_Question, frozen=True):
    """Answer: PublicKey, by which anybody can check a head."""


class GetHead(_Question, frozen=True):
    """How far a chain was vouched for. Answer: Head."""

    writer: WriterName
    what: What = "head"


class BeginAnew(_Question, frozen=True):
    """A chain of that name begins at nothing again (its files were set aside). Done."""

    writer: WriterName


class AskLeaf(_Question, frozen=True):
    """Answer: LeafOf, for exactly that canonical name."""

    name: Annotated[str, Meta(min_length=1, max_length=253)]


class AskCredential(_Question, frozen=True):
    """For one https request: its method, and its path in normal form without a query. request: what records call it. Answer: Credential."""

    grant: Name
    host: Annotated[str, Meta(min_length=1, max_length=253)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    method: Annotated[str, Meta(min_length=1, max_length=32)]
    path: Annotated[str, Meta(min_length=1, max_length=16_384)]
    request: Annotated[str, Meta(max_length=128)] = ""
    approved: bool = False  # a person has agreed to it, as the worker says


class AskGrants(_Question, frozen=True):
    """A worker has begun; its socket outlives workers, and what was told to an earlier one is not told again. Done, behind a Grants."""


class Vouch(_Question, frozen=True):
    """Authenticate a chain's end (`head`) or what of its beginning was removed (`base`). Answer: Vouched."""

    writer: WriterName
    what: What
    count: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    last: Annotated[bytes, Meta(min_length=32, max_length=32)]


class Done(msgspec.Struct, frozen=True, tag=True):
    """It is so."""

    id: int


class Certificate(msgspec.Struct, frozen=True, tag=True):
    """PEM."""

    id: int
    pem: bytes


class PublicKey(msgspec.Struct, frozen=True, tag=True):
    """Ed25519, 32 bytes."""

    id: int
    key: bytes


class Head(msgspec.Struct, frozen=True, tag=True):
    """count 0: nothing yet."""

    id: int
    count: int
    last: bytes


class Vouched(msgspec.Struct, frozen=True, tag=True):
    """A signature of `space.audit.chain.statement`."""

    id: int
    mac: bytes


class LeafOf(msgspec.Struct, frozen=True, tag=True):
    """chain: leaf and intermediate, PEM. key: the leaf's, PEM."""

    id: int
    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"LeafOf({self.id})"


class SecretInfo(msgspec.Struct, frozen=True, tag=True):
    """What may be told of a secret. version: counts its rotations, from 1. times: RFC 3339. grants: how many name it."""

    id: int
    tenant: str
    name: str
    kind: Kind
    version: int
    public: dict[str, str]
    labels: dict[str, str]
    description: str
    created: str
    rotated: str
    expires: str
    revoked: str
    grants: int


class SecretInfos(msgspec.Struct, frozen=True, tag=True):
    """more: there are some behind the last one."""

    id: int
    secrets: list[SecretInfo]
    more: bool


class GrantInfo(msgspec.Struct, frozen=True, tag=True):
    """grant: JSON. used: leases so far, for one with `uses`; attached: sandboxes. revoked: RFC 3339, or empty."""

    id: int
    tenant: str
    grant: bytes
    created: str
    revoked: str
    used: int
    attached: int


class GrantInfos(msgspec.Struct, frozen=True, tag=True):
    """more: there are some behind the last one."""

    id: int
    grants: list[GrantInfo]
    more: bool


class Names(msgspec.Struct, frozen=True, tag=True):
    """In order."""

    id: int
    names: list[str]


class Environment(msgspec.Struct, frozen=True, tag=True):
    """Placeholders by the variable that holds them. They are no secrets."""

    id: int
    variables: dict[str, str]


class Credential(msgspec.Struct, frozen=True, tag=True):
    """Lent for `uses` requests of that grant within `seconds`. value: the secret (of aws: the secret key).

    more: `username` of Basic authentication; of aws `access_key_id` and perhaps `session_token`.
    """

    id: int
    grant: str
    secret: str
    version: int
    slot: Slot
    value: bytes
    more: dict[str, bytes]
    uses: int
    seconds: float

    def __repr__(self) -> str:
        return f"Credential({self.id}, {self.grant!r}, {self.version})"


class Grants(msgspec.Struct, frozen=True, tag=True):
    """Unasked, to a worker: all that its sandbox has from now on. revision: counts up."""

    revision: int
    grants: list[Outline]


class Alarm(msgspec.Struct, frozen=True, tag=True):
    """Unasked, to the node. count: how many there were since the last one of that kind and grant."""

    kind: Literal["rate", "revoked", "expired"]
    tenant: str
    sandbox: str
    grant: str
    secret: str
    host: str
    count: int


ToControl = (
    MakeRoot | GetRoot | ForgetRoot | BindSandbox | EndSandbox | BindWriter | BindMinter | BindAudit | HeadKey | GetHead | BeginAnew
    | PutSecret | GetSecret | ListSecrets | RevokeSecret | DeleteSecret | PutGrant | GetGrant | ListGrants | RevokeGrant | DeleteGrant
    | AttachGrants | DetachGrant | Attached | ForgetSandbox | Placeholders
)  # fmt: skip
ToSandbox = AskLeaf | AskCredential | AskGrants
ToWriter = Vouch | GetHead | HeadKey
Answer = (
    Done | Certificate | PublicKey | Head | Vouched | LeafOf | SecretInfo | SecretInfos | GrantInfo | GrantInfos | Names | Environment
    | Credential | Grants | Alarm | Refused
)  # fmt: skip

WITH_SOCKET = (BindSandbox, BindWriter, BindMinter, BindAudit)
CONTROL = msgspec.msgpack.Decoder(ToControl)
SANDBOX = msgspec.msgpack.Decoder(ToSandbox)
WRITER = msgspec.msgpack.Decoder(ToWriter)
encode = msgspec.msgpack.Encoder().encode
