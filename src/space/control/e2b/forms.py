"""Requests of E2B's control API as types. Keys that nobody knows are ignored, as E2B ignores them; what is known is checked."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from space.control import wire

T = TypeVar("T")
_Text = Annotated[str, Meta(max_length=4096)]
_Seconds = Annotated[int, Meta(ge=0, le=10**9)]
_Targets = Annotated[list[Annotated[str, Meta(max_length=253)]], Meta(max_length=1000)]
_Map = Annotated[dict[_Text, _Text], Meta(max_length=256)]
_Name = Annotated[str, Meta(max_length=256)]


class Switch(Struct, frozen=True):
    """`{enabled}`."""

    enabled: bool = False


class Transform(Struct, frozen=True):
    """headers: values by name, which may hold `${e2b.secrets.<name>}`."""

    headers: Annotated[dict[_Name, Annotated[str, Meta(max_length=2048)]], Meta(max_length=20)] = {}


class Rule(Struct, frozen=True):
    """One of a host's."""

    transform: Transform | None = None


class Network(Struct, frozen=True, rename="camel"):
    """What may go out and come in. None: as if it were not said."""

    allow_out: _Targets | None = None
    deny_out: _Targets | None = None
    dns_servers: _Targets | None = None
    egress_proxy: dict[str, Any] | None = None
    rules: Annotated[dict[_Name, Annotated[list[Rule], Meta(max_length=1)]], Meta(max_length=10)] | None = None
    allow_public_traffic: bool | None = None
    mask_request_host: _Text | None = None
    https_ports: Annotated[list[Annotated[int, Meta(ge=1, le=65_535)]], Meta(max_length=64)] | None = None
    allow_internet_access: bool | None = field(name="allow_internet_access", default=None)


class NewSandbox(Struct, frozen=True, rename="camel"):
    """timeout: seconds; None: 300, or 15 in the first version of the route."""

    template_id: Annotated[str, Meta(min_length=1, max_length=200)] = field(name="templateID")
    timeout: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    auto_pause: bool | None = None
    auto_pause_memory: bool | None = None
    auto_resume: Switch | None = None
    secure: bool | None = None
    allow_internet_access: bool | None = field(name="allow_internet_access", default=None)
    network: Network | None = None
    metadata: _Map | None = None
    env_vars: _Map | None = None
    mcp: dict[str, Any] | None = None
    iam: dict[str, Any] | None = None
    volume_mounts: list[Any] | None = None


class Connect(Struct, frozen=True):
    """memory: False boots a paused one from its disk."""

    timeout: _Seconds | None = None
    memory: bool | None = None


class Resume(Struct, frozen=True, rename="camel"):
    """Of older clients."""

    timeout: _Seconds | None = None
    auto_pause: bool | None = None
    memory: bool | None = None


class Pause(Struct, frozen=True, rename="camel"):
    """memory: False keeps the disk alone."""

    memory: bool | None = None
    require_healthy_guest: bool | None = None


class Fork(Struct, frozen=True):
    """count: how many."""

    timeout: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    count: Annotated[int, Meta(ge=1, le=100)] | None = None


class Timeout(Struct, frozen=True):
    """From now on; 0: now."""

    timeout: _Seconds


class Refresh(Struct, frozen=True):
    """At least so long from now on."""

    duration: Annotated[int, Meta(ge=0, le=3600)] | None = None


class NewSnapshot(Struct, frozen=True):
    """memory: False keeps the disk alone."""

    name: Annotated[str, Meta(max_length=128)] | None = None
    memory: bool | None = None


class NewSecret(Struct, frozen=True):
    """A secret."""

    name: _Name
    value: Annotated[str, Meta(min_length=1, max_length=32_768)]
    metadata: _Map | None = None

    def __repr__(self) -> str:
        return f"NewSecret(name={self.name!r})"


class SecretChange(Struct, frozen=True):
    """None: as it was."""

    value: Annotated[str, Meta(min_length=1, max_length=32_768)] | None = None
    metadata: _Map | None = None

    def __repr__(self) -> str:
        return "SecretChange()"


def decode(body: bytes, cls: type[T]) -> T:
    """`body` as `cls`; no body is an empty one. InvalidArgument."""
    return wire.decode(body, cls)


def plain(network: Network) -> dict[str, Any]:
    """As it was said, for answers."""
    said: dict[str, Any] = msgspec.to_builtins(network)
    said.pop("allow_internet_access", None)
    return {name: value for name, value in said.items() if value is not None}
