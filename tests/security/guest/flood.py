"""Takes whatever it can get for some seconds: connections that say nothing, queries, requests. {"name", "seconds", "connections"}."""

import contextlib
import socket
import time

from tests.security.guest import common

given = common.asked()
address = socket.gethostbyname(given["name"])
until = time.monotonic() + given["seconds"]
held: list[socket.socket] = []
refused = queries = 0
link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while time.monotonic() < until:
    for _ in range(20):
        with contextlib.suppress(OSError):
            link.sendto(common.question(f"x{queries}.{given['name']}"), (common.GATEWAY, 53))
        queries += 1
    if len(held) < given["connections"]:
        try:
            held.append(socket.create_connection((address, 443), 5))
        except OSError:
            refused += 1
alive = 0
for one in held:
    one.settimeout(0.005)
    try:
        alive += bool(one.recv(1))
    except TimeoutError:
        alive += 1
    except OSError:
        pass
common.tell({"held": len(held), "alive": alive, "refused": refused, "queries": queries})
