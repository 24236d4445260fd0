"""Other walls, as people deploy them, in the same town: what they let through of what ours is tried with.

    python -m space_evaluate.walls [--wall W] [--technique ID] [--report FILE]

`addresses`: a router whose packet filter (nftables) lets out to the addresses that allowed names have, as it learns them from the DNS
replies that pass it. `proxy`: a router that forwards nothing, with squid and a list of names. The guest is a network namespace with a
router of its own: a wall sees the same packets as from a virtual machine. Techniques of the network alone are tried.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from space_evaluate import catalogue, learner, wallpage
from space_evaluate.catalogue import Attempt
from space_evaluate.ground import API, Place, ground, line, settled
from space_evaluate.lane import Heard, token
from space_evaluate.sniffer import Sniffer
from space_evaluate.technique import Ground

NETWORK = ("addresses", "agreement", "edge", "http", "http2", "names", "packages", "tls", "websocket")
_GUEST_MAC, _ROUTER_MAC = "52:54:00:00:00:02", "52:54:00:00:00:01"
_PROXY = 3128
_FILTER = """
table inet wall {{
    set allowed {{ type ipv4_addr; }}
    chain forward {{ type filter hook forward priority 0; policy drop;
        ct state established,related accept
        ip daddr {resolver} udp dport 53 accept
        ip daddr {resolver} tcp dport 53 accept
        ip daddr @allowed tcp dport {{ 80, 443, 2222 }} accept
    }}
}}
table ip masks {{
    chain before {{ type nat hook prerouting priority -100;
        ip daddr 10.0.0.1 udp dport 53 dnat to {resolver}
        ip daddr 10.0.0.1 tcp dport 53 dnat to {resolver}
    }}
    chain behind {{ type nat hook postrouting priority 100; oifname "{link}" masquerade; }}
}}
"""
# What a router says of itself (that a port is closed) is not what it lets through.
_QUIET = """
table inet quiet {
    chain own { type filter hook output priority 0; meta l4proto icmp drop; }
}
"""
_SQUID = """
http_port 10.0.0.1:{port}
dns_nameservers {resolver}
acl named dstdomain {names}
acl secure port 443
acl CONNECT method CONNECT
http_access deny CONNECT !secure
http_access allow named
http_access deny all
cache deny all
access_log none
cache_log {folder}/cache.log
pid_filename none
coredump_dir {folder}
"""


class Walled:
    """A guest behind another wall: the battery's program in its namespace. told: what it is told of the ground."""

    def __init__(self, place: Place, netns: str, told: Ground) -> None:
        self.place, self.told = place, told
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "SSL_CERT_FILE": str(place.town.authority),
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }
        words = [*_inside(netns), sys.executable, "-u", "-m", "space_evaluate.guestside"]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment, cwd="/tmp"
        )
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._number = 0
        threading.Thread(target=self._listen, daemon=True).start()
        self._lines.get(timeout=30)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for one in self._process.stdout:
            with contextlib.suppress(ValueError):
                self._lines.put(json.loads(one))

    def say(self, within: float, **what: Any) -> Heard:
        """Order something, and hear it to its end."""
        assert self._process.stdin is not None
        self._number += 1
        self._process.stdin.write(line({"n": self._number, "ground": asdict(self.told), **what}))
        self._process.stdin.flush()
        heard = Heard()
        with contextlib.suppress(queue.Empty):
            while True:
                said = self._lines.get(timeout=within)
                if said.get("n") == self._number and heard.take(said):
                    break
        return heard

    def fault(self) -> str:
        """Why an allowed request does not work; "" when it does."""
        end = self.say(60, policy="narrow", token=token()).end
        return "no answer" if end is None else end

    def attempt(self, one: Attempt) -> tuple[str, list[str]]:
        """`reached`, `stopped` or `error`, and what was seen."""
        told, marker = one.entry.technique, token()
        mark = self.place.mark()
        what = told.variants[one.variant]
        heard = self.say(
            told.seconds + 10, module=one.entry.module, what=what, token=marker, goal=one.goal, policy=one.policy, seconds=told.seconds
        )
        settled(self.place)
        reached = self.place.reached(mark, one.policy, marker, bytes(heard.loot))
        return ("reached" if reached else "stopped" if heard.did else "error"), reached

    def close(self) -> None:
        """It ends."""
        self._process.kill()
        self._process.wait()


@contextmanager
def wall(kind: str, place: Place) -> Iterator[Walled]:
    """A guest behind it; all of it goes with the `with`."""
    with ExitStack() as stack:
        tag = secrets.token_hex(3)
        guest, router, link = f"ev-guest-{tag}", f"ev-router-{tag}", f"ev{tag}"
        for name in (guest, router):
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip(
            "-n",
            guest,
            "link",
            "add",
            "eth0",
            "address",
            _GUEST_MAC,
            "type",
            "veth",
            "peer",
            "name",
            "inner",
            "address",
            _ROUTER_MAC,
            "netns",
            router,
        )
        _ip("-n", guest, "addr", "add", "10.0.0.2/30", "dev", "eth0")
        _ip("-n", router, "addr", "add", "10.0.0.1/30", "dev", "inner")
        network = IPv4Network(f"10.214.{place.town.network.network_address.packed[2]}.0/30")
        town = place.town.join(router, link, network)
        _ip("-n", router, "addr", "add", f"{network[2]}/30", "dev", link)
        for name, one in ((guest, "eth0"), (router, "inner"), (router, link)):
            _ip("-n", name, "link", "set", one, "up")
        _ip("-n", guest, "route", "add", "default", "via", "10.0.0.1")
        _ip("-n", router, "route", "add", "default", "via", town)
        sniffer = Sniffer(place.sniffer.packets)
        place.town.call(sniffer.start(link))
        stack.callback(lambda: place.town.call(sniffer.stop()))
        _in(router, "nft", "-f", "-", text=_QUIET)
        told = Ground(**asdict(place.told) | {"proxy_port": _PROXY if kind == "proxy" else 0})
        stack.enter_context(_addresses(place, router, link) if kind == "addresses" else _proxy(place, router))
        made = Walled(place, guest, told)
        stack.callback(made.close)
        if why := _soon(made):
            raise RuntimeError(f"behind the wall `{kind}` an allowed request does not work: {why}")
        yield made


