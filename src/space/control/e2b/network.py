"""E2B's network object as a policy of ours and the grants that its rules want. A pure translation: what may be, our own policies decide.

    internet (allowed unless said otherwise)      `open` where the tenant may have it, else the tenant's own policy, and the answer says so
    denyOut with 0.0.0.0/0, or no internet        nothing but allowOut: names as rules for 443 and 80, addresses and networks as `cidr`
    rules                                         a grant for each host, whose secret the broker puts into one header on the way

E2B's precedence is kept: what allowOut names is let out whatever denyOut says. `docs/e2b.md` tells what differs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv4Network, NetmaskValueError
from typing import Any, Final

from space.control.e2b.faults import NotHere
from space.control.e2b.forms import Network
from space.model.errors import InvalidArgument

ALL: Final = IPv4Network("0.0.0.0/0")
_NAME = re.compile(r"(?:\*\.)?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)+\.?\Z")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}\Z")
_SECRET = re.compile(r"\$\{e2b\.secrets\.([A-Za-z0-9][A-Za-z0-9._-]{0,127})\}")
_IDENTITY = "${e2b.identity."


@dataclass(frozen=True, slots=True)
class Loan:
    """One header that requests to a host get. secret: its name; None where the value is written in the rule itself.

    template: the header's value with `{}` for the secret.
    """

    host: str
    header: str
    template: str
    secret: str | None
    value: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What was understood. policy: None where the tenant's own holds. internet: as answers say it. words: how it was mapped.

    hosts: rules that grants are for, by host, without the grants' names: whoever makes them puts them in with `lent`.
    """

    policy: dict[str, Any] | None
    internet: bool | None
    words: str
    loans: tuple[Loan, ...] = ()

    def lent(self, names: Mapping[str, str]) -> dict[str, Any] | None:
        """The policy with the grants of hosts in its rules. names: by host."""
        if self.policy is None:
            return None
        rules = self.policy.get("rule", [])
        return self.policy | {
            "rule": [rule | ({"grant": names[rule["host"]]} if _takes(rule) and rule["host"] in names else {}) for rule in rules]
        }


def outgoing(network: Network | None, internet: bool | None, permits: Collection[str]) -> Outgoing:
    """The mapping. internet: `allow_internet_access` as given. permits: what the tenant may have. InvalidArgument, NotHere."""
    said = network or Network()
    for what, there in (("egressProxy", said.egress_proxy), ("dnsServers", said.dns_servers)):
        if there:
            raise NotHere(f"network.{what} is not supported: this server's gateway is the only way out, and resolves names itself")
    denied = [_network("denyOut", text) for text in said.deny_out or ()]
    names, networks = _split(said.allow_out or ())
    everything = internet is False or ALL in denied
    loans = _loans(said)
    if names and not everything:
        raise InvalidArgument("network.allowOut names a domain, so network.denyOut has to contain 0.0.0.0/0")
    if everything:
        reached = {loan.host for loan in loans if _allowed(loan.host, names)}
        rules = [rule for name in dict.fromkeys([*names, *sorted(reached)]) for rule in _rules(name)]
        words = "only what allowOut names may leave" if rules or networks else "nothing may leave"
        return Outgoing({"version": 1, "rule": rules, "cidr": [str(one) for one in networks]}, False, words, _kept(loans, reached))
    if "open" not in permits:
        words = "the operator does not permit `open`: the policy of the key's tenant holds"
        if denied or loans:
            raise NotHere(
                f"{words}, which denyOut and rules cannot change",
                hint="name what may leave: denyOut 0.0.0.0/0 with allowOut; or an admin permits it: PUT /v1/tenants/{tenant}/policy",
            )
        return Outgoing(None, internet, words)
    policy: dict[str, Any] = {"version": 1, "open": True}
    if loans:
        policy["rule"] = [rule for loan in loans for rule in _rules(loan.host)]
    if shut := _shut(denied, networks):
        raise NotHere(
            f"network.denyOut: {shut[0]} alone cannot be denied here: a policy says what may leave",
            hint="denyOut 0.0.0.0/0, and what may leave in allowOut",
        )
    return Outgoing(policy, True if internet is None else internet, "any public name and address may be reached", loans)


