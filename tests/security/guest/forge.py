"""The gateway is told by forged DNS replies that an allowed name is the attacker's server, before, after and while it is asked for.

{"name", "canary", "frames": [hex], "rounds"}: the replies are frames with forged sources. Then the name is used as a client would, and the
canary is dialled as the gateway is hoped to allow it.
"""

import socket
import threading
from typing import Any

from tests.security.guest import common

given = common.asked()
name, canary = given["name"], given["canary"]
frames = [bytes.fromhex(one) for one in given["frames"]]
sock = common.raw()
racing = threading.Event()
sent = [0]


def forge() -> None:
    for one in frames:
        sock.send(one)
        sent[0] += 1


def race() -> None:
    other = common.raw()
    while racing.is_set():
        for one in frames:
            other.send(one)
            sent[0] += 1


def use() -> dict[str, object]:
    """As a client: resolve, connect, ask."""
    told = [str(entry[4][0]) for entry in socket.getaddrinfo(name, 443, socket.AF_INET, socket.SOCK_STREAM)]
    got = common.exchange(told[0], name, common.get(name, "/used"))
    return {"told": told, "answer": got["answer"].partition("\r\n")[0], "error": got["error"]}


def dial(port: int) -> str:
    """Straight to the attacker's server."""
    try:
        with socket.create_connection((canary, port), 5):
            return "connected"
    except OSError as error:
        return type(error).__name__


found: dict[str, Any] = {"used": [], "dialled": []}
for _ in range(3):
    forge()
found["used"].append(use())  # forged before the first legitimate query
forge()
found["used"].append(use())  # and after it
racing.set()
thread = threading.Thread(target=race)
thread.start()
for _ in range(given["rounds"]):
    found["used"].append(use())
    found["dialled"].append(dial(443))
racing.clear()
thread.join()
# from port 53, with its own address, so that only the content is forged
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
    own.bind(("0.0.0.0", 53))
    for one in given["replies"]:
        own.sendto(bytes.fromhex(one), (common.GATEWAY, 53))
        for port in (1024, 33000, 53000):
            own.sendto(bytes.fromhex(one), (common.GATEWAY, port))
        own.sendto(bytes.fromhex(one), (given["resolver"], 53))
    own.settimeout(1)
    try:
        found["answered"] = own.recv(4096).hex()
    except (TimeoutError, ConnectionRefusedError):
        found["answered"] = None
found["used"].append(use())
found["dialled"] += [dial(port) for port in (443, 80, 53)]
found["sent"] = sent[0]
common.tell(found)
