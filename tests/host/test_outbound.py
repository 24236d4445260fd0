"""The filter of the dialer's uid on the kernel: what that uid reaches, in a namespace that leads to another one which answers everywhere.

Each address is tried before the filter is loaded as well: one that nobody answers proves nothing.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address, ip_network

import pytest

from space.core.plan import outbound, ruleset
from space.core.plan.outbound import Outbound
from space.host import process, syscalls

_UID, _OTHER = 61_234, 61_235
_RESOLVER = "10.53.0.53"
_OUTBOUND = Outbound(
    _UID,
    ((ip_address(_RESOLVER), 53), (ip_address("127.0.0.1"), 5353)),
    tuple(map(ip_network, ("10.20.0.0/16", "10.9.0.3/32", "fd20::/64"))),
)
# Bound on this side: own addresses. 10.20.0.9 is in a listed range, 10.9.0.3 is listed by itself, 8.8.4.4 would be public.
_OWN = ("127.0.0.1", "::1", "10.9.0.2", "10.9.0.3", "10.20.0.9", "8.8.4.4", "2600::4")
_THERE = (
    *("8.8.8.8", "2600::8", "10.20.0.1", "10.21.0.1", _RESOLVER, "192.168.7.7", "172.16.5.5", "100.64.0.9", "198.18.0.1"),
    *("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.2.5", "fd20::5", "fd21::5", "fd00:ec2::254", "2002::5", "4000::5"),
)
_PORTS = (53, 443)


def _run(*words: str) -> None:
    process.run(list(words))


def _serve(address: str, port: int, kind: socket.SocketKind) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    if kind == socket.SOCK_STREAM:
        listener.listen(64)  # the kernel accepts; that is answer enough
        threading.Event().wait()
    while True:
        _, sender = listener.recvfrom(100)
        listener.sendto(b"answer", sender)


def _answer_in(addresses: tuple[str, ...]) -> None:
    for address in addresses:
        for port in (*_PORTS, 5353) if address == "127.0.0.1" else _PORTS:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                threading.Thread(target=_serve, args=(address, port, kind), daemon=True).start()


def _world() -> None:
    """This process in a namespace of its own, with a child that lives in another one behind a wire. Both die with this process."""
    syscalls.unshare(syscalls.CLONE_NEWNET)
    read, write = os.pipe()
    ready, say_ready = os.pipe()
    if os.fork() == 0:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)
        syscalls.unshare(syscalls.CLONE_NEWNET)
        os.write(say_ready, b"n")
        os.read(read, 1)
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "set", "there", "up")
        _run("ip", "addr", "add", "10.9.0.1/24", "dev", "there")
        _run("ip", "addr", "add", "fd99::1/64", "dev", "there", "nodad")
        for address in _THERE:
            _run("ip", "addr", "add", address, "dev", "lo", *(["nodad"] if ":" in address else []))
        for route in ("10.20.0.9", "8.8.4.4"):
            _run("ip", "route", "add", route, "dev", "there")
        _run("ip", "route", "add", "2600::4", "dev", "there")
        _answer_in(_THERE)
        os.write(say_ready, b"y")
        threading.Event().wait()
    child = os.read(ready, 1)
    assert child == b"n"
    pid = int(process.run(["pgrep", "-P", str(os.getpid())]).stdout.split()[0])
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", "here", "type", "veth", "peer", "name", "there", "netns", str(pid))
    _run("ip", "link", "set", "here", "up")
    _run("ip", "addr", "add", "10.9.0.2/24", "dev", "here")
    _run("ip", "addr", "add", "fd99::2/64", "dev", "here", "nodad")
    for address in _OWN:
        if address not in ("127.0.0.1", "::1", "10.9.0.2"):
            _run("ip", "addr", "add", address, "dev", "lo", *(["nodad"] if ":" in address else []))
    os.write(write, b"g")
    assert os.read(ready, 1) == b"y"
    _run("ip", "route", "add", "default", "via", "10.9.0.1")
    _run("ip", "-6", "route", "add", "default", "via", "fd99::1")
    _answer_in(_OWN)


def _reaches(address: str, port: int, kind: socket.SocketKind) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind) as sock:
        sock.settimeout(1.5)
        try:
            sock.connect((address, port))
            if kind == socket.SOCK_DGRAM:
                sock.send(b"question")
                return sock.recv(100) == b"answer"
        except OSError as error:
            # A drop in the output hook is an error to who sends a datagram, while TCP goes on trying. Anything else, a reset or an
            # unreachable, would be an answer to a packet that went somewhere.
            if not (isinstance(error, TimeoutError) if kind == socket.SOCK_STREAM else error.errno == errno.EPERM):
                raise AssertionError(f"{address} port {port} {kind.name}: {error!r}") from error
            return False
        return True


def _as_uid(uid: int, work: Callable[[], bytes]) -> bytes:
    def changed() -> bytes:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        return work()

    return process.forked(changed)


def _reached(uid: int) -> set[tuple[str, int, str]]:
    tried = [(address, port) for address in (*_OWN, *_THERE) for port in _PORTS] + [("127.0.0.1", 5353)]

    def work() -> bytes:
        kinds = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
        every = [(*one, name) for one in tried for name in kinds]
        with ThreadPoolExecutor(len(every)) as pool:
            answered = list(pool.map(lambda one: _reaches(one[0], one[1], kinds[one[2]]), every))
        return json.dumps([one for one, did in zip(every, answered, strict=True) if did]).encode()

    return {(address, port, name) for address, port, name in json.loads(_as_uid(uid, work))}


def _listing() -> object:
    return json.loads(process.run(["nft", "-j", "-p", "list", "table", "inet", _OUTBOUND.table]).stdout)


def _load(text: str) -> None:
    process.run(["nft", "-f", "-"], data=text.encode())


def _tried() -> bytes:
    _world()
    before = _reached(_UID)
    _load(outbound.text(_OUTBOUND))
    _load(outbound.text(_OUTBOUND))  # again: it replaces itself
    assert outbound.canonical(_listing()) == outbound.expected(_OUTBOUND)
    after, others = _reached(_UID), _reached(_OTHER)
    counts = ruleset.counters(_listing())
    return json.dumps([sorted(before), sorted(after), sorted(others), counts]).encode()


@pytest.fixture(scope="module")
def seen() -> tuple[set[tuple[str, int, str]], set[tuple[str, int, str]], set[tuple[str, int, str]], dict[str, int]]:
    before, after, others, counts = json.loads(process.forked(_tried))
    return {tuple(one) for one in before}, {tuple(one) for one in after}, {tuple(one) for one in others}, counts


Seen = tuple[set[tuple[str, int, str]], set[tuple[str, int, str]], set[tuple[str, int, str]], dict[str, int]]


def test_without_the_filter_everything_answers(seen: Seen) -> None:
    assert len(seen[0]) == 2 * (2 * len((*_OWN, *_THERE)) + 1)


def test_uid_reaches_public_addresses_listed_ranges_and_resolvers_and_nothing_else(seen: Seen) -> None:
    listed = {(address, port, "tcp") for address in ("8.8.8.8", "2600::8", "10.20.0.1", "fd20::5", "10.9.0.3") for port in _PORTS}
    resolvers = {(address, port, kind) for address, port in ((_RESOLVER, 53), ("127.0.0.1", 5353)) for kind in ("tcp", "udp")}
    assert seen[1] == listed | resolvers


def test_other_uids_are_not_touched(seen: Seen) -> None:
    assert seen[2] == seen[0]


def test_what_is_stopped_is_counted_by_its_kind(seen: Seen) -> None:
    assert set(seen[3]) == set(outbound.COUNTERS)
    assert all(count > 0 for count in seen[3].values())
