"""Own addresses: the dump's parser under hostile bytes, and the kernel's own answer."""

from __future__ import annotations

import errno
import socket
import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.host import netlink
from space.host.netlink import Address, OwnAddresses


def _message(kind: int, body: bytes, flags: int = 0) -> bytes:
    padded = body + bytes(-len(body) % 4)
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + padded


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _addressed(family: int, *attributes: bytes) -> bytes:
    return _message(20, struct.pack("=BBBBI", family, 24, 0, 0, 1) + b"".join(attributes))


def test_loopback_is_among_them() -> None:
    own = OwnAddresses()
    try:
        assert ip_address("127.0.0.1") in own.now()
    finally:
        own.close()


def test_closed_subscription_is_an_error_and_not_an_old_answer() -> None:
    own = OwnAddresses()
    own.close()
    with pytest.raises(OSError):
        own.now()


def test_own_side_of_a_point_to_point_link_is_taken() -> None:
    found: set[Address] = set()
    peer, ours = ip_address("192.0.2.1").packed, ip_address("192.0.2.2").packed
    assert netlink.take(_addressed(socket.AF_INET, _attribute(1, peer), _attribute(2, ours)), found) is None
    assert found == {ip_address("192.0.2.2")}


def test_several_messages_and_the_end() -> None:
    found: set[Address] = set()
    data = _addressed(socket.AF_INET6, _attribute(1, ip_address("fe80::1").packed)) + _message(3, bytes(4))
    assert netlink.take(data, found) is True
    assert found == {ip_address("fe80::1")}


def test_interrupted_dump_is_void() -> None:
    assert netlink.take(_message(20, bytes(8), flags=0x10), set()) is False


def test_refusal_of_the_kernel_is_an_error_with_its_number() -> None:
    with pytest.raises(OSError) as caught:
        netlink.take(_message(2, struct.pack("=i", -errno.EPERM) + bytes(16)), set())
    assert caught.value.errno == errno.EPERM


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda body: _message(20, body)))
def test_bytes_are_read_or_are_an_error(data: bytes) -> None:
    try:
        netlink.take(data, set())
    except OSError:
        return
