"""What doctor looks at for egress: what the kernel must have for a slot's edge, who resolves, what may be reached, the broker's key.

As in `checkhost`, a probe (`see_...`) decides nothing and a judge looks at nothing. Without any of it sandboxes run, shut.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from space.config import egress, keyfile
from space.config.instance import Instance
from space.config.settings import Settings
from space.core.plan import edge, outbound
from space.core.plan.ruleset import TAP
from space.core.policy.synthetic import DEFAULT_RANGE
from space.model.errors import SpaceError
from space.setup import command
from space.setup.checkup import Check, failure, fine, warning

# The product's own rulesets, loaded in a network namespace that ends with the process that tried it, where `lo` stands for the TAP.
PROBE = edge.ruleset(edge.Plan(DEFAULT_RANGE)).replace(f'"{TAP}"', '"lo"') + outbound.text(
    outbound.Outbound(0, ((ip_address("192.0.2.53"), 53),))
)
_METADATA = ("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "fd00:ec2::254")


@dataclass(frozen=True, slots=True)
class Edge:
    """error: why a rule of an edge cannot be loaded, "" when it can, None when only root can see."""

    error: str | None


def see_edge() -> Edge:
    """By loading one, in a network namespace of its own."""
    if os.geteuid() != 0:
        return Edge(None)
    try:
        command.run(["unshare", "--net", "nft", "-f", "-"], what="load an edge's rules", stdin=PROBE.encode(), timeout=10)
    except SpaceError as error:
        return Edge(error.message.strip())
    return Edge("")


def judge_edge(found: Edge) -> Check:
    """A slot's edge and the dialer's filter: without the first a sandbox gets no slot, without the second rootd does not start."""
    looked = "the rules of an edge and of the dialer's filter in a network namespace of their own"
    if found.error is None:
        return fine("egress of the kernel", "whether it has TPROXY only root can see", looked_at=looked)
    if found.error:
        return failure(
            "egress of the kernel",
            found.error,
            "modprobe nf_tables nft_tproxy nft_fib_inet nft_reject_inet; a kernel with them is needed",
            looked_at=looked,
        )
    return fine("egress of the kernel", "ingress filter, TPROXY and the dialer's filter", looked_at=looked)


@dataclass(frozen=True, slots=True)
class Outside:
    """What an instance's gateway goes by. key: what is wrong with the broker's keyring; None without a store yet, "" when all is well."""

    instance: str
    resolvers: tuple[str, ...]
    exposed: tuple[str, ...]
    authorities: str
    keyring: Path | None
    key: str | None


def see_outside(name: str, settings: Settings, instance: Instance | None) -> Outside:
    """Its settings against this machine."""
    known = egress.resolvers(settings.egress_resolvers) or egress.machine_resolvers()
    networks = egress.reachable(settings.egress_reachable)
    exposed = tuple(str(each) for each in networks if each.num_addresses > 1 and any(ip_address(one) in each for one in _METADATA))
    authorities = ""
    if settings.egress_ca_file is not None:
        try:
            text = Path(settings.egress_ca_file).read_text()
            authorities = "" if "-----BEGIN CERTIFICATE-----" in text else f"{settings.egress_ca_file} holds no certificate"
        except (OSError, UnicodeDecodeError) as error:
            authorities = f"{settings.egress_ca_file} cannot be read: {error}"
    ring, key = None, None
    if instance is not None and os.geteuid() == 0:
        ring = instance.broker_keyring if settings.broker_keyring is None else Path(settings.broker_keyring)
        if ring.exists() or (instance.broker_data / keyfile.STORE).exists():
            key = keyfile.objection(ring, instance.broker_uid) or ""
    return Outside(name, tuple(f"{address} port {port}" for address, port in known), exposed, authorities, ring, key)


def judge_outside(found: Outside) -> Check:
    """Whether what a policy allows can be reached, and nothing that nobody meant."""
    name, looked = f"egress of {found.instance}", f"settings egress_*, {egress.RESOLV_CONF}, the broker's keyring"
    if found.key:
        remedy = "put it back, as the broker's uid with mode 0600 (docs/howto/operate.md); without it serve does not start"
        return failure(name, f"the broker's keyring {found.keyring} {found.key}", remedy, looked_at=looked)
    if found.authorities:
        return failure(name, found.authorities, "mend the setting egress_ca_file: the gateway does not start with it", looked_at=looked)
    if not found.resolvers:
        return warning(name, "there is no resolver: no name that a policy allows can be reached", "set egress_resolvers", looked_at=looked)
    detail = f"resolvers: {', '.join(found.resolvers)}"
    if found.exposed:
        fact = f"{detail}; egress_reachable has {', '.join(found.exposed)}, which hold addresses that clouds serve credentials from"
        return warning(name, fact, "list what is meant, without those", looked_at=looked)
    return fine(name, detail, looked_at=looked)
