"""The product's gateway on loopback: zygote and worker, dialer, broker, keeper of records, each the real process; the bench is the node.

Synthetic addresses are 127.100.0.0/16, which are this machine's, so clients reach the worker's listener as a guest does: by the address of
a name. Everything else is as serve and node do it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from space.bench import cost
from space.bench.gatewayload import NAME, Served, Target
from space.bench.rivals import Proxy
from space.config.instance import Instance
from space.config.settings import Settings, save_effective
from space.core.policy import document
from space.core.wire.dns import Type
from space.host import cgroups, namespaces
from space.model.ids import new_sandbox_id
from space.rootd import workers
from space.rpc import gateway_api as api
from space.rpc.audit_client import AuditControl
from space.rpc.broker_client import BrokerControl
from space.rpc.dialer_client import DialerControl
from space.rpc.gateway_client import GatewayClient, Means, make_memory, make_policy
from space.rpc.packets import pair
from space.serve import service
from space.testing.brokerprocess import AuditProcess, BrokerProcess
from space.testing.dialerprocess import DialerProcess
from space.testing.machine import isolated_python
from space.testing.roothost import make_instance

SYNTHETIC = "127.100.0.0/16"
_CAPABILITIES = (6, 7)  # CAP_SETGID, CAP_SETUID, as serve gives them


@asynccontextmanager
async def gateway(directory: Path, served: Served, roots: Path, policy: Mapping[str, Any]) -> AsyncIterator[Ours]:
    """For sandboxes that are bound to it: the first one, with that policy of the sandbox's layer, is."""
    instance = make_instance("bench", directory, directory / "artefacts", os.getpid())
    for path in (directory, instance.data_root, instance.run_root, instance.run, roots):
        os.chmod(path, 0o755)  # noqa: PTH101, S103 (services of other uids read there)
    resolver, own = (f"127.0.0.1:{served.dns}",), ("127.0.0.1/32",)
    save_effective(instance, Settings(port=0, egress_ca_file=str(roots), egress_resolvers=resolver, egress_reachable=own))
    async with AsyncExitStack() as stack:
        ours = Ours(instance, directory, stack)
        await ours.begin()
        await ours.bind(served, policy)
        yield ours


@dataclass(frozen=True, slots=True)
class Bound:
    """A sandbox with a gateway. dns: where its names are asked for."""

    sandbox: str
    served: Served
    dns: tuple[str, int]