@contextmanager
def _addresses(place: Place, router: str, link: str) -> Iterator[None]:
    ruleset = _FILTER.format(resolver=place.told.resolver_at, link=link)
    _in(router, "nft", "-f", "-", text=ruleset)
    _in(router, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.inner.rp_filter=0")
    words = [*_inside(router), sys.executable, learner.__file__, *_allowed(place)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def _proxy(place: Place, router: str) -> Iterator[None]:
    squid = shutil.which("squid") or shutil.which("squid", path="/usr/sbin")
    if squid is None:
        raise RuntimeError("there is no squid on this machine: `apt-get install squid` brings it")
    with tempfile.TemporaryDirectory(prefix="squid-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        names = " ".join(one.replace("*", "") for one in _allowed(place))
        config = folder / "squid.conf"
        config.write_text(_SQUID.format(port=_PROXY, resolver=place.told.resolver_at, names=names, folder=folder))
        process = subprocess.Popen([*_inside(router), squid, "-N", "-f", str(config)], stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def _allowed(place: Place) -> list[str]:
    told = place.told
    return [told.packages, told.second, told.open, told.plain, told.stream, API, f"*.{told.wild}", *told.bad.values()]


def _soon(made: Walled) -> str:
    """Until the wall stands: why it does not."""
    until = time.monotonic() + 20
    while (why := made.fault()) and time.monotonic() < until:
        time.sleep(0.5)
    return why


def _inside(netns: str) -> list[str]:
    """Words before a command that runs in that network namespace; `ip -n` and `ip netns exec` remount /, which a chroot has not."""
    return ["nsenter", f"--net=/run/netns/{netns}", "--"]


def _ip(*words: str) -> None:
    inside = _inside(words[1]) if words[0] == "-n" else []
    subprocess.run([*inside, "ip", *words[2 if inside else 0 :]], check=True, capture_output=True)


def _in(netns: str, *words: str, text: str | None = None) -> None:
    subprocess.run([*_inside(netns), *words], check=True, capture_output=True, input=text, text=True)


def compare(place: Place, kind: str, chosen: Sequence[str]) -> dict[str, dict[str, Any]]:
    """{technique: {"reached": variants that got through, "of": how many, "evidence"}} behind that wall."""
    found: dict[str, dict[str, Any]] = {}
    entries = [one for one in catalogue.entries() if one.group in NETWORK and not one.technique.alone and (not chosen or one.id in chosen)]
    with wall(kind, place) as behind:
        for one in catalogue.attempts(tuple(entries)):
            if one.policy != "narrow":
                continue
            word, seen = behind.attempt(one)
            row = found.setdefault(one.entry.id, {"group": one.entry.group, "reached": [], "of": 0, "errors": 0, "evidence": ""})
            row["of"] += 1
            row["errors"] += word == "error"
            if word == "reached":
                row["reached"].append(one.variant)
                row["evidence"] = row["evidence"] or _telling(seen, place)
            print(f"{kind}: {word:8} {one.name} {seen[:1]}", file=sys.stderr, flush=True)
        if why := behind.fault():
            raise RuntimeError(f"an allowed request does not work any more: {why}")
    return found


def _telling(seen: Sequence[str], place: Place) -> str:
    """What says most: that the attacker's own server, or the hidden one, was reached."""
    return next((one for one in seen if place.told.callback_at in one or place.told.hidden in one), seen[0])


def main() -> int:
    """0 when it ran."""
    parser = argparse.ArgumentParser(prog="python -m space_evaluate.walls", description="what other walls let through")
    parser.add_argument("--wall", action="append", choices=("addresses", "proxy"), default=[])
    parser.add_argument("--technique", action="append", default=[])
    parser.add_argument("--report", type=Path, help="where what was found goes, as JSON")
    parser.add_argument("--page", type=Path, nargs=2, metavar=("PAGE", "JSON"), help="write the page of an earlier run, and try nothing")
    options = parser.parse_args()
    if options.page:
        options.page[0].write_text(wallpage.page(json.loads(options.page[1].read_text())))
        return 0
    with ground() as place:
        found = {kind: compare(place, kind, options.technique) for kind in options.wall or ("addresses", "proxy")}
    for kind, rows in found.items():
        through = {name: row["reached"] for name, row in rows.items() if row["reached"]}
        print(f"{kind}: {len(through)} of {len(rows)} techniques get through")
    if options.report is not None:
        options.report.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
