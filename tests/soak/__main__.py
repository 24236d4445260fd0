"""Mixed work for minutes while every process is killed in turn: no answer is lost, nothing is left, and nothing gets slower.

    python -m tests.soak --minutes 10 [--seed 1] [--workers 3] [--every 20] [--runtime PYTHON]

Workers create, run, write, read, go out through the gateway, pause, suspend, wake, checkpoint, roll back, fork and delete, each with
sandboxes of its own, and verify every answer: a file that was written is there with its bytes through everything that follows, and in every
fork. A killer ends serve, control, node, rootd, gateway, broker, dialer, auditd or a VMM. A call may fail while what was killed comes back;
afterwards it may not. It prints one line a minute and what it found, and ends with 0 only if nothing was wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import space
from space.model.errors import SpaceError
from space.testing import leaks, machine
from space.testing.egresstown import Town, town
from space.testing.machine import Server

T = TypeVar("T")
OUTSIDE = "soak.example.com"
POLICY = {"version": 1, "rule": [{"host": OUTSIDE}]}
VICTIMS = ("control", "node", "rootd", "gateway", "broker", "dialer", "audit", "minter", "vmm", "serve")
RECOVERY = 45.0  # a call that fails later than this after a kill was failed by nobody's death
FILE = "/home/user/soak.bin"
MEMORY_MIB = 256
AHEAD = 2
SLOWER = 3.0  # times: a machine that others use makes less of a difference between two thirds of a run
FEWEST = 5
MOST = 3  # sandboxes of a worker
ACTIONS = ("run", "run", "run", "write", "egress", "pause", "suspend", "checkpoint", "fork", "create", "delete")


@dataclass
class Findings:
    """What was done and what was wrong. took: seconds of undisturbed calls, in order, with when they ended."""

    done: Counter[str] = field(default_factory=Counter)
    disturbed: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    took: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, action: str, began: float, ended: float, *, calm: bool) -> None:
        with self.lock:
            self.done[action] += 1
            if calm:
                self.took[action].append((ended, ended - began))

    def blame(self, sentence: str) -> None:
        with self.lock:
            self.wrong.append(sentence)
        print(f"WRONG: {sentence}", flush=True)


class Disturbed(Exception):
    """A call failed while something that was killed was coming back."""


class Soak:
    """The server and who kills it. ends: when no new work is begun (monotonic seconds)."""

    def __init__(self, server: Server, ends: float, chance: random.Random, every: float) -> None:
        self.server, self.ends, self.every = server, ends, every
        self.found = Findings()
        self.last_kill = 0.0
        self.last_vmm_kill = 0.0
        self._chance = chance
        self._serving = threading.Lock()

    @property
    def calm(self) -> bool:
        """Nothing was killed lately."""
        return time.monotonic() - self.last_kill > RECOVERY

    @contextmanager
    def client(self) -> Iterator[space.Client]:
        with self._serving:
            served = self.server.served
        assert served is not None
        with space.Client(api_url=served.url, api_key=served.api_key) as client:
            yield client

    def call(self, action: str, work: Callable[[], T]) -> T:
        """Do it, timed. Disturbed when it failed and somebody's death may be why; else the failure is wrong."""
        began = time.monotonic()
        try:
            result = work()
        except (SpaceError, OSError) as fault:
            if min(time.monotonic(), began + RECOVERY) - self.last_kill <= RECOVERY:
                with self.found.lock:
                    self.found.disturbed[action] += 1
                raise Disturbed from fault
            self.found.blame(f"{action} failed {time.monotonic() - self.last_kill:.0f} s after the last kill: {fault!r}")
            raise Disturbed from fault
        ended = time.monotonic()
        self.found.note(action, began, ended, calm=ended - self.last_kill > RECOVERY)
        return result

    def kill_in_turn(self) -> None:
        """Until the end: one victim every so often, in rounds of all, each round in an order of its own."""
        while True:
            for victim in self._chance.sample(VICTIMS, len(VICTIMS)):
                pause = self.every * self._chance.uniform(0.6, 1.4)
                if time.monotonic() + pause + RECOVERY > self.ends:
                    return
                time.sleep(pause)
                self._kill(victim)
            time.sleep(RECOVERY + 15)  # so that there are undisturbed calls to compare

    def _kill(self, victim: str) -> None:
        self.found.kills[victim] += 1
        self.last_kill = time.monotonic()
        if victim == "vmm":
            self.last_vmm_kill = self.last_kill
            if pids := machine.vmm_pids(self.server.instance):
                machine.kill(self._chance.choice(sorted(pids)))
        elif victim == "serve":
            with self._serving:
                self.server.kill("serve")
                self.server.start()
        else:
            try:
                self.server.kill(victim)
            except StopIteration:  # it is just being started again
                self.found.kills[victim] -= 1
        self.last_kill = time.monotonic()


