"""Which addresses may be dialled, against the special-purpose registries and the forms that hide an address in another."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.policy.addresses import Dialable, Ranges, Undialable, judge, judge_all, kind_of

TABLE = [
    ("8.8.8.8", None),
    ("1.1.1.1", None),
    ("223.255.255.255", None),
    ("99.255.255.255", None),
    ("2606:4700::1111", None),
    ("2a00:1450:4001::1", None),
    ("0.0.0.0", "unspecified"),
    ("0.255.255.255", "unspecified"),
    ("10.0.0.0", "private"),
    ("10.255.255.255", "private"),
    ("11.0.0.0", None),
    ("100.63.255.255", None),
    ("100.64.0.0", "shared"),
    ("100.127.255.255", "shared"),
    ("100.128.0.0", None),
    ("100.100.100.200", "metadata"),
    ("127.0.0.1", "loopback"),
    ("127.255.255.255", "loopback"),
    ("169.254.169.254", "metadata"),
    ("169.254.0.1", "link-local"),
    ("168.63.129.16", "metadata"),
    ("168.63.129.17", None),
    ("172.15.255.255", None),
    ("172.16.0.0", "private"),
    ("172.31.255.255", "private"),
    ("172.32.0.0", None),
    ("192.0.0.1", "protocol"),
    ("192.0.0.192", "metadata"),
    ("192.0.2.1", "documentation"),
    ("192.88.99.1", "6to4"),
    ("192.168.0.0", "private"),
    ("198.17.255.255", None),
    ("198.18.0.0", "benchmark"),
    ("198.19.255.255", "benchmark"),
    ("198.20.0.0", None),
    ("198.51.100.7", "documentation"),
    ("203.0.113.7", "documentation"),
    ("224.0.0.1", "multicast"),
    ("239.255.255.255", "multicast"),
    ("240.0.0.0", "reserved"),
    ("255.255.255.255", "broadcast"),
    ("::", "unspecified"),
    ("::1", "loopback"),
    ("::127.0.0.1", "compatible"),
    ("::169.254.169.254", "compatible"),
    ("::ffff:127.0.0.1", "mapped"),
    ("::ffff:8.8.8.8", "mapped"),
    ("::ffff:0:8.8.8.8", "mapped"),
    ("64:ff9b::169.254.169.254", "nat64"),
    ("64:ff9b::8.8.8.8", "nat64"),
    ("64:ff9b:1::1", "nat64"),
    ("100::1", "discard"),
    ("2001::1", "teredo"),
    ("2001:2::1", "benchmark"),
    ("2001:10::1", "protocol"),
    ("2001:20::1", "protocol"),
    ("2001:db8::1", "documentation"),
    ("2001:200::1", None),
    ("2002:7f00:1::", "6to4"),
    ("3fff::1", "documentation"),
    ("3fff:1000::1", None),
    ("4000::1", "unassigned"),
    ("5f00::1", "segment-routing"),
    ("fc00::1", "private"),
    ("fd00:ec2::254", "metadata"),
    ("fd20:ce::254", "metadata"),
    ("fe80::1", "link-local"),
    ("fec0::1", "site-local"),
    ("ff02::1", "multicast"),
]


@pytest.mark.parametrize(("text", "kind"), TABLE, ids=[row[0] for row in TABLE])
def test_every_kind_of_address_has_its_word(text: str, kind: str | None) -> None:
    verdict = judge(ip_address(text))
    assert verdict == (Dialable(listed=False) if kind is None else Undialable(kind))


@pytest.mark.parametrize("inner", ["127.0.0.1", "10.0.0.1", "169.254.169.254"])
@pytest.mark.parametrize("universal", [0x0000_5EFE, 0x0200_5EFE])
def test_an_address_inside_an_interface_identifier_counts(inner: str, universal: int) -> None:
    address = IPv6Address((0x2A00_1450_0000_0001 << 64) | (universal << 32) | int(IPv4Address(inner)))
    assert judge(address) == Undialable("isatap")
    assert judge(IPv6Address((int(address) >> 32 << 32) | int(IPv4Address("8.8.8.8")))) == Dialable(listed=False)


def test_a_zone_chooses_an_interface_and_is_refused() -> None:
    assert judge(ip_address("2606:4700::1%eth0")) == Undialable("scoped")


def test_a_listed_range_opens_itself_and_not_its_forms_in_the_other_family() -> None:
    ranges = Ranges.of(listed=["10.1.0.0/16", "fd00:1::/32"])
    assert judge(ip_address("10.1.2.3"), ranges) == Dialable(listed=True)
    assert judge(ip_address("10.2.0.1"), ranges) == Undialable("private")
    assert judge(ip_address("::ffff:10.1.2.3"), ranges) == Undialable("mapped")
    assert judge(ip_address("64:ff9b::10.1.2.3"), ranges) == Undialable("nat64")
    assert judge(ip_address("fd00:1::9"), ranges) == Dialable(listed=True)


def test_the_hosts_own_addresses_stay_shut_inside_a_listed_range() -> None:
    own = ["10.1.0.5", "8.8.4.4", "2a00::5"]
    assert judge(ip_address("10.1.0.5"), Ranges.of(own, ["10.0.0.0/8"])) == Undialable("own")
    assert judge(ip_address("8.8.4.4"), Ranges.of(own)) == Undialable("own")
    assert judge(ip_address("2a00::5"), Ranges.of(own)) == Undialable("own")
    assert judge(ip_address("10.1.0.5"), Ranges.of(own, ["10.1.0.5/32"])) == Dialable(listed=True)


def test_a_mixed_answer_is_refused_whole() -> None:
    public, private = ip_address("8.8.8.8"), ip_address("10.0.0.1")
    assert judge_all([public, private]) == judge_all([private, public]) == Undialable("private")
    assert judge_all([public, ip_address("2606:4700::1")]) == Dialable(listed=False)
    assert judge_all([]) == Undialable("none")


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0.0/33", "example.com", ""])
def test_ranges_that_are_none_are_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        Ranges.of(listed=[text])


@given(st.integers(0, 2**32 - 1))
def test_no_ipv4_address_is_open_that_python_calls_private(value: int) -> None:
    address = IPv4Address(value)
    if kind_of(address) is None:
        assert address.is_global
        assert not any((address.is_multicast, address.is_reserved, address.is_link_local))


@given(st.integers(0, 2**128 - 1) | st.integers(0, 2**125 - 1).map(lambda low: (1 << 125) | low))
def test_no_ipv6_address_is_open_outside_of_unicast(value: int) -> None:
    address = IPv6Address(value)
    if kind_of(address) is None:
        assert address in ip_network("2000::/3")
        assert address.is_global
        assert address.sixtofour is None
        assert address.teredo is None
        assert address.ipv4_mapped is None
