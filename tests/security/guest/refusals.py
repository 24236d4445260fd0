"""How a name and an address of no rule are refused: {"name", "address"}."""

import socket
import struct
import time

from tests.security.guest import common

given = common.asked()
extended = None
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    sock.settimeout(5)
    query = common.question(given["name"])
    # with EDNS: a root name, type OPT, 1232 bytes
    sock.sendto(query[:10] + b"\0\1" + query[12:] + b"\0" + struct.pack("!HHIH", 41, 1232, 0, 0), (common.GATEWAY, 53))
    answer = sock.recv(4096)
    at = answer.find(struct.pack("!HH", 41, 1232), 12)
    options = answer.find(struct.pack("!H", 15), at + 8) if at >= 0 else -1
    if options >= 0:
        extended = struct.unpack("!H", answer[options + 4 : options + 6])[0]
began = time.monotonic()
try:
    socket.create_connection((given["address"], 443), 5).close()
    error = ""
except OSError as fault:
    error = type(fault).__name__
seconds = time.monotonic() - began
common.tell({"name": {"code": answer[3] & 15, "extended": extended}, "address": {"error": error, "seconds": seconds}})
