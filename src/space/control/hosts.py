"""Which Host headers belong to this server. A browser that was led here by DNS rebinding brings the attacker's name, and is refused."""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

from space.config.settings import Settings

_FORM = re.compile(r"(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::(?P<port>[0-9]{1,5}))?\Z")

# The API of E2B's form, what is addressed by headers, and a sandbox's port.
_E2B_LABEL = re.compile(r"(?:api|sandbox|[0-9]{1,5}-[a-z0-9]{1,64})\Z")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address to bind. A name counts only if it is `localhost`."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


class Hosts:
    """The list: the configured names, those below the setting `domain`, the address that was connected to, and `localhost` on loopback."""

    def __init__(self, settings: Settings) -> None:
        self._names = {name.lower() for name in settings.allowed_hosts}
        if _address(settings.host) is None:
            self._names.add(settings.host.lower())
        self._below = f".{settings.domain}" if settings.domain else None

    def admit(self, header: str, local: str) -> bool:
        """Whether `header` names this server. local: the connection's own address."""
        match = _FORM.match(header)
        if match is None:
            return False
        here = _address(local)
        name = (match["six"] or match["name"]).lower()
        address = _address(name)
        if address is None:
            if self._below is not None and name.endswith(self._below) and _E2B_LABEL.match(name.removesuffix(self._below)):
                return True
            return name in self._names or (name == "localhost" and here is not None and here.is_loopback)
        # Rebinding needs a name; an address in the header is only ever the one that was connected to, or a forwarded loopback.
        return name in self._names or address == here or (address.is_loopback and here is not None and here.is_loopback)


_LONGEST_ADDRESS = 64  # more than any; so the cache stays small whatever clients send


def _address(text: str) -> IPv4Address | IPv6Address | None:
    return _parsed(text) if len(text) <= _LONGEST_ADDRESS else None


@lru_cache(256)
def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
