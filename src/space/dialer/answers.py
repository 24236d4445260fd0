"""What an upstream DNS message says of exactly one name and type. Pure: message in, addresses or the reason for none out.

The message is a recursive resolver's, and whoever owns the name chose its content: chains are followed within the message only, a few
steps, each a single CNAME; records of other owners are not looked at; more addresses than anybody needs condemn the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from space.core.policy.addresses import Address


class Hostile(Exception):
    """An answer that is none: looping, too long, of two minds. The message says how."""


class Unusable(Exception):
    """The resolver could not or would not (SERVFAIL, REFUSED and their like): another may."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one answer. chain: CNAMEs. ttl, negative: seconds that something is kept at most; default: of a negative answer without a SOA."""

    chain: int = 8
    addresses: int = 64
    ttl: int = 300
    negative: int = 60
    default: int = 5


@dataclass(frozen=True, slots=True)
class Section:
    """addresses: in the answer's order, empty when there are none of that type. exists: the name does. ttl: seconds, within the bounds."""

    addresses: tuple[Address, ...]
    exists: bool
    ttl: int


def read(message: dns.message.Message, name: dns.name.Name, kind: dns.rdatatype.RdataType, bounds: Bounds) -> Section:
    """The answer to (name, kind) in a message that is a response to it. Hostile, Unusable."""
    code = message.rcode()
    if code not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
        raise Unusable(dns.rcode.to_text(code))
    owner, ttl, seen = name, bounds.ttl, {name}
    while True:
        records = _records(message, owner, kind)
        if records is not None:
            if code == dns.rcode.NXDOMAIN:
                raise Hostile("addresses of a name that does not exist")
            return Section(_addresses(records, bounds), True, max(0, min(ttl, records.ttl)))
        alias = _records(message, owner, dns.rdatatype.CNAME)
        if alias is None:
            return Section((), code == dns.rcode.NOERROR, _negative(message, owner, min(ttl, bounds.negative), bounds))
        if len(alias) != 1:
            raise Hostile(f"{len(alias)} aliases of one name")
        owner, ttl = alias[0].target, min(ttl, alias.ttl)
        if owner in seen or len(seen) > bounds.chain:
            raise Hostile("a loop of aliases" if owner in seen else f"more than {bounds.chain} aliases")
        seen.add(owner)


def _records(message: dns.message.Message, owner: dns.name.Name, kind: dns.rdatatype.RdataType) -> dns.rrset.RRset | None:
    return message.get_rrset(message.answer, owner, dns.rdataclass.IN, kind)


def _addresses(records: dns.rrset.RRset, bounds: Bounds) -> tuple[Address, ...]:
    if len(records) > bounds.addresses:
        raise Hostile(f"{len(records)} addresses, at most {bounds.addresses} are taken")
    return tuple(ip_address(record.address) for record in records)


def _negative(message: dns.message.Message, owner: dns.name.Name, most: int, bounds: Bounds) -> int:
    """RFC 2308: the less of the SOA's own time and what it says of absent names."""
    for records in message.authority:
        if records.rdtype == dns.rdatatype.SOA and owner.is_subdomain(records.name) and len(records) == 1:
            return max(0, min(most, records.ttl, int(records[0].minimum)))
    return min(most, bounds.default)
