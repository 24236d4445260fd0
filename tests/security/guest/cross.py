"""Sends requests whose names disagree: [{"to": address or name, "sni", "hex": bytes of the request, "alpn"}], one connection each."""

import socket

from tests.security.guest import common


def ended(got: bytes) -> bool:
    """HTTP/2: a whole answer to stream 1, a reset of it, or a farewell."""
    at = 0
    while at + 9 <= len(got):
        length, kind, flags = int.from_bytes(got[at : at + 3], "big"), got[at + 3], got[at + 4]
        stream = int.from_bytes(got[at + 5 : at + 9], "big")
        if at + 9 + length > len(got):
            return False
        if kind in (3, 7) or (stream == 1 and kind in (0, 1) and flags & 1):
            return True
        at += 9 + length
    return False


found = []
for one in common.asked():
    try:
        address = socket.gethostbyname(one["to"])
    except OSError as error:
        found.append({"answer": "", "error": f"name: {error}", "seconds": 0})
        continue
    alpn = tuple(one.get("alpn", ()))
    found.append(
        common.exchange(address, one["sni"], bytes.fromhex(one["hex"]), one.get("port", 443), alpn, one.get("trusting", True), more=ended)
    )
common.tell(found)
