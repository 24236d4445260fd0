"""A guest of raw frames: whatever a hostile kernel could put on the TAP of a slot, and a TCP client of a few lines for what is honest.

For tests as root. The frames are built by hand, so that every field can be forged; checksums are right unless the caller spoils them.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

from space.host import namespaces, process

GUEST_MAC, HOST_MAC, BROADCAST = bytes.fromhex("525400000002"), namespaces.TAP_MAC, b"\xff" * 6
GUEST, GATEWAY = "10.0.0.2", "10.0.0.1"
ARP, IPV4, IPV6, VLAN, QINQ = 0x0806, 0x0800, 0x86DD, 0x8100, 0x88A8
ICMP, TCP, UDP = 1, 6, 17
FIN, SYN, RST, ACK = 1, 2, 4, 16
_NO_OFFLOAD = bytes(10)  # the virtio-net header before each frame


def frame(payload: bytes, *, kind: int = IPV4, source: bytes = GUEST_MAC, target: bytes = HOST_MAC) -> bytes:
    """An Ethernet frame, not padded, as virtio's are not: `reject` sums the padding as well and then answers nothing."""
    return target + source + struct.pack("!H", kind) + payload


def arp(*, operation: int = 1, mac: bytes = GUEST_MAC, sender: str = GUEST, asked: str = GATEWAY, htype: int = 1) -> bytes:
    """ARP's payload: `sender` at `mac` asks for, or answers about, `asked`."""
    return struct.pack("!HHBBH", htype, IPV4, 6, 4, operation) + mac + _packed(sender) + bytes(6) + _packed(asked)


def ip(
    payload: bytes, *, protocol: int, target: str, source: str = GUEST, options: bytes = b"", fragment: int = 0x4000, version: int = 4
) -> bytes:
    """An IPv4 packet. fragment: the flags and the offset, as they stand in the header."""
    words = 5 + len(options) // 4
    total = 4 * words + len(payload)
    head = (
        struct.pack("!BBHHHBBH", version << 4 | words, 0, total, 1, fragment, 64, protocol, 0) + _packed(source) + _packed(target) + options
    )
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + payload


def udp(data: bytes, *, port: int, target: str = GATEWAY, source: str = GUEST, from_port: int = 40000, **header: int | bytes) -> bytes:
    """An IPv4 packet with a UDP datagram."""
    datagram = struct.pack("!HHHH", from_port, port, 8 + len(data), 0) + data
    summed = checksum(_pseudo(source, target, UDP, len(datagram)) + datagram)
    datagram = datagram[:6] + struct.pack("!H", summed or 0xFFFF) + datagram[8:]
    return ip(datagram, protocol=UDP, target=target, source=source, **header)  # type: ignore[arg-type]


def tcp(
    target: str,
    port: int,
    *,
    flags: int = SYN,
    from_port: int = 40000,
    seq: int = 1000,
    ack: int = 0,
    data: bytes = b"",
    source: str = GUEST,
    **header: int | bytes,
) -> bytes:
    """An IPv4 packet with a TCP segment."""
    segment = struct.pack("!HHIIBBHHH", from_port, port, seq, ack, 5 << 4, flags, 64000, 0, 0) + data
    summed = checksum(_pseudo(source, target, TCP, len(segment)) + segment)
    segment = segment[:16] + struct.pack("!H", summed) + segment[18:]
    return ip(segment, protocol=TCP, target=target, source=source, **header)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Segment:
    """A TCP segment or a UDP datagram that came to the guest."""

    protocol: int
    source: str
    source_port: int
    port: int
    flags: int
    seq: int
    ack: int
    data: bytes