@dataclass
class Mine:
    """A sandbox and what must be true of it. digest: of the file that was written; empty: none was."""

    id: str
    digest: str = ""
    maybe: set[str] = field(default_factory=set)  # digests of writes whose answer was lost


class Worker:
    """Works until the end."""

    def __init__(self, soak: Soak, number: int, seed: int) -> None:
        self._soak, self._number = soak, number
        self._chance = random.Random(seed)
        self._mine: list[Mine] = []

    def work(self) -> None:
        while time.monotonic() < self._soak.ends:
            action = self._chance.choice(ACTIONS)
            if not self._mine or (action == "create" and len(self._mine) < MOST):
                self._try(self._create)
                continue
            if action in ("create", "fork") and len(self._mine) >= MOST:
                action = "delete"
            target = self._chance.choice(self._mine)
            step: Callable[[Mine], None] = getattr(self, f"_{action}")
            self._try(lambda step=step, target=target: step(target))  # type: ignore[misc]
        for each in list(self._mine):
            while not self._try(lambda each=each: self._delete(each)):  # type: ignore[misc]
                if time.monotonic() > self._soak.ends + 180:
                    self._soak.found.blame(f"{each.id} cannot be deleted")
                    break

    def _try(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except Disturbed:
            time.sleep(0.5)
            self._reconcile()
            return False
        return True

    def _reconcile(self) -> None:
        """After a disturbance: what is there, once the server says so."""
        deadline = time.monotonic() + RECOVERY + 60
        while True:
            try:
                with self._soak.client() as client:
                    listed = {info.id: info.phase.value for info in client.sandboxes()}
                break
            except (SpaceError, OSError) as fault:
                if time.monotonic() > deadline:
                    self._soak.found.blame(f"no list for {RECOVERY + 60:g} s: {fault!r}")
                    return
                time.sleep(0.5)
        for each in list(self._mine):
            phase = listed.get(each.id, "gone")
            if phase == "gone":
                self._soak.found.blame(f"{each.id} is lost")
                self._mine.remove(each)
            elif phase == "failed":
                if time.monotonic() - self._soak.last_vmm_kill > 2 * RECOVERY + 60:
                    self._soak.found.blame(f"{each.id} failed though nobody killed its VMM lately")
                self._wake_failed(each)

    def _wake_failed(self, mine: Mine) -> None:
        """One whose VMM died boots again from its disk; the file was synced, so it is there."""
        try:
            with self._on(mine) as sandbox:
                self._soak.call("wake_failed", sandbox.wake)
        except Disturbed:
            return

    @contextmanager
    def _on(self, mine: Mine) -> Iterator[space.Sandbox]:
        with self._soak.client() as client, self._soak.call("connect", lambda: space.Sandbox.connect(mine.id, client=client)) as sandbox:
            yield sandbox

    # -- what is done ---------------------------------------------------------------------------------------------

    def _create(self) -> None:
        with self._soak.client() as client:
            made = self._soak.call(
                "create",
                lambda: space.Sandbox.create(
                    client=client, memory_mib=MEMORY_MIB, policy=POLICY, metadata={"worker": str(self._number)}, ttl_seconds=7200
                ),
            )
            self._mine.append(Mine(made.id))

    def _run(self, mine: Mine) -> None:
        self._verify(mine)

    def _verify(self, mine: Mine) -> None:
        mark = f"{self._chance.randrange(1 << 30)}"
        with self._on(mine) as sandbox:
            found = self._soak.call("run", lambda: sandbox.run(f"echo {mark}; sha256sum {FILE} 2>/dev/null | cut -c1-64"))
        said, _, digest = found.stdout.decode().partition("\n")
        if said != mark:
            self._soak.found.blame(f"{mine.id} said {found.stdout!r}, exit {found.exit_code}, where {mark} was due")
        if digest.strip() != mine.digest and digest.strip() not in mine.maybe:
            self._soak.found.blame(f"{mine.id}: its file has digest {digest.strip()!r}, and {mine.digest!r} was written")
        mine.digest, mine.maybe = digest.strip(), set()

    def _write(self, mine: Mine) -> None:
        data = self._chance.randbytes(self._chance.randrange(1, 1 << 20))
        digest = hashlib.sha256(data).hexdigest()
        mine.maybe.add(digest)
        with self._on(mine) as sandbox:
            self._soak.call("write", lambda: sandbox.files.write(FILE, data))
            self._soak.call("sync", lambda: sandbox.run("sync", check=True))
        mine.digest, mine.maybe = digest, set()

    def _egress(self, mine: Mine) -> None:
        with self._on(mine) as sandbox:
            asked = f"curl -sS -m 20 -o /dev/null -w '%{{http_code}}' https://{OUTSIDE}/soak"
            calm = self._soak.calm
            found = self._soak.call("egress", lambda: sandbox.run(asked))
            if found.stdout != b"200" and calm and self._soak.calm:
                last = list(sandbox.egress_log())[-6:]
                if last and getattr(last[-1], "reason", "") == "handshake_slow":  # the machine is at its end
                    self._soak.found.disturbed["egress_slow"] += 1
                    return
                records = [str(record) for record in last]
                said = "\n  ".join([f"{mine.id}: {found.stdout!r} {found.stderr!r} from outside, with nothing killed lately", *records])
                self._soak.found.blame(said)

    def _pause(self, mine: Mine) -> None:
        with self._on(mine) as sandbox:
            self._soak.call("pause", sandbox.pause)
            self._soak.call("resume", sandbox.wake)
        self._verify(mine)

    def _suspend(self, mine: Mine) -> None:
        with self._on(mine) as sandbox:
            self._soak.call("suspend", sandbox.suspend)
            self._soak.call("restore", sandbox.wake)
        self._verify(mine)

    def _checkpoint(self, mine: Mine) -> None:
        self._verify(mine)
        before = mine.digest
        with self._on(mine) as sandbox:
            kept = self._soak.call("checkpoint", sandbox.checkpoint)
            data = self._chance.randbytes(1000)
            mine.maybe |= {hashlib.sha256(data).hexdigest(), before}
            self._soak.call("write", lambda: sandbox.files.write(FILE, data))
            self._soak.call("rollback", lambda: sandbox.rollback(kept))
            mine.digest, mine.maybe = before, set()
            self._soak.call("delete_checkpoint", lambda: sandbox.drop_checkpoint(kept))
        self._verify(mine)

    def _fork(self, mine: Mine) -> None:
        self._verify(mine)
        with self._on(mine) as sandbox:
            [child] = self._soak.call("fork", lambda: sandbox.fork(1, ttl_seconds=7200))
            self._mine.append(Mine(child.id, mine.digest))
        self._verify(self._mine[-1])

    def _delete(self, mine: Mine) -> None:
        with self._soak.client() as client:
            self._soak.call("delete", lambda: client.call("DELETE", f"/v1/sandboxes/{mine.id}"))
        if mine in self._mine:
            self._mine.remove(mine)


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description="Mixed work under kills, verified.")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--every", type=float, default=20, help="seconds between kills, about")
    parser.add_argument("--runtime", type=Path)
    options = parser.parse_args()
    before = leaks.of_host()
    with town() as place, tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        place.serve(OUTSIDE)
        log = Path(scratch) / "serve.log"
        found = soaked(options, place, log)
        if found.wrong:
            print(f"---- the end of the server's log\n{log.read_text()[-40_000:]}")
    leaks.settle(leaks.of_host, before)
    return report(found)


