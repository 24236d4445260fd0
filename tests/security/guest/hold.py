"""Reads a reply that never ends, until it is cut: {"name"}. Says `begun` at its first byte, and how it ended."""

import socket
import sys

from tests.security.guest import common

name = sys.argv[1]
with socket.create_connection((name, 443), 10) as plain, common.context().wrap_socket(plain, server_hostname=name) as sock:
    sock.sendall(common.get(name, "/stream"))
    sock.settimeout(120)
    begun = False
    while True:
        try:
            got = sock.recv(65536)
        except OSError as fault:
            print("cut", type(fault).__name__, flush=True)
            break
        if not got:
            print("cut", flush=True)
            break
        if not begun:
            begun = True
            print("begun", flush=True)
