"""`gateway`: what the egress gateway does in a second of processor time, beside mitmproxy, squid and a bare relay in the same run.

A second of user and system time of all processes of a proxy: the gateway's are zygote, worker, dialer, broker and keeper of records, with
a policy of methods and paths that judges every request, and a record of each; squid logs each and judges none, the others do neither.
Clients and upstream are processes of their own and count for nobody. The proxies take turns in every round, so that what else the machine
does hits all of them. All of them speak TLS 1.3 with AES-256-GCM and X25519 on both sides, verify the upstream's certificate, send every
request on (squid says TCP_MISS of each), and have the same clients, connections and upstream. Squid's helpers count with it; its key is
ECDSA P-256 as the gateway's are, mitmproxy's is RSA, as it makes them.

`flood_p50` and `flood_p99` are how many times as long a neighbour's requests take while another sandbox floods (`gatewayflood`); a request
of the neighbour that fails ends the run.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from space.bench import figures, gatewayflood, rivals
from space.bench.figures import Figure, Section
from space.bench.gatewayflood import Noticed
from space.bench.gatewayload import NAME, Mode, Served, load, upstream
from space.bench.gatewaystack import gateway
from space.bench.rivals import NotHad, Place, Proxy
from space.bench.stack import Stack
from space.core.policy.document import compose, read
from space.core.policy.paths import normalise
from space.core.policy.verdict import Allow, Asked
from space.testing.egress import Signer

ROUNDS = 5
_WARM, _WINDOW = 0.7, 1.5
_MODES: tuple[Mode, ...] = ("keepalive", "newconn", "bulk")
_UNITS: dict[Mode, str] = {"keepalive": "requests", "newconn": "connections", "bulk": "bytes"}
_TICK = os.sysconf("SC_CLK_TCK")
_VERDICTS = 20_000
_WEIGHT = 50  # of the cgroup of a flood's two slots beside other processes of the machine
_COMPARED: dict[Mode, tuple[str, ...]] = {"keepalive": ("mitmproxy", "squid"), "newconn": ("mitmproxy", "squid"), "bulk": ("bare_relay",)}

Rates = dict[str, list[float]]  # `<proxy>.<mode>`: per second of processor time


def measure(_: Stack) -> Section:
    """About five minutes. The private server of the run is not used: it has no guest that could speak fast enough to measure a proxy."""
    with tempfile.TemporaryDirectory(prefix="sb") as name:
        return asyncio.run(_measure(Path(name)))


async def _measure(directory: Path) -> Section:
    signer = Signer()
    leaf = signer.make(NAME)
    certificate, roots = directory / "upstream.pem", directory / "roots.pem"
    _write({certificate: leaf.chain + leaf.key, roots: signer.root.pem})
    with ExitStack() as undo:
        served = undo.enter_context(upstream(str(certificate)))
        place = Place(directory, served, roots, certificate, signer.pem)
        async with gateway(directory, served, roots, _policy(served)) as ours:
            proxies = {"gateway": await ours.proxy(), **_others(place, undo)}
            await asyncio.to_thread(_rate, "gateway", proxies["gateway"], "newconn")
            at_once = ours.private_mib()
            await asyncio.sleep(1.5)  # it gives back what its connections took once they are gone
            private = ours.private_mib()
            rates = await asyncio.to_thread(_rounds, proxies)
            await asyncio.sleep(1.5)
            grown = ours.private_mib()
        noticed = await _flooded(directory, served, undo.enter_context(upstream(str(certificate))), roots)
    verdicts = [_verdict_us() for _ in range(ROUNDS)]
    found = (
        _figures(rates)
        | _noticed(noticed)
        | {
            "verdict_us_5000_rules": figures.of(verdicts, "us"),
            "worker_private_mib": Figure(private, "MiB", {"under_load": at_once, "after_all_rounds": grown}),
        }
    )
    return Section(found, rates | _flood_samples(noticed) | {"verdict_us_5000_rules": verdicts, "worker_private_mib": [private, grown]})


async def _flooded(directory: Path, flooding: Served, neighbour: Served, roots: Path) -> list[tuple[Noticed, Noticed]]:
    place = directory / "flood"
    place.mkdir()
    async with gateway(place, flooding, roots, _policy(flooding)) as ours:
        ours.weigh(_WEIGHT)
        await ours.bind(neighbour, _policy(neighbour))
        first, second = await ours.proxy(0), await ours.proxy(1)
        return await asyncio.to_thread(
            gatewayflood.rounds, first.target, ours.bound[0].dns, second.target, ours.cgroup, (flooding, neighbour)
        )


def _noticed(rounds: list[tuple[Noticed, Noticed]]) -> dict[str, Figure]:
    """How many times as long the neighbour waits: the median of the rounds' ratios."""
    found = {}
    for name in ("p50", "p99"):
        pairs = [(getattr(before, name), getattr(loud, name)) for before, loud in rounds]
        beside = {
            "quiet_ms": figures.median([one * 1e3 for one, _ in pairs]),
            "flooded_ms": figures.median([two * 1e3 for _, two in pairs]),
        }
        found[f"flood_{name}"] = figures.of([two / one for one, two in pairs], "ratio", **beside)
    return found


