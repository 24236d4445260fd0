"""The ground on which techniques are tried: a town with servers that are allowed and ones that are not, a secret, the oracles.

with ground() as place:
    machine.private(runtime, log, **place.settings)
    mark = place.mark()
    ...                                     # an attempt
    place.reached(mark, policy)     # what an oracle saw of it: empty when nothing got through
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from space.testing.egresstown import Town, town
from space_evaluate.servers import Seen, Server, Sink
from space_evaluate.sniffer import Sniffer
from space_evaluate.technique import Ground, Policy

T = TypeVar("T")
API = "api.example.com"  # wants a credential, which a grant gives
READ = ("GET", "HEAD")
_PACKAGES_AT, _OPEN_AT, _PLAIN_AT, _WILD_AT, _STREAM_AT, _API_AT, _FALSE_AT, _CALLBACK_AT = 20, 21, 22, 23, 24, 25, 26, 60
_INNER_AT = 130  # private, and not in what the operator lists
_SINK_PORTS = (22, 53, 80, 853, 2222, 8080)
_BAD: Mapping[str, tuple[str, ...]] = {
    "inner": ("{inner}",),
    "host": ("{host}",),
    "metadata": ("169.254.169.254",),
    "loopback": ("127.0.0.1",),
    "loopback6": ("::1",),
    "mixed": ("{packages}", "{inner}"),
    "mapped": ("::ffff:{inner}",),
    "nat64": ("64:ff9b::a9fe:a9fe",),
    "sixtofour": ("2002:7f00:1::1",),
    "teredo": ("2001:0:7f00:1::",),
    "unspecified": ("0.0.0.0",),
    "cgnat": ("100.64.0.1",),
    "multicast": ("224.0.0.1",),
    "broadcast": ("255.255.255.255",),
    "benchmark": ("198.18.0.1",),
    "documentation": ("203.0.113.7",),
    "metadata6": ("fd00:ec2::254",),
    "linklocal6": ("fe80::1",),
    "azure": ("168.63.129.16",),
}


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in everything that is written down."""

    packets: int
    seen: int
    handshakes: int
    asked: int
    taken: int
    host: int


class _Wildcards(dict[tuple[str, str], list[str]]):
    """Records of a zone in which every name below one is at its address."""

    def __init__(self, below: str, address: str) -> None:
        super().__init__()
        self._below, self._address = f".{below}", address

    def get(self, key: tuple[str, str], default: Any = None) -> Any:
        if key not in self and key[0].endswith(self._below):
            return [f"{key[0]}. 60 A {self._address}"] if key[1] == "A" else []
        return super().get(key, default)


