"""Every process is killed during every operation: twenty rounds in the order and at the moments that a seed chooses.

After each the server is whole again within 30 seconds: what was answered is true, nothing is lost, nothing is left.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import space
from space.model.errors import Gone, NotFound, SpaceError
from space.testing import leaks, machine
from space.testing.machine import Server

SEED = int(os.environ.get("SPACE_CRASH_SEED", "2"))
WHOLE_WITHIN = 30.0
OPERATIONS = ("create", "exec", "upload", "delete")
VICTIMS = ("serve", "control", "node", "rootd", "vmm")
# How long each takes, about: the kill comes somewhere within it. Seconds.
LENGTH = {"create": 5.0, "exec": 1.0, "upload": 1.5, "delete": 0.3}
STEADY = frozenset({"running", "failed"})  # failed: its record is kept for a while, nothing else of it


class Rounds:
    """The server, the sandboxes that must be there, and what is done to them."""

    def __init__(self, server: Server, tree: Path) -> None:
        self.server, self.tree = server, tree
        self.promised: dict[str, str] = {}  # sandbox -> the mark that was written into it
        self.doomed: set[str] = set()  # those whose VMM was killed

    @contextmanager
    def client(self) -> Iterator[space.Client]:
        served = self.server.served
        assert served is not None
        with space.Client(api_url=served.url, api_key=served.api_key) as client:
            yield client

    # -- operations: each returns when it was answered, or raises a SpaceError -----------------------------------
    def create(self, _: str, mark: str) -> str:
        with self.client() as client:
            sandbox = space.Sandbox.create(client=client, metadata={"mark": mark})
            self.promised[sandbox.id] = ""
            return sandbox.id

    def exec(self, target: str, mark: str) -> None:
        with self.client() as client, space.Sandbox.connect(target, client=client) as sandbox:
            result = sandbox.run(f"echo {mark}; sleep 0.8; echo {mark} again")
            assert (result.exit_code, result.stdout) == (0, f"{mark}\n{mark} again\n".encode()), "a wrong success"

    def upload(self, target: str, mark: str) -> None:
        with self.client() as client, space.Sandbox.connect(target, client=client) as sandbox:
            sent = sandbox.upload(self.tree, f"/home/user/{mark}")
            assert sent.entries >= 200
        self.promised[target] = mark

    def delete(self, target: str, _: str) -> None:
        self.promised.pop(target, None)
        with self.client() as client:
            client.call("DELETE", f"/v1/sandboxes/{target}")
            with pytest.raises((NotFound, Gone)):  # what was answered is true at once
                client.call("POST", f"/v1/sandboxes/{target}/noop")

    # -- one round -----------------------------------------------------------------------------------------------
    def target(self) -> str:
        """A sandbox that runs, made if there is none."""
        if not self.promised:
            self.create("", "spare")
        return next(iter(self.promised))

    def kill(self, victim: str) -> None:
        if victim == "vmm":
            self.doomed |= set(self.promised)
            for pid in machine.vmm_pids(self.server.instance):
                machine.kill(pid)
        else:
            self.server.kill(victim)

    def play(self, operation: str, victim: str, moment: float, mark: str) -> str:
        """Begin the operation, kill, let it end; what came of it."""
        target = "" if operation == "create" else self.target()
        act: Callable[[str, str], Any] = getattr(self, operation)
        with ThreadPoolExecutor(1) as pool:
            under_way = pool.submit(act, target, mark)
            time.sleep(moment)  # the moment is the test's subject
            self.kill(victim)
            if victim == "serve":
                self.server.start()
            try:
                under_way.result(timeout=120)
            except SpaceError as fault:
                return fault.code
        return "ok"

    # -- what must hold afterwards -------------------------------------------------------------------------------
    def listed(self) -> dict[str, str]:
        with self.client() as client:
            return {info.id: info.phase.value for info in client.sandboxes() if info.phase.value != "gone"}

    def on_host(self) -> set[str]:
        instance = self.server.instance
        places = [instance.sandboxes, instance.run / "vm"]
        return {entry.name for place in places if place.is_dir() for entry in place.iterdir()}

    def settled(self) -> dict[str, str]:
        """The list, once it agrees with the host and nothing in it is under way."""
        deadline = time.monotonic() + WHOLE_WITHIN
        found: object = None
        while True:
            try:
                listed = self.listed()
                found = (listed, self.on_host())
                running = {each for each in listed if listed[each] == "running"}
                # one that failed after it had run keeps its disk, so that it can be started again
                kept = {each for each in listed if listed[each] == "failed"}
                if set(listed.values()) <= STEADY and running <= self.on_host() <= running | kept and not running & self.doomed:
                    return listed
            except SpaceError as fault:
                found = fault
            assert time.monotonic() < deadline, f"not whole again after {WHOLE_WITHIN:g} s: {found}"
            time.sleep(0.1)

    def check(self) -> None:
        """What was promised is there and works; what is there besides works too, or says that it failed."""
        listed = self.settled()
        lost = set(self.promised) - set(listed)
        assert not lost, f"lost: {lost} of {listed}"
        for sandbox_id, phase in listed.items():
            if phase == "failed":
                if self.promised.pop(sandbox_id, None) is not None:
                    assert sandbox_id in self.doomed, f"{sandbox_id} failed though nobody killed its VMM"
            else:
                self.use(sandbox_id)
                self.promised.setdefault(sandbox_id, "")

    def use(self, sandbox_id: str) -> None:
        mark = self.promised.get(sandbox_id)
        count = f"find /home/user/{mark} -type f | wc -l" if mark else "echo none"
        deadline = time.monotonic() + WHOLE_WITHIN
        while True:
            try:
                with self.client() as client, space.Sandbox.connect(sandbox_id, client=client) as sandbox:
                    result = sandbox.run(f"{count}; echo $((6*7))")
            except SpaceError as fault:  # the process that was killed is not back yet
                if time.monotonic() > deadline:
                    raise AssertionError(f"{sandbox_id} does not work after {WHOLE_WITHIN:g} s") from fault
                time.sleep(0.1)
            else:
                assert result.stdout == (b"200\n42\n" if mark else b"none\n42\n")
                return


@pytest.mark.timeout(900)
def test_every_process_dies_during_every_operation(server: Callable[[], Server], tmp_path: Path) -> None:
    chance = random.Random(SEED)
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(200):
        (tree / f"{number}").write_bytes(chance.randbytes(20_000))
    rounds = Rounds(server(), tree)
    plan = list(product(OPERATIONS, VICTIMS))
    chance.shuffle(plan)
    for number, (operation, victim) in enumerate(plan):
        moment = chance.uniform(0, LENGTH[operation])
        begun = time.monotonic()
        outcome = rounds.play(operation, victim, moment, f"mark{number}")
        print(f"round {number}: {victim} killed {moment:.2f} s into {operation}: {outcome} after {time.monotonic() - begun:.1f} s", end="")
        rounds.check()
        print(f", whole after {time.monotonic() - begun:.1f} s")
    for sandbox_id in rounds.listed():  # those that failed, too: they keep their disks until somebody deletes them
        rounds.delete(sandbox_id, "")
    leaks.settle(lambda: leaks.of_sandboxes(rounds.server.instance))
