"""Puts frames on the wire as they are, whatever their fields say: {"frames": [hex], "rounds": n}."""

from tests.security.guest import common

given = common.asked()
sock = common.raw()
sent = 0
for _ in range(given.get("rounds", 1)):
    for one in given["frames"]:
        sock.send(bytes.fromhex(one))
        sent += 1
common.tell({"sent": sent})
