"""What a wall of addresses does: it reads the DNS replies that pass, and lets out to what they say of allowed names.

Run by `walls`, in a router.
`*.name` stands for everything below the name. It believes what it reads, as such walls do: that is what is compared.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys

import dns.exception
import dns.message
import dns.rdatatype

_IPV4, _UDP, _DNS = 0x0800, 17, 53


def main(names: list[str]) -> None:
    """Until it is killed."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_IPV4))
    print("ready", flush=True)
    known: set[str] = set()
    while True:
        packet, (_, _, kind, _, _) = sock.recvfrom(65_535)
        if kind == socket.PACKET_OUTGOING:
            continue
        for address in told(packet, names):
            if address not in known:
                known.add(address)
                subprocess.run(["nft", "add", "element", "inet", "wall", "allowed", f"{{ {address} }}"], check=False, capture_output=True)


def told(packet: bytes, names: list[str]) -> list[str]:
    """Addresses of allowed names, as a reply says."""
    words = (packet[0] & 15) * 4
    if packet[9] != _UDP or len(packet) < words + 20 or struct.unpack_from("!H", packet, words)[0] != _DNS:
        return []
    try:
        reply = dns.message.from_wire(packet[words + 8 :], ignore_trailing=True)
    except (dns.exception.DNSException, ValueError):
        return []
    if not reply.question:
        return []
    name = reply.question[0].name.to_text(omit_final_dot=True).lower()
    if not any(name == one or (one.startswith("*.") and name.endswith(one[1:])) for one in names):
        return []
    return [item.address for found in reply.answer if found.rdtype == dns.rdatatype.A for item in found]


if __name__ == "__main__":
    main(sys.argv[1:])