class Ours:
    """The processes. bound: each sandbox; its number is its slot."""

    def __init__(self, instance: Instance, directory: Path, stack: AsyncExitStack) -> None:
        self._instance, self._directory, self._stack = instance, directory, stack
        self.bound: list[Bound] = []
        self._broker, self._audit = BrokerProcess(directory), AuditProcess(directory)
        self._dialer = DialerProcess(instance)
        self._workers: dict[str, int] = {}
        self._trusted = ""
        self.cgroup = cgroups.Tree(cgroups.find(instance.run_root / ".cgroup"), instance.cgroup)

    async def begin(self) -> None:
        """Every process, and who speaks to whom."""
        self._stack.callback(self._leave)
        for process in (self._broker, self._audit, self._dialer):
            process.start()
            self._stack.callback(process.kill)
        self._control, self._keeper = BrokerControl.connect(self._broker.socket), AuditControl.connect(self._audit.socket)
        self._dialling = DialerControl.connect(self._instance.dialer_socket)
        for client in (self._control, self._keeper, self._dialling):
            self._stack.callback(client.close)
        self._trusted = (await self._control.make_root("base", 0)).decode()
        theirs, ours = pair()
        await self._control.bind_writer(theirs, ("gateway", "dialer"))
        await self._keeper.bind_broker(ours)
        theirs, ours = pair()
        await self._keeper.bind_source(theirs, "dialer", "", 0)
        await self._dialling.bind_audit(ours)
        self._start_zygote()

    def _start_zygote(self) -> None:
        instance, log = self._instance, self._directory / "gateway.log"
        role = service.Role("gateway", instance.gateway_uid, 5, capabilities=_CAPABILITIES, alone=True)

        def command(_: service.Role, listen_fd: int, ready_fd: int) -> list[str]:
            places = ["--data-root", str(instance.data_root), "--run-root", str(instance.run_root)]
            argv = [isolated_python(), "-I", "-m", "space.gateway.server", "--instance", instance.name]
            return [*argv, "--listen-fd", str(listen_fd), "--ready-fd", str(ready_fd), *places]

        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(instance.gateway_socket))
            listener.listen(16)
            zygote = service.start(role, command, listener, log)
        self._stack.callback(_end, zygote)
        assert zygote.ready is not None
        with os.fdopen(os.dup(zygote.ready), "rb") as ready:
            if ready.read() != b"ready\n":
                raise RuntimeError(log.read_text()[-3000:])
        self._zygote = zygote.pid
        self._gateway = GatewayClient.connect(instance.gateway_socket, self._heard)

    def _heard(self, one: api.Unasked) -> None:
        if isinstance(one, api.WorkerStarted):
            self._workers[one.sandbox] = one.pid

    def weigh(self, times: int) -> None:
        """The cgroup of all of them counts so many times as much as a process beside it: what else runs here is not what is measured."""
        self.cgroup.create()
        unified = "cpu" in self.cgroup.hierarchies.in_unified
        file, usual = ("cpu.weight", 100) if unified else ("cpu.shares", 1024)
        (self.cgroup.directory("cpu") / file).write_text(str(usual * times))

    def _leave(self) -> None:
        """Nothing of its cgroups stays."""
        children = [self.cgroup.child(f"{kind}-{slot}") for slot in range(len(self.bound)) for kind in ("worker", "guest", "upstream")]
        for tree in (*children, self.cgroup):
            if tree.exists():
                tree.kill_and_wait()
                tree.remove()

    async def bind(self, served: Served, policy: Mapping[str, Any]) -> None:
        """One more sandbox, in the next slot, with sockets on loopback for those of a slot. served: where its requests go; no other's."""
        sandbox, slot = new_sandbox_id(), len(self.bound)
        data = document.compose({"sandbox": {"version": 1, **policy}})
        digest = document.digest(data)
        await self._dialling.put_policy(digest, data)
        signer, audit, dialer = pair(), pair(), pair()
        await self._control.bind_sandbox(signer[0], sandbox, 1, "base", 0)
        await self._keeper.bind_source(audit[0], "gateway", sandbox, 1)
        await self._dialling.bind(dialer[0], sandbox, 1, digest, 1)
        listener = socket.create_server(("0.0.0.0", served.port), reuse_port=True, backlog=512)  # noqa: S104
        names, names_tcp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.create_server(("127.0.0.1", 0))
        names.bind(("127.0.0.1", 0))
        self.bound.append(Bound(sandbox, served, names.getsockname()))
        memory, memfd = make_memory(), make_policy(data)
        entered = workers.entrances(self.cgroup, slot)
        try:
            sockets = (listener, names, names_tcp, signer[1], audit[1], dialer[1])
            one, two, three, four, five, six = (each.fileno() for each in sockets)
            means = Means(one, two, three, four, five, six, memory, entered)
            await self._gateway.bind(sandbox, 1, slot, SYNTHETIC, means)
            await self._gateway.set_policy(sandbox, 1, 1, memfd)
        finally:
            for each in (listener, names, names_tcp, signer[1], audit[1], dialer[1]):
                each.close()
            for descriptor in (memory, memfd, *entered):
                os.close(descriptor)

    async def proxy(self, slot: int = 0) -> Proxy:
        """What clients of that sandbox ask."""
        bound = self.bound[slot]
        target = Target(await _resolved(bound), bound.served.port, f"{NAME}:{bound.served.port}", self._trusted)
        return Proxy(target, lambda: list(self.pids().values()))

    def pids(self) -> dict[str, int]:
        """Each process by its name."""
        found = {"zygote": self._zygote, "worker": self._workers.get(self.bound[0].sandbox, 0)}
        for name, process in (("broker", self._broker.process), ("audit", self._audit.process), ("dialer", self._dialer.process)):
            assert process is not None
            found[name] = process.pid
        return found

    def private_mib(self) -> float:
        """Of the worker: memory that it shares with nobody."""
        return cost.private_mib(self.pids()["worker"])


async def _resolved(bound: Bound) -> str:
    """The address of NAME, by DNS, as a guest asks."""
    labels = b"".join(bytes([len(one)]) + one.encode() for one in NAME.split(".")) + b"\0"
    query = b"\x12\x34\x01\0\0\1\0\0\0\0\0\0" + labels + Type.A.to_bytes(2, "big") + b"\0\1"
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        sock.connect(bound.dns)
        async with asyncio.timeout(10):
            await loop.sock_sendall(sock, query)
            answer = await loop.sock_recv(sock, 512)
    if not int.from_bytes(answer[6:8], "big"):
        raise RuntimeError(f"the gateway does not answer for {NAME}: code {answer[3] & 15}")
    return socket.inet_ntoa(answer[-4:])


def _end(zygote: service.Process) -> None:
    signal.pidfd_send_signal(zygote.pidfd, signal.SIGKILL)
    namespaces.wait_ended(zygote.pidfd, 10.0)
    os.waitpid(zygote.pid, 0)
    zygote.close()
