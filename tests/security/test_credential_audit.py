"""What is lent is written down before it goes out, on a live instance: its own files show every hand that touched them, and a disk that
takes no more records lends nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.security.walled import Walled, eventually

import space
from space.sdk import Secret
from space.serve.private import Served
from space.testing import machine
from space.testing.egresstown import Town
from space.testing.machine import Runtime

HOST, PLAIN = "audited.example.com", "plain.example.com"
Lines = list[bytes]


@pytest.fixture
def lent(guest: Walled, place: Town, client: space.Client) -> Iterator[Walled]:
    """A guest with a grant whose every use is a lease of its own, and some uses."""
    place.serve(HOST)
    place.serve(PLAIN)
    client.put_secret("audited", Secret(b"a-value-of-no-account"))
    rate = {"count": 1000, "seconds": 1}
    client.put_grant("audited", {"secret": "audited", "where": {"host": HOST}, "slot": {"kind": "header"}, "rate": rate})
    guest.allow({"host": HOST}, {"host": PLAIN})
    guest.sandbox.attach_grant("audited")
    for number in range(8):
        assert guest.get(f"https://{HOST}/{number}")[0] == "200"
    yield guest
    client.delete_grant("audited")
    client.delete_secret("audited")


def _space(runtime: Runtime, served: Served, *words: str) -> tuple[int, str]:
    env = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        runtime.space("--instance", served.instance.name, *words), env=env, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


def _changed(lines: Lines) -> Lines:
    at = next(number for number, line in enumerate(lines) if b'"GET"' in line)
    return [*lines[:at], lines[at].replace(b'"GET"', b'"PUT"'), *lines[at + 1 :]]


HANDS: dict[str, Callable[[Lines], Lines]] = {
    "removed": lambda lines: lines[:3] + lines[4:],
    "altered": _changed,
    "reordered": lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]],
    "doubled": lambda lines: [*lines[:4], *lines[3:]],
    "cut off": lambda lines: lines[:-3],
    "all gone": lambda _: [],
}


@pytest.mark.timeout(300)
def test_every_hand_at_the_records_of_a_live_instance_is_found(lent: Walled, served: Served, runtime: Runtime, tmp_path: Path) -> None:
    status, said = eventually(lambda: _vouched(runtime, served), 10)
    assert (status, json.loads(said)["intact"]) == (0, True), said
    status, key = _space(runtime, served, "audit", "key")
    assert status == 0, key
    copy = tmp_path / "copy"
    shutil.copytree(served.instance.data / "audit", copy)
    words = ("audit", "verify", "--chain", "broker", "--files", str(copy), "--key", key.strip())
    assert _space(runtime, served, *words)[0] == 0
    (path,) = copy.glob("broker.*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) >= 8
    for hand, touch in HANDS.items():
        path.write_bytes(b"".join(touch(lines)))
        status, said = _space(runtime, served, *words)
        assert (status, "NOT intact" in said) == (1, True), (hand, said)
    path.write_bytes(b"".join(lines) + lines[-1][:20])
    assert _space(runtime, served, *words)[0] == 0, "a torn last line is a crash, and said to be one"
    # The older state of all files together, head included: only the broker of the live instance knows that there was more.
    assert lent.get(f"https://{HOST}/more")[0] == "200"


def _vouched(runtime: Runtime, served: Served, least: int = 8) -> tuple[int, str] | None:
    """Once all records of the chain are: their head is written each second."""
    status, said = _space(runtime, served, "--json", "audit", "verify", "--chain", "broker")
    (chain,) = json.loads(said)["chains"]
    return (status, said) if chain["records"] >= least and not chain["unvouched"] else None


@contextmanager
def _small(directory: Path) -> Iterator[Path]:
    """A file system of 1 MiB there, with what was there in it, for whoever opens it from now on."""
    stage = directory.with_name("audit.small")
    stage.mkdir()
    owner = directory.stat()
    mount = ["mount", "-t", "tmpfs", "-o", f"size=1m,mode={owner.st_mode & 0o7777:o},uid={owner.st_uid},gid={owner.st_gid}", "tmpfs"]
    subprocess.run([*mount, str(stage)], check=True, timeout=20)
    try:
        subprocess.run(["cp", "-a", f"{directory}/.", str(stage)], check=True, timeout=20)
        subprocess.run(["mount", "--move", str(stage), str(directory)], check=True, timeout=20)
        try:
            yield directory
        finally:
            subprocess.run(["umount", "--lazy", str(directory)], check=True, timeout=20)
    finally:
        subprocess.run(["umount", "--lazy", "--quiet", str(stage)], check=False, timeout=20, capture_output=True)
        stage.rmdir()


def _keeper(served: Served) -> int:
    services = json.loads(served.instance.services.read_text())
    return next(int(one["pid"]) for one in services if one["role"] == "audit")


@pytest.mark.timeout(300)
def test_a_disk_that_takes_no_records_lends_nothing_and_says_so(runtime: Runtime, place: Town, tmp_path: Path) -> None:
    """An instance of its own: its keeper of records is killed, and the next one finds them on a small disk."""
    place.serve(HOST)
    place.serve(PLAIN)

    def seen() -> int:
        return sum(b"a-value-of-no-account" in head for head in place.servers[HOST].heads)

    with (
        machine.private(runtime, tmp_path / "serve.log", **place.settings) as served,
        space.Client(api_url=served.url, api_key=served.api_key) as client,
        space.Sandbox.create(client=client) as sandbox,
    ):
        guest = Walled(sandbox, place)
        client.put_secret("audited", Secret(b"a-value-of-no-account"))
        rate = {"count": 1000, "seconds": 1}
        client.put_grant("audited", {"secret": "audited", "where": {"host": HOST}, "slot": {"kind": "header"}, "rate": rate})
        guest.allow({"host": HOST}, {"host": PLAIN})
        sandbox.attach_grant("audited")
        with _small(served.instance.data / "audit") as disk:
            os.kill(before := _keeper(served), signal.SIGKILL)
            eventually(lambda: _keeper(served) != before or None, 20)
            assert eventually(lambda: guest.get(f"https://{HOST}/usual")[0] == "200" or None, 20), "on the small disk as before"
            filler = disk / "filler"
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4096))
            lent = seen()
            taken = 0  # what is left of the last page of the file
            while (word := guest.get(f"https://{HOST}/left/{taken}")[0]) == "200":
                taken += 1
                assert taken < 40, "a disk that is full takes records without end"
            said = [guest.get(f"https://{HOST}/full/{number}") for number in range(4)]
            print(taken, word, said)
            assert {word, *(each for each, _ in said)} == {"503"}, said
            assert seen() == lent + taken, "no credential has left without its record"
            told = (served.instance.log / "audit.log").read_text()
            assert "no more are taken" in told, told[-500:]
            assert guest.get(f"https://{PLAIN}/full")[0] == "200", "what is not lent anything goes on, and its records wait"
            filler.unlink()
            assert eventually(lambda: guest.get(f"https://{HOST}/room")[0] == "200" or None, 30), "with room again all goes on by itself"
            assert seen() > lent
            status, words = eventually(lambda: _vouched(runtime, served, 2), 20)
            assert (status, json.loads(words)["intact"]) == (0, True), words
