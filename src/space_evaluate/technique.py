"""What a technique says of itself. Its file is read on both sides: the host wants `TECHNIQUE`, the guest calls `attack`.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Goal = Literal["callback", "host-secret"]
Policy = Literal["narrow", "blocked"]

CALLBACK: Goal = "callback"  # reach an address, or a name, that the policy does not allow
HOST_SECRET: Goal = "host-secret"  # read something of the host, or reach a service of its own
NARROW: Policy = "narrow"  # package repositories and a few hosts; one shares its address with a name that is not allowed
BLOCKED: Policy = "blocked"  # nothing is allowed
BOTH: tuple[Policy, ...] = (NARROW, BLOCKED)
EITHER: tuple[Goal, ...] = (CALLBACK, HOST_SECRET)


@dataclass(frozen=True, slots=True)
class Technique:
    """tries: what, in one sentence. claim: of docs/threat-model.md. defences: that it tests, as the mutation table names them.

    stopped_by: what must be seen when it does not get through, any one of them: the reason of a record (`sni_mismatch`), a counter of
    dropped packets (`foreign_source`), or `guest:` and words that the guest noted (for what nobody outside is told of).
    under: the same for a policy that stops it elsewhere; without an entry `stopped_by` holds.
    variants: what `attack` is given, by name. seconds: for one attempt. quick: in the set of every change.
    alone: in a guest that nobody else gets. dies: that guest may die of it, and the control is a guest that is made afterwards.
    around: it needs the host to act while it runs: its file has `outside`. source: where the idea is from, if it is public.
    blank: why no removal of a defence trips it, where that is so.
    """

    tries: str
    claim: str
    defences: tuple[str, ...]
    stopped_by: tuple[str, ...]
    goals: tuple[Goal, ...] = (CALLBACK,)
    policies: tuple[Policy, ...] = (NARROW,)
    under: Mapping[Policy, tuple[str, ...]] = field(default_factory=dict)
    variants: Mapping[str, Any] = field(default_factory=lambda: {"": None})
    seconds: float = 20.0
    quick: bool = False
    alone: bool = False
    dies: bool = False
    around: bool = False
    source: str = ""
    blank: str = ""

    def stops(self, policy: Policy) -> tuple[str, ...]:
        """What must be seen under that policy."""
        return self.under.get(policy, self.stopped_by)


@dataclass(frozen=True, slots=True)
class Ground:
    """What is outside, as the guest is told. Names that end in .net are allowed by no policy.

    packages: a package repository over https, `/simple/` and `/files/` for GET and HEAD; at its address there are also `second`, another
    allowed name, and `hidden`, an attacker's. false: allowed, and its server
    shows somebody else's certificate. open: every method and path. plain: over http at port 80. wild: of `*.wild`, any label.
    stream: `tcp`, port 2222, opaque. bad: allowed names whose addresses must not be dialled, by kind. callback: the attacker's own name,
    callback_at: its address. host_at: this host's address, where a service has the secret at port 80; secret_file: where it lies.
    proxy_port: of the gateway, where the wall is a proxy that clients must ask (other walls than ours).
    """

    packages: str = "packages.example.com"
    second: str = "second.example.com"
    hidden: str = "hidden.example.net"
    open: str = "open.example.com"
    plain: str = "plain.example.com"
    wild: str = "wild.example.com"
    stream: str = "stream.example.com"
    false: str = "false.example.com"
    callback: str = "callback.example.net"
    bad: Mapping[str, str] = field(default_factory=dict)
    shared_at: str = ""
    callback_at: str = ""
    resolver_at: str = ""
    host_at: str = ""
    host_port: int = 80
    secret_file: str = ""
    gateway: str = "10.0.0.1"
    guest: str = "10.0.0.2"
    proxy_port: int = 0
