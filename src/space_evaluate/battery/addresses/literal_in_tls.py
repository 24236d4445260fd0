"""An address in place of a name, in a request to an allowed one."""

from typing import Any

from space_evaluate.inside import Case
from space_evaluate.technique import EITHER, Technique

TECHNIQUE = Technique(
    tries="Ask an allowed name for an address: in Host, in a whole URL, in the handshake.",
    claim="E3",
    defences=("authority check, ports agreement",),
    stopped_by=("authority_", "target_form", "host"),
    goals=EITHER,
    variants={
        "host": ["/", "{address}"],
        "host with a port": ["/", "{address}:80"],
        "a URL": ["http://{address}/", "open.example.com"],
        "IPv6": ["/", "[::ffff:{address}]"],
        "scoped IPv6": ["/", "[fe80::1%25eth0]"],
        "decimal": ["/", "3232235777"],
        "octal": ["/", "0300.0250.0.1"],
        "hex": ["/", "0x7f000001"],
    },
)


def attack(case: Case, what: Any) -> None:
    address = case.target[0]
    case.tls(
        case.ground.open, f"GET {what[0].format(address=address)} HTTP/1.1\r\nHost: {what[1].format(address=address)}\r\n\r\n".encode()
    )
