"""Two instances side by side: one is killed whole and swept, and the other does not notice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import space
from space.config.instance import load
from space.serve.remove import remove
from space.testing import leaks, machine
from space.testing.machine import Server


def entries(root: Path) -> dict[str, tuple[int, int, int]]:
    """What is below a directory: inode, owner and mode by name."""
    found = {}
    for path in [root, *root.rglob("*")]:
        facts = path.lstat()
        found[str(path)] = (facts.st_ino, facts.st_uid, facts.st_mode)
    return found


def test_an_instance_killed_whole_and_swept_takes_nothing_of_its_neighbour(server: Callable[[], Server]) -> None:
    with ThreadPoolExecutor(2) as pool:
        victim, other = pool.map(lambda _: server(), range(2))
    assert victim.served is not None
    assert other.served is not None
    with space.Client(api_url=other.served.url, api_key=other.served.api_key) as client:
        with ThreadPoolExecutor(2) as pool:
            made = [pool.submit(space.Sandbox.create, api_url=one.url, api_key=one.api_key) for one in (victim.served, other.served)]
            doomed, kept = (future.result() for future in made)
        kept.run("echo before > /home/user/mark", check=True)
        before = leaks.of_instance(other.instance)
        files = entries(other.instance.sandboxes)

        instance = victim.instance
        for pid in [victim.pid(role) for role in ("serve", "control", "node", "rootd")] + machine.vmm_pids(instance):
            machine.kill(pid)
        victim.kill("serve")
        doomed.close()
        remove(instance)
        leaks.settle(lambda: leaks.of_instance(instance))
        assert load(victim.name) is None
        remove(instance)  # as often as one likes

        assert before <= leaks.of_instance(other.instance)  # slots that it makes ahead meanwhile are its own affair
        assert entries(other.instance.sandboxes) == files
        assert kept.run("cat /home/user/mark; uname -n").stdout.startswith(b"before\n")
        fresh = space.Sandbox.create(client=client)
        assert fresh.run(["echo", "and new ones"]).stdout == b"and new ones\n"
        fresh.delete()
        kept.delete()
        kept.close()


def test_a_second_serve_of_an_instance_names_the_first(server: Callable[[], Server], runtime: machine.Runtime) -> None:
    import subprocess

    one = server()
    dev = ["--dev"] if runtime.dev else []
    done = subprocess.run(
        [str(runtime.python), "-I", "-m", "space.serve.main", "--instance", one.name, *dev], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert f"instance {one.name} is served already, by pid {one.pid('serve')}" in done.stderr.decode()
    assert list(one.instance.sandboxes.iterdir()) == []
