"""Every packet that comes into the town, seen on the wire: the oracle that no server has to be there for."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from dataclasses import dataclass, field

_ETH_P_IP = 0x0800
_TCP, _UDP = 6, 17
_SYN, _ACK = 2, 16
_NAMES = {_TCP: "tcp", _UDP: "udp"}
MOST = 200_000


@dataclass(frozen=True, slots=True)
class Packet:
    """at: seconds of the monotonic clock. opens: it is the first of a connection, or no TCP. data: its payload's beginning."""

    at: float
    address: str
    port: int
    protocol: str
    opens: bool
    data: bytes

    def __str__(self) -> str:
        return f"{self.protocol} to {self.address}:{self.port}"


@dataclass(slots=True)
class Sniffer:
    """Made in the town's thread, whose namespace it listens in. packets: what came so far; lost: how many could not be kept."""

    packets: list[Packet] = field(default_factory=list)
    lost: int = 0
    _sock: socket.socket | None = None

    async def start(self, link: str) -> None:
        """From now on."""
        self._sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IP))
        self._sock.bind((link, _ETH_P_IP))
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        asyncio.get_running_loop().add_reader(self._sock, self._read, self._sock)

    async def stop(self) -> None:
        """Listen no more."""
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock)
            self._sock.close()
            self._sock = None

    def _read(self, sock: socket.socket) -> None:
        for _ in range(256):
            try:
                data, (_, _, kind, _, _) = sock.recvfrom(2048)
            except OSError:
                return
            if kind == socket.PACKET_OUTGOING:
                continue
            packet = _parsed(data)
            if packet is not None and len(self.packets) < MOST:
                self.packets.append(packet)
            else:
                self.lost += packet is not None


def _parsed(data: bytes) -> Packet | None:
    if len(data) < 20 or data[0] >> 4 != 4:
        return None
    protocol, words = data[9], (data[0] & 15) * 4
    body = data[words : struct.unpack_from("!H", data, 2)[0]]
    port, opens, payload = 0, True, body
    if protocol in _NAMES and len(body) >= 8:
        port = struct.unpack_from("!H", body, 2)[0]
        payload = body[8:]
    if protocol == _TCP and len(body) >= 20:
        opens, payload = body[13] & (_SYN | _ACK) == _SYN, body[(body[12] >> 4) * 4 :]
    return Packet(
        time.monotonic(), socket.inet_ntoa(data[16:20]), port, _NAMES.get(protocol, f"protocol {protocol}"), opens, payload[:1500]
    )
