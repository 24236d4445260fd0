"""Sends bytes without TLS: [{"to": name or address, "port", "hex"}] -> what came back, as text, or the error."""

import socket

from tests.security.guest import common

found = []
for one in common.asked():
    got = b""
    try:
        with socket.create_connection((one["to"], one["port"]), 10) as sock:
            sock.settimeout(10)
            sock.sendall(bytes.fromhex(one["hex"]))
            while piece := sock.recv(65536):
                got += piece
    except OSError as fault:
        found.append({"got": got.decode("latin-1"), "error": type(fault).__name__})
    else:
        found.append({"got": got.decode("latin-1"), "error": ""})
common.tell(found)
