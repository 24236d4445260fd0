"""Frames that a slot's edge must not let in, each with the counter that tells of it: what a hostile kernel in a guest would send."""

from __future__ import annotations

import struct
from typing import Final

from space.testing.rawguest import ARP, BROADCAST, GATEWAY, GUEST, HOST_MAC, ICMP, IPV6, QINQ, VLAN, arp, frame, ip, tcp, udp

NAMED, PUBLIC = "198.18.0.9", "203.0.113.7"
_OTHER_MAC = bytes.fromhex("525400000099")


def _icmp6(kind: int) -> bytes:
    every_node = bytes.fromhex("ff02" + "00" * 13 + "01")
    return struct.pack("!IHBB", 6 << 28, 16, 58, 255) + bytes.fromhex("fe80" + "00" * 13 + "02") + every_node + bytes([kind]) + bytes(15)


_DNS = udp(b"q", port=53)
ATTACKS: Final = {
    "forged MAC": ("foreign_mac", frame(_DNS, source=_OTHER_MAC)),
    "the gateway's MAC": ("foreign_mac", frame(_DNS, source=HOST_MAC)),
    "to a foreign MAC": ("foreign_target", frame(_DNS, target=_OTHER_MAC)),
    **{
        f"source {source}": ("foreign_source", frame(udp(b"q", port=53, source=source)))
        for source in (GATEWAY, "127.0.0.1", "169.254.169.254", NAMED, "10.0.0.3", "0.0.0.0", "255.255.255.255", PUBLIC)
    },
    "forged DNS reply": ("foreign_source", frame(udp(b"r", port=53, from_port=53, source="192.0.2.53"))),
    "forged reply to a port": ("gateway_port", frame(udp(b"r", port=33000, from_port=53))),
    "SYN of the gateway": ("foreign_source", frame(tcp(NAMED, 443, source=GATEWAY))),
    "gratuitous ARP": ("arp_forged", frame(arp(asked=GUEST), kind=ARP, target=BROADCAST)),
    "gratuitous ARP reply": ("arp_forged", frame(arp(operation=2, asked=GUEST), kind=ARP, target=BROADCAST)),
    "ARP as the gateway": ("arp_forged", frame(arp(sender=GATEWAY), kind=ARP, target=BROADCAST)),
    "ARP with another MAC inside": ("arp_forged", frame(arp(mac=_OTHER_MAC), kind=ARP)),
    "ARP for a name's address": ("arp_forged", frame(arp(asked=NAMED), kind=ARP, target=BROADCAST)),
    "ARP of another hardware": ("arp_forged", frame(arp(htype=6), kind=ARP)),
    "ARP cut off": ("arp_forged", frame(arp()[:12], kind=ARP)),
    "multicast DNS": ("guest_group", frame(udp(b"q", port=5353, target="224.0.0.251"), target=bytes.fromhex("01005e0000fb"))),
    "multicast by its address alone": ("guest_group", frame(udp(b"q", port=1900, target="239.255.255.250"))),
    "broadcast": ("guest_group", frame(udp(b"q", port=67, target="255.255.255.255"), target=BROADCAST)),
    "broadcast of the link": ("guest_group", frame(udp(b"q", port=53, target="10.0.0.3"))),
    "DNS in a broadcast frame": ("guest_group", frame(_DNS, target=BROADCAST)),
    "IPv6 router advertisement": ("guest_ipv6", frame(_icmp6(134), kind=IPV6, target=bytes.fromhex("333300000001"))),
    "IPv6 neighbour solicitation": ("guest_ipv6", frame(_icmp6(135), kind=IPV6, target=bytes.fromhex("3333ff000001"))),
    "IPv6 in IPv4": ("guest_protocol", frame(ip(_icmp6(134), protocol=41, target=GATEWAY))),
    "IPv6 in a frame of IPv4": ("ip_header", frame(_icmp6(134))),
    "GRE": ("guest_protocol", frame(ip(bytes(8), protocol=47, target=NAMED))),
    "SCTP": ("guest_protocol", frame(ip(bytes(12), protocol=132, target=NAMED))),
    "ICMP redirect": ("guest_icmp", frame(ip(b"\x05\x01" + bytes(30), protocol=ICMP, target=GATEWAY))),
    "ping": ("guest_icmp", frame(ip(b"\x08\0\xf7\xff" + bytes(4), protocol=ICMP, target=GATEWAY))),
    "first fragment": ("ip_fragment", frame(udp(b"q", port=53, fragment=0x2000))),
    "last fragment": ("ip_fragment", frame(udp(b"q", port=53, fragment=0x0001))),
    "reserved bit": ("ip_fragment", frame(udp(b"q", port=53, fragment=0x8000))),
    "source route": ("ip_header", frame(udp(b"q", port=53, options=b"\x83\x07\x04\xc6\x12\x00\x09\x00"))),
    "record route": ("ip_header", frame(tcp(NAMED, 443, options=b"\x07\x07\x04" + bytes(5)))),
    "version 5": ("ip_header", frame(udp(b"q", port=53, version=5))),
    "no header at all": ("guest_protocol", frame(b"")),
    "VLAN 0": ("guest_vlan", frame(b"\0\0\x08\0" + _DNS, kind=VLAN)),
    "VLAN 5": ("guest_vlan", frame(b"\0\x05\x08\0" + _DNS, kind=VLAN)),
    "VLAN 0 of the provider": ("guest_vlan", frame(b"\0\0\x08\0" + _DNS, kind=QINQ)),
    "two tags": ("guest_vlan", frame(b"\0\0\x81\0\0\0\x08\0" + _DNS, kind=QINQ)),
    "another kind of frame": ("guest_other", frame(bytes(46), kind=0x88CC)),
    "a length for a kind": ("guest_other", frame(bytes(46), kind=46)),
    "UDP to a name": ("guest_udp", frame(udp(b"q", port=443, target=NAMED))),
    "DNS to a public resolver": ("guest_udp", frame(udp(b"q", port=53, target="192.0.2.53"))),
}
