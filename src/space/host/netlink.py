"""The addresses of this network namespace, by rtnetlink: a dump, and a subscription that says when the dump is out of date (RFC 3549).

There is no task and no timer. The kernel queues a notice with every change before the system call that made it returns, so one read that
finds nothing proves that the last dump still holds.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from ipaddress import IPv4Address, IPv6Address

Address = IPv4Address | IPv6Address

_GROUPS = 0x10 | 0x100  # RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR
_NLMSG_ERROR, _NLMSG_DONE, _RTM_NEWADDR, _RTM_GETADDR = 2, 3, 20, 22
_NLM_F_REQUEST, _NLM_F_DUMP, _NLM_F_DUMP_INTR = 0x1, 0x300, 0x10
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_HEADER = struct.Struct("=IHHII")
_IFADDRMSG = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_SIZES: dict[int, int] = {socket.AF_INET: 4, socket.AF_INET6: 16}
_READ = 1 << 16
_ATTEMPTS = 8  # of a dump that changes interrupt
_MOST_NOTICES = 4096  # taken at once before a new dump, however fast addresses change


class OwnAddresses:
    """What is bound here now. OSError from any method: it cannot be known, and whoever asks has to refuse."""

    def __init__(self) -> None:
        # Subscribed before the first dump: a change in between is a notice, and leads to another dump.
        self._notices = _netlink(_GROUPS)
        try:
            self._known = dump()
        except BaseException:
            self._notices.close()
            raise

    def now(self) -> frozenset[Address]:
        """Every address of every interface. One system call unless something has changed."""
        if self._changed():
            try:
                self._known = dump()
            except BaseException:
                self.close()  # the notice is taken: without it the old dump would look fresh for ever
                raise
        return self._known

    def close(self) -> None:
        """Let go; `now` fails afterwards."""
        self._notices.close()

    def _changed(self) -> bool:
        changed = False
        for _ in range(_MOST_NOTICES):
            try:
                data, sender = self._notices.recvfrom(_READ, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return changed
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # which says that notices were lost
                    raise
                changed = True
                continue
            if sender[0] != 0:
                continue  # not the kernel
            if not data:
                raise OSError(errno.EPIPE, "the netlink subscription has ended")
            changed = True
        return changed


def dump() -> frozenset[Address]:
    """The addresses of all interfaces of this network namespace. OSError."""
    for _ in range(_ATTEMPTS):
        found = _dump()
        if found is not None:
            return found
    raise OSError(errno.EAGAIN, "addresses change faster than they can be listed")


def _dump() -> frozenset[Address] | None:
    """None when a change interrupted it."""
    with _netlink(0) as asking:
        asking.settimeout(2.0)  # the kernel answers within the call
        request = _IFADDRMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        asking.sendto(_HEADER.pack(_HEADER.size + len(request), _RTM_GETADDR, _NLM_F_REQUEST | _NLM_F_DUMP, 1, 0) + request, (0, 0))
        found: set[Address] = set()
        while True:
            data, sender = asking.recvfrom(_READ)
            if sender[0] == 0 and (whole := take(data, found)) is not None:
                return frozenset(found) if whole else None


def take(data: bytes, found: set[Address]) -> bool | None:
    """Put the addresses of a datagram of a dump into `found`. True: that was the last; False: the dump is void; None: more follow."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, flags, _, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            raise OSError(errno.EBADMSG, "a netlink message of an impossible length")
        body = data[at + _HEADER.size : at + length]
        if flags & _NLM_F_DUMP_INTR:
            return False
        if kind == _NLMSG_ERROR:
            number = -struct.unpack_from("=i", body)[0] if len(body) >= 4 else errno.EBADMSG
            raise OSError(number, os.strerror(number), "RTM_GETADDR")
        if kind == _NLMSG_DONE:
            return True
        if kind == _RTM_NEWADDR and (address := _address(body)) is not None:
            found.add(address)
        at += (length + 3) & ~3
    return None


def _address(body: bytes) -> Address | None:
    if len(body) < _IFADDRMSG.size:
        raise OSError(errno.EBADMSG, "a netlink address message that is cut off")
    family = body[0]
    attributes: dict[int, bytes] = {}
    at = _IFADDRMSG.size
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size or at + length > len(body):
            raise OSError(errno.EBADMSG, "a netlink attribute of an impossible length")
        attributes[kind] = body[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
    # On a point-to-point link IFA_ADDRESS is the other side's; IFA_LOCAL, where it is there, is ours.
    raw = attributes.get(_IFA_LOCAL, attributes.get(_IFA_ADDRESS))
    if raw is None or len(raw) != _SIZES.get(family):
        return None
    return IPv4Address(raw) if len(raw) == 4 else IPv6Address(raw)


def _netlink(groups: int) -> socket.socket:
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    try:
        made.bind((0, groups))
    except BaseException:
        made.close()
        raise
    return made
