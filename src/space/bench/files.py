"""`files`: a tree of 64 MiB up and down, beside 64 MiB of zeros into a sink and out of a source on the raw channel.

The raw side is a second guest whose sockets are in our hands (see `exec`). The tree is 64 files of 1 MiB of random bytes; the time
of an upload includes reading them and the guest writing them, that of a download the checked unpacking.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import space
from space.bench import bare, figures
from space.bench.figures import Section
from space.bench.stack import Stack, timed

ROUNDS = 5
SIZE = 64 << 20
_FILES = 64


def measure(stack: Stack) -> Section:
    """Five of each in turn, after one that is not counted. Rates in MB/s (10^6 bytes)."""
    rates: dict[str, list[float]] = {name: [] for name in ("upload", "raw_sink", "download", "raw_source")}
    with tempfile.TemporaryDirectory(prefix="space-bench-") as name:
        place = Path(name)
        tree = place / "tree"
        tree.mkdir()
        for number in range(_FILES):
            (tree / f"{number:02}").write_bytes(os.urandom(SIZE // _FILES))
        with space.Sandbox.create(client=stack.client) as sandbox, bare.booted(stack.node().accelerator) as wire:
            for number in range(1 + ROUNDS):
                seconds = {
                    "upload": timed(lambda: sandbox.upload(tree, "/home/user/tree")),
                    "raw_sink": timed(lambda: wire.sink(SIZE)),
                    "download": timed(lambda: sandbox.download("/home/user/tree", place / "back")),
                    "raw_source": timed(lambda: wire.source(SIZE)),
                }
                if _digest(place / "back") != _digest(tree):
                    raise RuntimeError("the tree did not come back as it was sent")
                shutil.rmtree(place / "back")
                if number:
                    for what, taken in seconds.items():
                        rates[what].append(SIZE / 1e6 / taken)
    up, down = figures.median(rates["raw_sink"]), figures.median(rates["raw_source"])
    return Section(
        {
            "upload_over_raw": figures.ratio(
                rates["upload"], rates["raw_sink"], raw_sink_mb_s=up, upload_mb_s=figures.median(rates["upload"])
            ),
            "download_over_raw": figures.ratio(
                rates["download"], rates["raw_source"], raw_source_mb_s=down, download_mb_s=figures.median(rates["download"])
            ),
        },
        {f"{what}_mb_s": values for what, values in rates.items()},
    )


def _digest(tree: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in tree.iterdir()}