@dataclass(slots=True)
class RawGuest:
    """The guest's end of the TAP. heard: every frame that came out of the namespace, in order."""

    tap: int
    heard: list[bytes] = field(default_factory=list)

    def leave(self) -> None:
        """Let go of the TAP; once is enough."""
        tap, self.tap = self.tap, -1
        if tap >= 0:
            os.close(tap)

    def send(self, *frames: bytes) -> None:
        """Put frames on the wire."""
        for one in frames:
            os.write(self.tap, _NO_OFFLOAD + one)

    def send_ip(self, *packets: bytes) -> None:
        """Put IPv4 packets on the wire, in frames without fault."""
        self.send(*map(frame, packets))

    def receive(self, seconds: float) -> bytes | None:
        """The next frame for the guest; None when none comes in time."""
        ready, _, _ = select.select([self.tap], [], [], seconds)
        if not ready:
            return None
        self.heard.append(os.read(self.tap, 65536)[len(_NO_OFFLOAD) :])
        return self.heard[-1]

    def drain(self, seconds: float = 0.05) -> list[bytes]:
        """Everything that comes until it is quiet for so long."""
        found = []
        while (one := self.receive(seconds)) is not None:
            found.append(one)
        return found

    def segment(self, seconds: float = 2.0, *, port: int | None = None) -> Segment | None:
        """The next TCP or UDP for the guest, at one of its ports if it is named; None when none comes in time."""
        until = time.monotonic() + seconds
        while (got := self.receive(max(0.0, until - time.monotonic()))) is not None:
            found = parse(got)
            if found is not None and port in (None, found.port):
                return found
        return None

    def segments(self) -> list[Segment]:
        """All of them that come until it is quiet."""
        return [found for got in self.drain() if (found := parse(got)) is not None]

    def connect(self, target: str, port: int, *, from_port: int, seconds: float = 2.0) -> Segment:
        """A handshake as it should be; the SYN-ACK, or the RST that came for it. TimeoutError when nothing came."""
        self.send_ip(tcp(target, port, from_port=from_port))
        answer = self.segment(seconds, port=from_port)
        if answer is None:
            raise TimeoutError(f"no answer to a SYN to {target}:{port}")
        if not answer.flags & RST:
            self.send_ip(tcp(target, port, flags=ACK, from_port=from_port, seq=1001, ack=answer.seq + 1))
        return answer


def _wake(tap: int) -> None:
    """Until what the host sends arrives at the TAP, in whose network namespace this is.

    It has a carrier once somebody holds it, and the kernel notices that in its own time: what it sends before is lost. (A VMM's guest is
    still booting then.) A frame of no protocol goes out past every filter, so nothing is counted.
    """
    if not namespaces.is_up("tap0"):
        return
    frame = b"\xff" * 6 + namespaces.TAP_MAC + b"\x88\xb5" + bytes(46)
    until = time.monotonic() + 5
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as host:
        host.bind(("tap0", 0))
        while time.monotonic() < until:
            with suppress(OSError):
                host.send(frame)
            while select.select([tap], [], [], 0.01)[0]:
                if frame[:14] in os.read(tap, 65_536):
                    return


@contextmanager
def raw_guest(netns: Path) -> Iterator[RawGuest]:
    """Attach to the TAP of a slot, as its VMM would."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def attach() -> bytes:
        namespaces.enter_network(netns)
        tap = namespaces.open_tap("tap0")
        _wake(tap)
        socket.send_fds(theirs, [b"tap"], [tap])
        return b""

    with ours, theirs:
        process.forked(attach)
        _, (tap,), _, _ = socket.recv_fds(ours, 16, 1)
    guest = RawGuest(tap)
    try:
        yield guest
    finally:
        guest.leave()


def parse(got: bytes) -> Segment | None:
    """The TCP segment or UDP datagram in a frame."""
    if got[12:14] != struct.pack("!H", IPV4):
        return None
    packet = got[14:]
    total, protocol, source = struct.unpack_from("!H", packet, 2)[0], packet[9], str(IPv4Address(packet[12:16]))
    body = packet[4 * (packet[0] & 15) : total]
    if protocol == UDP:
        source_port, port = struct.unpack_from("!HH", body)
        return Segment(UDP, source, source_port, port, 0, 0, 0, body[8:])
    if protocol == TCP:
        source_port, port, seq, ack, words, flags = struct.unpack_from("!HHIIBB", body)
        return Segment(TCP, source, source_port, port, flags, seq, ack, body[(words >> 4) * 4 :])
    return None


def _packed(address: str) -> bytes:
    return IPv4Address(address).packed


def _pseudo(source: str, target: str, protocol: int, length: int) -> bytes:
    return _packed(source) + _packed(target) + struct.pack("!BBH", 0, protocol, length)


def checksum(data: bytes) -> int:
    """The sum of IPv4, TCP and UDP (RFC 1071)."""
    data += bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
