"""Guests are apart: from each other in what makes a machine itself, and from everything that a network could reach."""

from __future__ import annotations

import json
import socket
from urllib.parse import urlsplit

import space
from space.core.plan import ruleset
from space.host import namespaces, process
from space.serve.private import Served

_SELF = """
import json, os, socket
read = lambda path: open(path).read().strip()
print(json.dumps({
    "urandom": os.urandom(32).hex(), "uuid": read("/proc/sys/kernel/random/uuid"), "boot id": read("/proc/sys/kernel/random/boot_id"),
    "hostname": socket.gethostname(),
}))
"""

# Everything a program in the guest may try, at once. Printed: what got through. stdin: the host's addresses and a port that it serves.
_TRY = """
import concurrent.futures, json, socket, struct, sys
told = json.load(sys.stdin)
GATEWAY, OUTSIDE, MAC = "10.0.0.1", "192.0.2.53", bytes.fromhex(told["mac"].replace(":", ""))

def tcp(address, port):
    with socket.create_connection((address, port), timeout=4):
        return True

def udp(address, port, data):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.settimeout(2)
        for _ in range(3):
            link.sendto(data, (address, port))
        return bool(link.recv(4096))

def name():
    return bool(socket.getaddrinfo("example.com", 443))

def frames():
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as link:
        device = next(name for _, name in socket.if_nameindex() if name != "lo")
        link.bind((device, 0))
        link.settimeout(2)
        arp = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, MAC, bytes([10, 0, 0, 2]), bytes(6), bytes([10, 0, 0, 1]))
        for source in (MAC, bytes.fromhex("525400000099")):
            for kind, body in ((0x0806, arp), (0x0800, bytes(60)), (0x86DD, bytes(60)), (0x88B5, bytes(60)), (0x8100, bytes(60))):
                for target in (b"\\xff" * 6, bytes.fromhex("525400000001")):
                    link.send(target + source + struct.pack("!H", kind) + body)
        while True:  # our own outgoing frames come back to a packet socket: type 4
            _, (_, _, kind, _, _) = link.recvfrom(4096)
            if kind != 4:
                return True

query = b"\\x12\\x34\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\7example\\3com\\0\\0\\1\\0\\1"
own = socket.create_server(("127.0.0.1", 0))
tries = {"itself": (tcp, "127.0.0.1", own.getsockname()[1]), "a name": (name,), "raw frames": (frames,)}
for port in (22, 53, 80, 443, told["port"]):
    for address in ("127.0.0.1", GATEWAY, *told["addresses"]):
        tries[f"tcp {address} {port}"] = (tcp, address, port)
for address in (GATEWAY, OUTSIDE, "255.255.255.255", *told["addresses"]):
    tries[f"udp {address}"] = (udp, address, 53, query)

def attempt(item):
    try:
        return item[0] if item[1][0](*item[1][1:]) else None
    except OSError:
        return None

with concurrent.futures.ThreadPoolExecutor(len(tries)) as pool:
    reached = [each for each in pool.map(attempt, tries.items()) if each]
print(json.dumps({"tried": len(tries), "reached": reached, "devices": sorted(name for _, name in socket.if_nameindex())}))
"""


def _ask(sandbox: space.Sandbox, script: str, told: object = None) -> dict[str, object]:
    done = sandbox.run(["python3", "-c", script], user="root", stdin=json.dumps(told).encode(), timeout=120)
    assert done.exit_code == 0, done.stderr.decode()
    found: dict[str, object] = json.loads(done.stdout)
    return found


def _counters(served: Served, sandbox: space.Sandbox) -> dict[str, int]:
    """What the sandbox's namespace has dropped."""
    record = json.loads((served.instance.sandboxes / sandbox.id / "sandbox.json").read_text())

    def inside() -> bytes:
        namespaces.enter_network(served.instance.netns(record["slot"]))
        return process.run(["nft", "-j", "list", "counters"]).stdout

    return ruleset.counters(json.loads(process.forked(inside)))


def _addresses() -> list[str]:
    """The host's own, beside loopback."""
    links = json.loads(process.run(["ip", "-j", "-4", "addr"]).stdout)
    found = [each["local"] for link in links for each in link["addr_info"]]
    return [address for address in found if not address.startswith("127.")]


def test_two_guests_differ(shared: space.Sandbox, sandbox: space.Sandbox) -> None:
    one, other = _ask(shared, _SELF), _ask(sandbox, _SELF)
    assert [name for name in one if one[name] == other[name]] == []
    assert (one["hostname"], other["hostname"]) == (shared.id, sandbox.id)


# What answers is the gateway's: it says where it is, and refuses every name.
_GATEWAYS = {"raw frames", "tcp 10.0.0.1 53", "udp 10.0.0.1"}


def test_nothing_is_reachable_from_inside_a_guest_but_the_gateway_that_refuses(served: Served, shared: space.Sandbox) -> None:
    port = urlsplit(served.url).port
    with socket.create_connection(("127.0.0.1", port or 0), timeout=5):
        pass  # the host does serve there
    before = _counters(served, shared)
    found = _ask(shared, _TRY, {"mac": ruleset.GUEST_MAC, "port": port, "addresses": _addresses()})
    after = _counters(served, shared)
    print(found, {name: after[name] - before[name] for name in after})
    assert set(found["reached"]) - _GATEWAYS == {"itself"}  # type: ignore[call-overload]
    assert len(found["devices"]) == 2  # type: ignore[arg-type]
    for name in ("foreign_mac", "guest_vlan", "guest_ipv6", "guest_other", "ip_header", "gateway_port", "guest_udp", "guest_tcp"):
        assert after[name] > before[name], f"{name} counted nothing"
