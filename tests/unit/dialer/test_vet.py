"""An answer is vetted whole, and not at all when the host does not know its own addresses."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from space.core.policy.addresses import Address
from space.dialer.vet import Checked, NotChecked, Vetter

PUBLIC = ip_address("8.8.8.8")


def test_public_addresses_are_checked_and_one_that_is_not_condemns_all() -> None:
    vetter = Vetter(frozenset)
    assert vetter.vet([PUBLIC]) == Checked((PUBLIC,))
    assert vetter.vet([PUBLIC, ip_address("10.0.0.1")]) == NotChecked("address_private")


def test_the_hosts_own_addresses_are_refused_unless_listed_alone() -> None:
    own = frozenset({PUBLIC})
    assert Vetter(lambda: own).vet([PUBLIC]) == NotChecked("address_own")
    assert Vetter(lambda: own, (ip_network("8.0.0.0/8"),)).vet([PUBLIC]) == NotChecked("address_own")
    assert Vetter(lambda: own, (ip_network("8.8.8.8/32"),)).vet([PUBLIC]) == Checked((PUBLIC,))


def test_nothing_is_dialled_while_own_addresses_are_not_known() -> None:
    def unknown() -> frozenset[Address]:
        raise OSError("netlink")

    assert Vetter(unknown).vet([PUBLIC]) == NotChecked("own_addresses_unknown", denied=False)