def soaked(options: argparse.Namespace, place: Town, log: Path) -> Findings:
    """The work and the kills, and what is there afterwards."""
    settings = {**place.settings, "warm_templates": "1", "clones_ahead": str(AHEAD)}
    server = Server(machine.find_runtime(options.runtime), log, settings)
    server.start()
    try:
        soak = Soak(server, time.monotonic() + options.minutes * 60, random.Random(options.seed), options.every)
        workers = [Worker(soak, number, options.seed * 1000 + number) for number in range(options.workers)]
        threads = [threading.Thread(target=guarded, args=(soak, one)) for one in (soak.kill_in_turn, *(worker.work for worker in workers))]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(min(60.0, options.minutes * 6))
            told = ", ".join(f"{action} {count}" for action, count in sorted(soak.found.done.items()))
            print(
                f"{time.monotonic() - soak.ends + options.minutes * 60:.0f} s: {told}; kills {sum(soak.found.kills.values())}", flush=True
            )
        with soak.client() as client:
            for info in client.sandboxes():  # of creates and forks whose answer was lost
                client.call("DELETE", f"/v1/sandboxes/{info.id}")
        spare(soak)
        instance = server.instance
        keep_logs(server, log)
        server.close()
        leaks.settle(lambda: leaks.of_instance(instance), within=30)
        return soak.found
    finally:
        server.close()