def _flood_samples(rounds: list[tuple[Noticed, Noticed]]) -> Rates:
    sides = {"quiet": [quiet for quiet, _ in rounds], "flooded": [loud for _, loud in rounds]}
    return {f"flood.{side}.{name}": [getattr(one, name) for one in ones] for side, ones in sides.items() for name in ("p50", "p99")}


def _write(files: dict[Path, bytes]) -> None:
    for path, data in files.items():
        path.write_bytes(data)


def _policy(served: Served) -> dict[str, object]:
    return {"rule": [{"host": NAME, "port": served.port, "methods": ["GET", "HEAD"], "paths": ["/simple/**"]}]}


def _others(place: Place, undo: ExitStack) -> dict[str, Proxy]:
    found: dict[str, Proxy] = {}
    for name, start in (("mitmproxy", rivals.mitmproxy), ("squid", rivals.squid), ("bare_relay", rivals.bare)):
        try:
            found[name] = undo.enter_context(start(place))
        except NotHad as error:
            print(f"\nbench gateway: without {name}: {error}", file=sys.stderr)
    return found


def _rounds(proxies: dict[str, Proxy]) -> Rates:
    rates: Rates = {f"{name}.{mode}": [] for name in proxies for mode in _MODES}
    for _ in range(ROUNDS):
        for mode in _MODES:
            for name, proxy in proxies.items():
                rates[f"{name}.{mode}"].append(_rate(name, proxy, mode))
    return rates


def _rate(name: str, proxy: Proxy, mode: Mode) -> float:
    """Requests, connections or bytes a second of its processor time."""
    with load(proxy.target, mode) as clients:
        deadline = time.monotonic() + 20
        while clients.count()[0] == 0:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} answers no {mode} ({clients.count()[1]} failures)")
            time.sleep(0.05)
        time.sleep(_WARM)
        pids = proxy.pids()
        (count, failures), cpu = clients.count(), _cpu(pids)
        time.sleep(_WINDOW)
        (counted, failed), used = clients.count(), _cpu(pids) - cpu
    if failed != failures:
        raise RuntimeError(f"{name}: {failed - failures} of {counted - count} {_UNITS[mode]} failed")
    return (counted - count) / max(used, 1 / _TICK)


def _cpu(pids: list[int]) -> float:
    """Seconds that these processes have used."""
    return sum(_used(pid) for pid in pids)


def _used(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:13])) / _TICK


def _figures(rates: Rates) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for mode, others in _COMPARED.items():
        ours = rates[f"gateway.{mode}"]
        for other in others:
            theirs = rates.get(f"{other}.{mode}")
            if theirs:
                beside = {
                    name.partition(".")[0]: figures.median(one) / (1e6 if mode == "bulk" else 1)
                    for name, one in rates.items()
                    if name.endswith(f".{mode}")
                }
                found[f"{mode}_over_{other}"] = figures.ratio(ours, theirs, **beside)
    return found


def _verdict_us() -> float:
    """One verdict by a policy of 5,000 rules, over names of all of it."""
    rules = [{"host": f"h{number}.example.com", "methods": ["GET"], "paths": ["/simple/**"]} for number in range(5000)]
    stack = read(compose({"sandbox": {"version": 1, "rule": rules}})).stack
    path = normalise(b"/simple/package/")
    asked = [Asked(f"h{number}.example.com", 443, "https", "GET", path) for number in range(0, 5000, 7)]
    assert all(isinstance(stack.request(one), Allow) for one in asked)
    begun = time.process_time()
    for one in _again(asked):
        stack.request(one)
    return (time.process_time() - begun) / _VERDICTS * 1e6


def _again(asked: list[Asked]) -> Iterator[Asked]:
    for number in range(_VERDICTS):
        yield asked[number % len(asked)]
