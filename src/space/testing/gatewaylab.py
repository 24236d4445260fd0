"""A gateway of real processes on this machine: zygote as serve starts it, broker, keeper of records, slots with an edge, their guests.

For tests as root. The dialer is the fake one (`testing.fakedialer`), whose places are servers of the test. Everything is within one event
loop and one exit stack.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from space.core.policy import document
from space.core.wire.dns import Type
from space.host import namespaces
from space.model.ids import new_sandbox_id
from space.rpc import gateway_api as api
from space.rpc.audit_client import AuditControl
from space.rpc.broker_client import BrokerControl
from space.rpc.gateway_client import GatewayClient, Means, make_memory, make_policy
from space.rpc.packets import pair
from space.rpc.rootd_client import RootdClient
from space.serve import service
from space.testing.brokerprocess import AuditProcess, BrokerProcess
from space.testing.egress import Signer, server_context
from space.testing.egresslab import Upstream
from space.testing.fakedialer import FakeDialer
from space.testing.machine import isolated_python
from space.testing.roothost import RootHost
from space.testing.wiredguest import WiredGuest, wired_guest

SYNTHETIC = "198.18.0.0/15"
CAPABILITIES = (6, 7)


@dataclass(slots=True)
class Place:
    """A sandbox: what the node would hold of it. policies: how many it had."""

    sandbox: str
    generation: int
    slot: int
    guest: WiredGuest
    memory: int
    policies: int = 0
    sockets: dict[str, socket.socket] = field(default_factory=dict)


class GatewayLab:
    """See `gateway_lab`."""

    def __init__(self, host: RootHost, directory: Path, stack: AsyncExitStack) -> None:
        self.host, self.instance, self.directory, self.stack = host, host.instance, directory, stack
        self.heard: list[api.Unasked] = []
        self.signer = Signer()  # of upstream servers
        self.dialer = FakeDialer()
        self.broker, self.audit = BrokerProcess(directory), AuditProcess(directory)
        self.log = directory / "gateway.log"
        self.module = "space.gateway.server"
        self.zygote: service.Process | None = None
        self.rootd = RootdClient(self.instance.rootd_socket)
        self.trusted = ""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.upstreams: dict[str, Upstream] = {}

    # -- processes -----------------------------------------------------------------------------------------------
    async def begin(self) -> None:
        """Everything but sandboxes."""
        roots = self.directory / "roots.pem"
        roots.write_bytes(self.signer.root.pem)
        roots.chmod(0o644)
        (self.instance.run / "settings.json").write_text(json.dumps({"egress_ca_file": str(roots)}))
        self._listener.bind(str(self.instance.gateway_socket))
        self._listener.listen(16)
        self.stack.callback(self._listener.close)
        self.stack.push_async_callback(self.rootd.aclose)
        self.stack.callback(self.dialer.close)
        for process in (self.broker, self.audit):
            process.start()
            self.stack.callback(process.stop)
        await self.meet_broker()
        self.start_zygote()
        self.stack.callback(self.end_zygote)

    async def meet_broker(self) -> None:
        """A connection to a broker and a keeper that have just begun."""
        self.control, self.keeper = BrokerControl.connect(self.broker.socket), AuditControl.connect(self.audit.socket)
        self.trusted = (await self.control.make_root("base", 0)).decode()
        theirs, ours = pair()
        await self.control.bind_writer(theirs, ("gateway", "dialer"))
        await self.keeper.bind_broker(ours)
        theirs, ours = pair()
        await self.keeper.bind_source(theirs, "dialer", "", 0)
        await self.dialer.bind_audit(ours)

    def start_zygote(self) -> None:
        """As serve does it, and a connection to it."""
        role = service.Role("gateway", self.instance.gateway_uid, 5, capabilities=CAPABILITIES, alone=True)

        def command(_: service.Role, listen_fd: int, ready_fd: int) -> list[str]:
            places = ["--data-root", str(self.instance.data_root), "--run-root", str(self.instance.run_root)]
            argv = [isolated_python(), "-I", "-m", self.module, "--instance", self.instance.name]
            return [*argv, "--listen-fd", str(listen_fd), "--ready-fd", str(ready_fd), *places]

        self.zygote = service.start(role, command, self._listener, self.log)
        assert self.zygote.ready is not None
        with os.fdopen(os.dup(self.zygote.ready), "rb") as ready:
            if ready.read() != b"ready\n":
                raise RuntimeError(self.log.read_text()[-3000:])
        self.gateway = GatewayClient.connect(self.instance.gateway_socket, self.heard.append)

    def end_zygote(self, number: signal.Signals = signal.SIGTERM) -> None:
        """By a signal; returns once it is reaped."""
        zygote, self.zygote = self.zygote, None
        if zygote is not None:
            signal.pidfd_send_signal(zygote.pidfd, number)
            namespaces.wait_ended(zygote.pidfd, 10.0)
            os.waitpid(zygote.pid, 0)
            zygote.close()

    # -- sandboxes -----------------------------------------------------------------------------------------------
    async def sandbox(self, slot: int = 0, policy: Mapping[str, Any] | None = None) -> Place:
        """Bound, with a guest; policy: of the sandbox's layer."""
        closing = await self.rootd.create_edge(slot, SYNTHETIC, literal=False)
        guest = self.stack.enter_context(wired_guest(self.instance.netns(slot)))
        closing.close()
        place = Place(new_sandbox_id(), 1, slot, guest, make_memory())
        self.stack.callback(os.close, place.memory)
        await self.bind(place)
        if policy is not None:
            await self.policy(place, policy)
        return place

    async def channel(self, place: Place, what: api.What) -> socket.socket:
        """A worker's end of a new socket to that process."""
        theirs, ours = pair()
        if what == "signer":
            await self.control.bind_sandbox(theirs, place.sandbox, place.generation, "base", 0)
        elif what == "audit":
            await self.keeper.bind_source(theirs, "gateway", place.sandbox, place.generation)
        else:
            bound = self.dialer.bound.get(place.sandbox)
            await self.dialer.bind(theirs, place.sandbox, place.generation, "" if bound is None else bound.digest, place.policies)
        return ours

    async def bind(self, place: Place, edge_of: Place | None = None) -> None:
        """To the zygote that is there now. edge_of: whose listeners and cgroup it gets, in the place of its own."""
        slot = (edge_of or place).slot
        listeners = await self.rootd.create_edge(slot, SYNTHETIC, literal=False)
        cgroups = await self.rootd.worker_cgroup(slot)
        whats: tuple[api.What, ...] = ("signer", "audit", "dialer")
        sockets = [await self.channel(place, what) for what in whats]
        signer, audit, dialer = (one.fileno() for one in sockets)
        try:
            means = Means(listeners.transparent, listeners.dns, listeners.dns_tcp, signer, audit, dialer, place.memory, cgroups)
            await self.gateway.bind(place.sandbox, place.generation, place.slot, SYNTHETIC, means)
        finally:
            listeners.close()
            for descriptor in cgroups:
                os.close(descriptor)
            for one in sockets:
                one.close()

    async def policy(self, place: Place, policy: Mapping[str, Any]) -> None:
        """That holds, at worker and dialer, when this returns."""
        data = document.compose({"sandbox": {"version": 1, **policy}})
        await self.dialer.put_policy(document.digest(data), data)
        place.policies += 1
        await self.dialer.set_policy(place.sandbox, place.generation, document.digest(data), place.policies)
        await self.document(place, data)

    async def document(self, place: Place, data: bytes) -> None:
        """These bytes, to the zygote alone."""
        memfd = make_policy(data)
        try:
            await self.gateway.set_policy(place.sandbox, place.generation, place.policies, memfd)
        finally:
            os.close(memfd)

    async def upstream(self, *names: str) -> int:
        """A TLS server for these names, with a certificate for each; its port, at which the dialer finds it."""
        upstream = Upstream()
        contexts = {name: server_context(self.signer.make(name), self.directory) for name in names}

        def named(sock: ssl.SSLObject, name: str, _: ssl.SSLContext) -> None:
            sock.context = contexts[name]

        contexts[names[0]].sni_callback = named
        port = await upstream.start(contexts[names[0]])
        self.stack.callback(upstream.close)
        for name in names:
            self.upstreams[name] = upstream
            self.dialer.places[name, port] = ("127.0.0.1", port)
        return port

    async def until(self, what: Callable[[], object], seconds: float = 10.0) -> None:
        """It is so."""
        async with asyncio.timeout(seconds):
            while not what():  # noqa: ASYNC110 - what is waited for happens in other processes
                await asyncio.sleep(0.005)

    def pid(self, place: Place) -> int:
        """Of its worker, as events tell; 0 when there is none."""
        pid = 0
        for one in self.heard:
            if one.sandbox == place.sandbox and isinstance(one, api.WorkerStarted):
                pid = one.pid
            elif one.sandbox == place.sandbox and isinstance(one, api.WorkerEnded):
                pid = 0
        return pid

    # -- what a guest does ---------------------------------------------------------------------------------------
    async def ask(self, place: Place, name: str, *, seconds: float = 5.0) -> tuple[int, IPv4Address | None]:
        """By DNS: the code, and the address."""
        labels = b"".join(bytes([len(one)]) + one.encode() for one in name.split(".")) + b"\0"
        query = os.urandom(2) + b"\x01\0\0\1\0\0\0\0\0\0" + labels + Type.A.to_bytes(2, "big") + b"\0\1"
        loop = asyncio.get_running_loop()
        with place.guest.udp() as sock:
            sock.connect(("10.0.0.1", 53))
            async with asyncio.timeout(seconds):
                while True:
                    await loop.sock_sendall(sock, query)
                    try:
                        async with asyncio.timeout(1):
                            answer = await loop.sock_recv(sock, 2048)
                    except TimeoutError:
                        continue
                    break
        found = IPv4Address(answer[-4:]) if int.from_bytes(answer[6:8], "big") else None
        return answer[3] & 15, found

    async def tls(self, place: Place, name: str, port: int, *, seconds: float = 10.0) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a name, as a guest that trusts the sandbox's root makes it."""
        async with asyncio.timeout(seconds):
            _, address = await self.ask(place, name)
            if address is None:
                raise ConnectionRefusedError(f"{name} is refused")
            sock = place.guest.tcp()
            try:
                await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
                context = ssl.create_default_context(cadata=self.trusted)
                return await asyncio.open_connection(sock=sock, ssl=context, server_hostname=name)
            except BaseException:
                sock.close()
                raise

    async def get(self, place: Place, name: str, port: int, path: str = "/") -> bytes:
        """The whole answer to one request."""
        reader, writer = await self.tls(place, name, port)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {name}:{port}\r\nConnection: close\r\n\r\n".encode())
            async with asyncio.timeout(10):
                return await reader.read(-1)
        finally:
            writer.close()


@asynccontextmanager
async def gateway_lab(host: RootHost, directory: Path, module: str = "space.gateway.server") -> AsyncIterator[GatewayLab]:
    """One, begun. module: what is run as the zygote."""
    async with AsyncExitStack() as stack:
        lab = GatewayLab(host, directory, stack)
        lab.module = module
        try:
            await lab.begin()
            yield lab
        finally:
            if lab.log.exists():
                print(lab.log.read_text()[-4000:])