def _kept(loans: tuple[Loan, ...], hosts: Collection[str]) -> tuple[Loan, ...]:
    return tuple(loan for loan in loans if loan.host in hosts)


def _allowed(host: str, names: Collection[str]) -> bool:
    """E2B's rules open nothing: whether the host is let out besides."""
    return host in names or any(name.startswith("*.") and host.endswith(name[1:]) for name in names)


def _takes(rule: Mapping[str, Any]) -> bool:
    return "host" in rule and rule.get("scheme", "https") == "https"


def _rules(name: str) -> list[dict[str, Any]]:
    return [{"host": name, "websocket": True}, {"host": name, "scheme": "http", "websocket": True}]


def _shut(denied: list[IPv4Network], allowed: list[IPv4Network]) -> list[IPv4Network]:
    """What is denied less what is allowed, for that goes first."""
    left = list(denied)
    for one in allowed:
        left = [part for each in left for part in _without(each, one)]
    return left


def _without(network: IPv4Network, hole: IPv4Network) -> list[IPv4Network]:
    if network.subnet_of(hole):
        return []
    return list(network.address_exclude(hole)) if hole.subnet_of(network) else [network]


def _split(targets: Collection[str]) -> tuple[list[str], list[IPv4Network]]:
    names, networks = [], []
    for text in targets:
        if _NAME.match(text) and not text.replace(".", "").isdigit():
            names.append(text.lower().rstrip("."))
        else:
            networks.append(_network("allowOut", text))
    return names, networks


def _network(where: str, text: str) -> IPv4Network:
    if ":" in text:
        raise NotHere(f"network.{where}: {text[:64]!r}: there is no IPv6 out of a sandbox here")
    try:
        found = IPv4Network(text, strict=False)
    except (AddressValueError, NetmaskValueError, ValueError):
        raise InvalidArgument(
            f"network.{where}: {text[:64]!r} is no address, network{' or domain' if where == 'allowOut' else ''}"
        ) from None
    if "/" not in text and found.network_address == ALL.network_address:
        raise InvalidArgument(f"network.{where}: 0.0.0.0 alone is no address", hint="all traffic is 0.0.0.0/0")
    return found


def _loans(said: Network) -> tuple[Loan, ...]:
    found = []
    for host, rules in (said.rules or {}).items():
        name = host.lower().rstrip(".")
        if not _NAME.match(name):
            raise InvalidArgument(f"network.rules: {host[:64]!r} is no domain")
        headers = {} if not rules or rules[0].transform is None else rules[0].transform.headers
        if not headers:
            continue
        if name.startswith("*."):
            raise NotHere(f"network.rules: {host[:64]!r}: a credential is for one host here, never for a wildcard")
        if len(headers) > 1:
            raise NotHere(f"network.rules: {host[:64]!r} has {len(headers)} headers: requests to a host get one here")
        [(header, value)] = headers.items()
        found.append(_loan(name, header, value))
    return tuple(found)


def _loan(host: str, header: str, value: str) -> Loan:
    where = f"network.rules[{host}].transform.headers"
    if not _HEADER.match(header):
        raise InvalidArgument(f"{where}: {header[:64]!r} is no name of a header")
    if _IDENTITY in value:
        raise NotHere(f"{where}: identity tokens are not supported")
    secrets = _SECRET.findall(value)
    if not secrets:
        return Loan(host, header.lower(), "{}", None, value)
    if len(secrets) > 1 or "{}" in value:
        raise NotHere(f"{where}.{header}: one secret in a header is supported")
    return Loan(host, header.lower(), _SECRET.sub("{}", value), secrets[0].lower())
