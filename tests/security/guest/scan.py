"""Tries to connect: [[address, port]] -> {"connected": [[address, port]], "slowest": seconds, "errors": {name: count}}."""

import collections
import socket
import time

from tests.security.guest import common

connected, slowest, errors = [], 0.0, collections.Counter[str]()
for address, port in common.asked():
    began = time.monotonic()
    try:
        socket.create_connection((address, port), 5).close()
        connected.append([address, port])
    except OSError as fault:
        errors[type(fault).__name__] += 1
    slowest = max(slowest, time.monotonic() - began)
common.tell({"connected": connected, "slowest": slowest, "errors": errors})