class Place:
    """Made by `ground`. told: what guests are told. secret: in the file of the host, and of its service. credential: that a grant lends."""

    def __init__(self, place: Town, secret_file: Path) -> None:
        self.town = place
        self.secret = f"host-{secrets.token_hex(16)}"
        self.credential = f"lent-{secrets.token_hex(16)}"
        secret_file.write_text(self.secret + "\n")
        secret_file.chmod(0o644)
        self.sniffer = Sniffer()
        self.seen: list[Seen] = []
        self.handshakes: list[tuple[str, str]] = []  # a server, and the SNI
        self.taken: list[bytes] = []  # by the attacker's own servers
        self.host_taken: list[bytes] = []  # by the host's service
        self._servers: dict[str, Server] = {}
        self._sink, self._host = Sink(self.taken.append), Sink(self.host_taken.append)
        at = {"inner": self._at(_INNER_AT), "host": self._at(1), "packages": self._at(_PACKAGES_AT)}
        self._bad = {f"{kind}.bad.example.com": [one.format(**at) for one in addresses] for kind, addresses in _BAD.items()}
        self.told = Ground(
            bad={name.partition(".")[0]: name for name in self._bad} | {"alias": "alias.bad.example.com"},
            shared_at=self._at(_PACKAGES_AT), callback_at=self._at(_CALLBACK_AT), resolver_at=self._at(53), host_at=self._at(1),
            host_port=0, secret_file=str(secret_file),
        )  # fmt: skip
        self.allowed: dict[str, frozenset[str]] = {}

    # -- what an instance and a guest get --------------------------------------------------------------------------
    @property
    def settings(self) -> dict[str, str]:
        """Of an instance that may reach what a policy allows here, and no other address of this network."""
        half = next(self.town.network.subnets(prefixlen_diff=1))
        return self.town.settings | {"egress_reachable": str(half)}

    def policy(self, which: Policy, *more: Mapping[str, Any]) -> dict[str, Any] | None:
        """The document; None where nothing is allowed."""
        if which == "blocked":
            return None
        told = self.told
        read: dict[str, Any] = {"methods": list(READ), "paths": ["/simple/**", "/files/**"]}
        rules: list[dict[str, Any]] = [
            {"host": told.packages, **read},
            {"host": told.second, **read},
            {"host": told.open, "paths": ["/socket"], "websocket": True},
            {"host": told.open},
            {"host": told.plain, "scheme": "http", "methods": list(READ)},
            {"host": f"*.{told.wild}", **read},
            {"tcp": f"{told.stream}:2222"},
            {"host": API, "methods": ["GET", "POST"]},
            {"host": told.false},
            *({"host": name} for name in told.bad.values()),
            *map(dict, more),
        ]
        return {"version": 1, "rule": rules}

    def as_json(self) -> dict[str, Any]:
        """What guests are told."""
        return asdict(self.told)

    # -- oracles ---------------------------------------------------------------------------------------------------
    def mark(self) -> Mark:
        """Now."""
        asked = self.town.zone.asked
        return Mark(len(self.sniffer.packets), len(self.seen), len(self.handshakes), len(asked), len(self.taken), len(self.host_taken))

    def reached(self, since: Mark, policy: Policy, token: str, loot: bytes = b"") -> list[str]:
        """What got through since then, in words; empty when nothing did. loot: everything that the guest was told."""
        found = [
            f"the wire had {packet}"
            for packet in self.sniffer.packets[since.packets :]
            if self._is_foreign(packet.address, packet.port, packet.opens, policy)
        ]
        found += [
            f"a server saw what no rule allows: {one}"
            for one in self.seen[since.seen :]
            if policy == "blocked" or not self._is_permitted(one)
        ]
        found += [
            f"{server} was asked for {sni!r}"
            for server, sni in self.handshakes[since.handshakes :]
            if sni.lower() not in self._names_of(server)
        ]
        found += [f"the attacker's server took {data[:60]!r}" for data in self.taken[since.taken :]]
        found += [f"the host's service took {data[:60]!r}" for data in self.host_taken[since.host :]]
        asked = self.town.zone.asked[since.asked :]
        found += [
            f"the resolver was asked for {name} {kind} by {how}"
            for how, name, kind in asked
            if policy == "blocked" or token in name or not self._is_known(name)
        ]
        for what, value in (("the host's secret", self.secret), ("the lent credential", self.credential)):
            if any(form in loot for form in (value.encode(), value.encode().hex().encode())):
                found.append(f"the guest has {what}")
        return list(dict.fromkeys(found))

    def _is_foreign(self, address: str, port: int, opens: bool, policy: Policy) -> bool:
        known = (address, port) in self._endpoints
        return opens if policy == "blocked" and known else not known

    def _is_known(self, name: str) -> bool:
        plain = name.lower()
        return (
            plain in self.allowed
            or plain in self.told.bad.values()
            or plain.endswith(f".{self.told.wild}")
            or plain == "inner.bad.example.com"
        )

    def _is_permitted(self, one: Seen) -> bool:
        host = one.host.lower().removesuffix(":443").removesuffix(":80")
        allowed_here = self._names_of(one.server)
        if host not in allowed_here or (one.sni and one.sni.lower() != host):
            return False
        if self.credential.encode() in one.raw and (one.server, one.method) != (API, "GET"):  # what the grant is for
            return False
        read = one.server in (self.told.packages, self.told.wild)
        path = one.target.partition("?")[0]
        return not read or (one.method in READ and path.startswith(("/simple/", "/files/")))

    def _names_of(self, server: str) -> frozenset[str] | _Below:
        return _Below(self.told.wild) if server == self.told.wild else self.allowed[server]

    # -- its life --------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Servers, names, the secret's service."""
        told, zone = self.told, self.town.zone
        zone.records = _Wildcards(told.wild, self._at(_WILD_AT))
        self._serve(told.packages, _PACKAGES_AT, (told.packages, told.second), more=(told.hidden,))
        self._serve(told.open, _OPEN_AT, (told.open,))
        self._serve(told.wild, _WILD_AT, (told.wild,))
        self._serve(API, _API_AT, (API,), key=self.credential)
        self._serve(told.plain, _PLAIN_AT, (told.plain,), port=80)
        self._serve(told.stream, _STREAM_AT, (told.stream,), port=2222)
        self._serve_false(told.false, _FALSE_AT)
        zone.address(told.callback, told.callback_at)
        for name, addresses in self._bad.items():
            zone.address(name, *addresses)
        zone.alias("alias.bad.example.com", "inner.bad.example.com", address=self._at(_INNER_AT))
        self._endpoints = {(self._at(at), 443) for at in (_PACKAGES_AT, _OPEN_AT, _WILD_AT, _API_AT, _FALSE_AT)}
        self._endpoints |= {(self._at(_PLAIN_AT), 80), (self._at(_STREAM_AT), 2222), (self._at(53), 53)}
        self.town.call(self._sinks())
        self.town.call(self.sniffer.start("street"))

    def end(self) -> None:
        """None of it listens any more."""
        self.town.call(self.sniffer.stop())
        self.town.call(self._close())

    async def _close(self) -> None:
        for server in self._servers.values():
            server.close()
        self._sink.close()
        self._host.close()

    async def _sinks(self) -> None:
        for port in _SINK_PORTS:
            await self._sink.start(self.told.callback_at, port)
        await self._sink.start(self.told.callback_at, 443, self.town.context(self.told.callback))

    def host_service(self) -> None:
        """A service on the host's own address, as databases and dashboards of operators are; its port goes into what guests are told."""
        sock = socket.create_server((self.told.host_at, 0))

        async def start() -> None:
            await self._host.take(await asyncio.start_server(self._give, sock=sock))

        self.town.call(start())
        self.told = Ground(**asdict(self.told) | {"host_port": sock.getsockname()[1]})

    async def _give(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.host_taken.append(b"(connected)")
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(self.secret)}\r\n\r\n{self.secret}".encode())
        writer.close()

    def _serve(self, server: str, last: int, names: tuple[str, ...], *, more: tuple[str, ...] = (), port: int = 443, key: str = "") -> None:
        made = self._servers[server] = Server(server, self.seen.append, self._hello, key=key)
        self.allowed[server] = frozenset(names)
        self.allowed.update({name: frozenset(names) for name in names})
        context = self._certified(made, (*names, *more)) if port == 443 else None
        for name in (*names, *more):
            self.town.zone.address(name, self._at(last))
        self.town.call(_started(made, context, self._at(last), port))

    def _serve_false(self, name: str, last: int) -> None:
        """A server with a certificate for another name: whatever it sees came through a connection that should have ended before."""
        made = self._servers[name] = Server(name, self.seen.append, self._hello)
        self.allowed[name] = frozenset()
        self.town.zone.address(name, self._at(last))
        self.town.call(_started(made, self.town.context("somebody.example.net"), self._at(last), 443))

    def _hello(self, server: str, sni: str) -> None:
        self.handshakes.append((server, sni))

    def _certified(self, server: Server, names: tuple[str, ...]) -> ssl.SSLContext:
        """A certificate for whatever is asked for of these names and those below; the name that was asked for stays with the connection."""

        def certified(name: str) -> ssl.SSLContext:
            made = self.town.context(name)
            made.set_alpn_protocols(["h2", "http/1.1"])
            return made

        contexts = {name: certified(name) for name in names}

        def choose(sock: Any, name: str | None, _: ssl.SSLContext) -> int | None:
            sock.asked = name
            server.note(name or "")
            if name is not None and name not in contexts and name.partition(".")[2] in names:
                contexts[name] = certified(name)
            found = contexts.get(name or "")
            if found is None:
                return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
            sock.context = found
            return None

        first = certified(names[0])
        first.sni_callback = choose
        return first

    def _at(self, last: int) -> str:
        return str(self.town.network[last])


class _Below(frozenset[str]):
    """Every name of one label below another."""

    def __new__(cls, name: str) -> _Below:
        return super().__new__(cls, (name,))

    def __contains__(self, item: object) -> bool:
        (name,) = self
        return isinstance(item, str) and item.partition(".")[2] == name


async def _started(server: Server, context: ssl.SSLContext | None, address: str, port: int) -> None:
    await server.start(context, address, port)  # type: ignore[arg-type]  # without one it is plain


@contextmanager
def ground() -> Iterator[Place]:
    """A town of its own, its servers and oracles, and the secret on this host; all of it goes with the `with`."""
    with town() as made, tempfile.TemporaryDirectory(prefix="space-evaluate-") as directory:
        Path(directory).chmod(0o755)
        place = Place(made, Path(directory) / "secret")
        place.begin()
        place.host_service()
        try:
            yield place
        finally:
            place.end()


def settled(place: Place, seconds: float = 0.05) -> None:
    """Whatever is under way has arrived: nothing new came for that long."""
    last = (0, 0)
    while (now := (len(place.sniffer.packets), len(place.seen))) != last:
        last = now
        time.sleep(seconds)


def line(what: object) -> bytes:
    """A line of JSON."""
    return json.dumps(what).encode() + b"\n"
