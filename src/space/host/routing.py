"""An address, a neighbour, a rule, a route, and the end of TCP flows, by netlink: for the network namespace that one is in.

Making what is there already is fine, so that everything can be said again. Every other failure is an OSError with the kernel's errno.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address

_NETLINK_ROUTE, _NETLINK_SOCK_DIAG = 0, 4
_RTM_NEWADDR, _RTM_NEWROUTE, _RTM_NEWNEIGH, _RTM_NEWRULE = 20, 24, 28, 32
_SOCK_DIAG_BY_FAMILY, _SOCK_DESTROY = 20, 21
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP, _NLM_F_EXCL, _NLM_F_REPLACE, _NLM_F_CREATE = 0x1, 0x4, 0x300, 0x200, 0x100, 0x400
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_IFA_ADDRESS, _IFA_LOCAL, _RTA_OIF, _NDA_DST, _NDA_LLADDR, _FRA_PRIORITY, _FRA_FWMARK = 1, 2, 4, 1, 2, 6, 10
_NUD_PERMANENT, _RTPROT_STATIC, _RT_SCOPE_HOST, _RTN_LOCAL, _FR_ACT_TO_TBL = 0x80, 4, 254, 2, 1
_RULE_PRIORITY = 100
_NEW = _NLM_F_CREATE | _NLM_F_EXCL
# Every state but TIME_WAIT (6, nobody holds it) and those of a socket that speaks no more (7, 13).
_LIVING = sum(1 << state for state in range(1, 13) if state not in (6, 7))
_HEADER = struct.Struct("=IHHII")
_ANSWER_BYTES = 1 << 16


def add_address(index: int, address: IPv4Address, prefix: int) -> None:
    """An address of the interface `index`, with the route to its network once the interface is up."""
    body = struct.pack("=BBBBI", socket.AF_INET, prefix, 0, 0, index)
    _route(_RTM_NEWADDR, _NEW, body + _attribute(_IFA_LOCAL, address.packed) + _attribute(_IFA_ADDRESS, address.packed))


def add_neighbour(index: int, address: IPv4Address, mac: bytes) -> None:
    """A neighbour that is not asked for and that nothing it sends changes."""
    body = struct.pack("=BxxxiHBB", socket.AF_INET, index, _NUD_PERMANENT, 0, 0)
    attributes = _attribute(_NDA_DST, address.packed) + _attribute(_NDA_LLADDR, mac)
    _route(_RTM_NEWNEIGH, _NLM_F_CREATE | _NLM_F_REPLACE, body + attributes)


def add_rule(mark: int, table: int) -> None:
    """Packets with this mark are looked up in this table (below 256) first."""
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, table, 0, 0, _FR_ACT_TO_TBL, 0)
    _route(_RTM_NEWRULE, _NEW, body + _attribute(_FRA_FWMARK, _u32(mark)) + _attribute(_FRA_PRIORITY, _u32(_RULE_PRIORITY)))


def add_local_route(index: int, table: int) -> None:
    """In this table (below 256) every address is one of this host."""
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, table, _RTPROT_STATIC, _RT_SCOPE_HOST, _RTN_LOCAL, 0)
    _route(_RTM_NEWROUTE, _NEW, body + _attribute(_RTA_OIF, _u32(index)))


def end_flows() -> int:
    """Abort every IPv4 TCP socket of this namespace, listening or connected, whoever holds it; how many are left.

    OSError with EOPNOTSUPP where the kernel was built without CONFIG_INET_DIAG_DESTROY.
    """
    with _channel(_NETLINK_SOCK_DIAG) as channel:
        for flow in channel.dump(_SOCK_DIAG_BY_FAMILY, _flow(bytes(48))):
            # The answer holds the socket's identity after four bytes: family, state, timer, retransmissions.
            try:
                channel.ask(_SOCK_DESTROY, 0, _flow(flow[4:52]))
            except FileNotFoundError:
                continue  # it ended by itself
        return len(channel.dump(_SOCK_DIAG_BY_FAMILY, _flow(bytes(48))))


def _flow(identity: bytes) -> bytes:
    return struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, _LIVING) + identity


def _route(kind: int, flags: int, body: bytes) -> None:
    with _channel(_NETLINK_ROUTE) as channel:
        try:
            channel.ask(kind, flags, body)
        except FileExistsError:
            return


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _u32(value: int) -> bytes:
    return struct.pack("=I", value)


@dataclass(slots=True)
class _Channel:
    """One netlink socket: questions and their answers, one after the other."""

    socket: socket.socket

    def ask(self, kind: int, flags: int, body: bytes) -> None:
        """Say it and wait for the acknowledgement."""
        self._send(kind, _NLM_F_REQUEST | _NLM_F_ACK | flags, body)
        for kind_of, content in self._receive():
            if kind_of == _NLMSG_ERROR:
                _check(content)
                return
        raise OSError(errno.EPROTO, "netlink gave no acknowledgement")

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """Everything of a kind."""
        self._send(kind, _NLM_F_REQUEST | _NLM_F_DUMP, body)
        found: list[bytes] = []
        while True:
            for kind_of, content in self._receive():
                if kind_of == _NLMSG_DONE:
                    return found
                if kind_of == _NLMSG_ERROR:
                    _check(content)
                found.append(content)

    def _send(self, kind: int, flags: int, body: bytes) -> None:
        self.socket.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body)

    def _receive(self) -> Iterator[tuple[int, bytes]]:
        sender = -1
        while sender != 0:  # who lives in the namespace may write to us as well: only the kernel is believed
            data, (sender, _) = self.socket.recvfrom(_ANSWER_BYTES)
        while len(data) >= _HEADER.size:
            length, kind, *_ = _HEADER.unpack_from(data)
            if not _HEADER.size <= length <= len(data):
                raise OSError(errno.EPROTO, "netlink gave a message that is cut off")
            yield kind, data[_HEADER.size : length]
            data = data[length + -length % 4 :]


def _check(content: bytes) -> None:
    number = -int(struct.unpack_from("=i", content)[0])
    if number:
        raise OSError(number, os.strerror(number), "netlink")


@contextmanager
def _channel(family: int) -> Iterator[_Channel]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family) as channel:
        channel.settimeout(10)
        channel.bind((0, 0))
        yield _Channel(channel)
