"""A town outside: HTTPS servers with an authority of their own, and a real DNS server that knows them, in a network namespace.

    with town() as place:
        shop = place.serve("shop.example.com")              # https://shop.example.com/ by DNS and certificate
        machine.private(runtime, log, **place.settings)     # an instance that may reach the town
        shop.heads                                          # the requests that it saw

For tests as root. The town hangs on one veth pair, whose end in the namespace is its only interface; each name has an address of its own
unless it is told another's (as behind a CDN). What a server saw is the oracle of a test: it is outside the guest. Everything runs in one
thread, which has the namespace; both go with the `with`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, TypeVar

from space.config.settings import Settings
from space.gateway.surroundings import Leaf
from space.host import process, syscalls
from space.testing.dnslab import Zone, bound, serve_on
from space.testing.egress import Signer, server_context
from space.testing.egressh2 import Http2Upstream
from space.testing.egresslab import Handler, Upstream

T = TypeVar("T")
TOKEN_ENDPOINT = "mail=https://auth.example.com/token"  # which a test may serve
_DNS_PORT = 53


class Town:
    """Made by `town`. zone: what its DNS server says, and was asked. signer: certifies its servers."""

    def __init__(self, network: IPv4Network) -> None:
        self.network = network
        self.zone = Zone()
        self.signer = Signer()
        self.servers: dict[str, Upstream] = {}
        self._others: list[Http2Upstream] = []
        self._link = f"town{network.network_address.packed[2]}"
        self._free = 10
        self._directory = Path(tempfile.mkdtemp(prefix="town"))
        self._directory.chmod(0o755)
        self.authority = self._directory / "authority.pem"
        self.authority.write_text(self.signer.pem)
        self.authority.chmod(0o644)  # the gateway's uid reads it
        self._loop = asyncio.new_event_loop()
        self._there: Future[int] = Future()
        self._thread = threading.Thread(target=self._live, name="town")
        self._loopback: list[socket.socket] = []

    @property
    def settings(self) -> dict[str, str]:
        """Of an instance that may reach it, as `space serve --set` takes them."""
        return {
            "egress_resolvers": self._address(_DNS_PORT),
            "egress_reachable": str(self.network),
            "egress_ca_file": str(self.authority),
            "token_endpoints": TOKEN_ENDPOINT,
        }

    def as_settings(self) -> Settings:
        """The same, for a bare instance."""
        resolver, network = (self._address(_DNS_PORT),), (str(self.network),)
        return Settings(
            accelerator="tcg", egress_resolvers=resolver, egress_reachable=network, egress_ca_file=str(self.authority), warm_templates=0,
            token_endpoints=(TOKEN_ENDPOINT,),
        )  # fmt: skip

    def serve(
        self,
        name: str,
        handler: Handler | Upstream | None = None,
        *,
        leaf: Leaf | None = None,
        port: int = 443,
        at: str = "",
        plain: bool = False,
    ) -> Upstream:
        """A server of that name, and what it sees. handler: of its connections, or a whole server. leaf: its certificate, else one for
        the name. at: the address, else one of its own.
        """
        address = at or self._address(self._free)
        self._free += not at
        context = None if plain else self._context(leaf or self.signer.make(name))
        self.zone.address(name, address)
        upstream = self.servers[name] = handler if isinstance(handler, Upstream) else Upstream(handler)
        self.call(self._start(upstream, context, address, port))
        return upstream

    def shared(self, names: tuple[str, ...], port: int = 443) -> Upstream:
        """One server, one address, several names: each handshake gets the certificate of the name that it asks for."""
        address, context = self._sharing(names)
        upstream = Upstream()
        self.servers.update(dict.fromkeys(names, upstream))
        self.call(self._start(upstream, context, address, port))
        return upstream

    def shared_h2(self, names: tuple[str, ...], port: int = 443) -> Http2Upstream:
        """The same in HTTP/2."""
        address, context = self._sharing(names, "h2", "http/1.1")
        upstream = Http2Upstream()
        self._others.append(upstream)

        async def start() -> None:
            await upstream.start(context, address, port)

        self.call(start())
        return upstream

    def context(self, name: str) -> ssl.SSLContext:
        """Of a server that has a certificate for the name."""
        return self._context(self.signer.make(name))

    def address(self, name: str) -> str:
        """What its DNS server says."""
        return self.zone.records[name, "A"][0].rpartition(" ")[2]

    def _sharing(self, names: tuple[str, ...], *protocols: str) -> tuple[str, ssl.SSLContext]:
        """An address of several names, and what answers their handshakes."""
        address = self._address(self._free)
        self._free += 1
        contexts = {name: self._context(self.signer.make(name)) for name in names}

        def choose(sock: ssl.SSLObject, name: str, _: ssl.SSLContext) -> int | None:
            if name not in contexts:
                return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
            sock.context = contexts[name]
            return None

        first = self._context(self.signer.make(names[0]))
        first.sni_callback = choose
        for context in (first, *contexts.values()):
            if protocols:
                context.set_alpn_protocols(list(protocols))
        for name in names:
            self.zone.address(name, address)
        return address, first

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it in the town's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def join(self, netns: str, link: str, network: IPv4Network) -> str:
        """Another street of the town, whose end `link` is in a named network namespace; the town's own address on it."""
        process.run(
            [
                "nsenter",
                f"--net=/run/netns/{netns}",
                "ip",
                "link",
                "add",
                link,
                "type",
                "veth",
                "peer",
                "name",
                link,
                "netns",
                str(self._there.result(30)),
            ]
        )
        ours = str(network[1])

        async def settle() -> None:
            process.run(["ip", "addr", "add", f"{ours}/{network.prefixlen}", "dev", link])
            process.run(["ip", "link", "set", link, "up"])

        self.call(settle())
        return ours

    # -- its life ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The namespace, the link, DNS."""
        self._thread.start()
        there = self._there.result(30)
        process.run(["ip", "link", "add", self._link, "type", "veth", "peer", "name", "street", "netns", str(there)])
        process.run(["ip", "addr", "add", f"{self._address(1)}/{self.network.prefixlen}", "dev", self._link])
        process.run(["ip", "link", "set", self._link, "up"])
        self.call(self._settle())

    def end(self) -> None:
        """All of it."""
        if self._thread.is_alive():
            for close in (*(one.close for one in self.servers.values()), *(one.close for one in self._others)):
                self._loop.call_soon_threadsafe(close)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(30)
        with suppress(process.ProcessFailed):  # the namespace may have taken it along
            process.run(["ip", "link", "del", self._link])
        shutil.rmtree(self._directory)

    def _live(self) -> None:
        syscalls.unshare(syscalls.CLONE_NEWNET)  # of this thread alone
        self._there.set_result(threading.get_native_id())
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    async def _settle(self) -> None:
        for words in (
            ("link", "set", "lo", "up"),
            ("link", "set", "street", "up"),
            *(("addr", "add", f"{self._address(last)}/{self.network.prefixlen}", "dev", "street") for last in range(2, 255)),
        ):
            process.run(["ip", *words])
        tcp = socket.create_server((self._address(_DNS_PORT), _DNS_PORT))
        await serve_on(self.zone, tcp, bound(self._address(_DNS_PORT), _DNS_PORT))

    @staticmethod
    async def _start(upstream: Upstream, context: ssl.SSLContext | None, address: str, port: int) -> None:
        await upstream.start(context, address, port)

    def _context(self, leaf: Leaf) -> ssl.SSLContext:
        return server_context(leaf, self._directory)

    def _address(self, last: int) -> str:
        return str(self.network[last])


def _free_number() -> int:
    """From this process's on: one process may have several, and each of two that look at the same time begins elsewhere."""
    numbers = ((os.getpid() + more) % 256 for more in range(256))
    return next(number for number in numbers if not Path(f"/sys/class/net/town{number}").exists())


@contextmanager
def town(number: int | None = None) -> Iterator[Town]:
    """A town. number: 0 to 255, of its network, by which several stand beside each other; else one that is free."""
    made = Town(IPv4Network(f"10.213.{_free_number() if number is None else number}.0/24"))
    try:
        made.begin()
        yield made
    finally:
        made.end()