def keep_logs(server: Server, log: Path) -> None:
    """The end of what its services wrote."""
    with log.open("a") as file:
        for service in sorted(server.instance.log.glob("*.log")):
            file.write(f"---- {service.name}\n{service.read_text()[-3000:]}")


def spare(soak: Soak) -> None:
    """With every sandbox deleted, what runs is what the node made ahead of the next create."""
    deadline = time.monotonic() + 60
    while (there := len(machine.vmm_pids(soak.server.instance))) > AHEAD:
        if time.monotonic() > deadline:
            soak.found.blame(f"{there} VMMs run, no sandbox is there, and {AHEAD} are made ahead at most")
            return
        time.sleep(0.5)


def guarded(soak: Soak, work: Callable[[], None]) -> None:
    """A thread that ends with a fault of its own is a finding."""
    try:
        work()
    except Exception as fault:
        soak.found.blame(f"{work}: {fault!r}")


def report(found: Findings) -> int:
    """Say it; 1 when anything was wrong."""
    print(f"done: {dict(sorted(found.done.items()))}")
    print(f"failed while something came back: {dict(sorted(found.disturbed.items()))}")
    print(f"kills: {dict(sorted(found.kills.items()))}")
    for action, series in sorted(found.took.items()):
        ordered = [seconds for _, seconds in sorted(series)]
        third = len(ordered) // 3
        if third >= FEWEST:
            first, last = statistics.median(ordered[:third]), statistics.median(ordered[-third:])
            said = f"{action}: {first * 1000:.0f} ms in the first third, {last * 1000:.0f} ms in the last ({last / first:.2f})"
            print(said)
            if last > first * SLOWER and last - first > 0.2:
                found.blame(f"it got slower. {said}")
    print(f"wrong: {len(found.wrong)}")
    return int(bool(found.wrong))


if __name__ == "__main__":
    sys.exit(main())
