"""Settings of egress are read strictly, once, for everybody who goes by them."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_network
from pathlib import Path

import pytest

from space.config import egress
from space.config.settings import resolve
from space.model.errors import InvalidArgument, Unavailable


def test_resolvers_are_addresses_with_or_without_a_port() -> None:
    found = egress.resolvers(["192.0.2.53", "192.0.2.54:5353", "2001:db8::53", "[2001:db8::54]", "[2001:db8::55]:5353"])
    assert found == (
        (IPv4Address("192.0.2.53"), 53),
        (IPv4Address("192.0.2.54"), 5353),
        (IPv6Address("2001:db8::53"), 53),
        (IPv6Address("2001:db8::54"), 53),
        (IPv6Address("2001:db8::55"), 5353),
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "dns.example.com", "192.0.2.53:", "192.0.2.53:0", "192.0.2.53:65536", "192.0.2.53:x", "192.0.2.53:-1", "192.0.2.53:٥"),
        *(
            "[2001:db8::53]53",
            "[2001:db8::53]:",
            "[2001:db8::53",
            "2001:db8::53%lo",
            "0.0.0.0",
            "224.0.0.1",
            "::",
            "192.0.2.053",
            " 192.0.2.1",
        ),
    ],
)
def test_what_is_no_resolver_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "default.toml"
    file.write_text(f"egress_resolvers = [{json.dumps(text)}]\n")
    with pytest.raises(InvalidArgument, match="egress_resolvers"):
        resolve(file)


def test_without_the_setting_the_machines_resolvers_are_asked(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text(
        "# nameserver 192.0.2.9\nnameserver 192.0.2.53\nnameserver nonsense\nsearch a.example.com\n"
        "nameserver 2001:db8::53\nnameserver 192.0.2.53\n"
    )
    assert egress.chosen_resolvers((), file) == ((IPv4Address("192.0.2.53"), 53), (IPv6Address("2001:db8::53"), 53))
    assert egress.chosen_resolvers(("192.0.2.1",), file) == ((IPv4Address("192.0.2.1"), 53),)


def test_without_any_resolver_nothing_is_guessed(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="egress_resolvers"):
        egress.chosen_resolvers((), tmp_path / "none")


def test_reachable_networks_are_exact() -> None:
    assert egress.reachable(["10.1.0.0/16", "10.2.3.4/32", "fd00::/8"]) == tuple(
        map(ip_network, ("10.1.0.0/16", "10.2.3.4/32", "fd00::/8"))
    )


@pytest.mark.parametrize("text", ["10.1.2.3/16", "0.0.0.0/0", "::/0", "224.0.0.0/4", "host.example.com", "10.0.0.0/33", "fe80::%lo/64"])
def test_a_network_that_cannot_be_meant_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="egress_reachable"):
        resolve(tmp_path / "none.toml", {"egress_reachable": text})


def test_the_synthetic_range_is_large_enough_and_not_the_guests_own_link(tmp_path: Path) -> None:
    assert egress.synthetic("198.18.0.0/15") == IPv4Network("198.18.0.0/15")
    for text in ("10.0.0.0/8", "198.18.0.0/24", "fd00::/64", "198.18.0.1/15", "x"):
        with pytest.raises(InvalidArgument, match="egress_synthetic"):
            resolve(tmp_path / "none.toml", {"egress_synthetic": text})


@pytest.mark.parametrize("key", ["egress_ca_file", "broker_keyring"])
def test_paths_are_absolute(key: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=f"{key} is an absolute path"):
        resolve(tmp_path / "none.toml", {key: "here.pem"})
    assert getattr(resolve(tmp_path / "none.toml", {key: "/there.pem"}).settings, key) == "/there.pem"
