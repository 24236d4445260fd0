"""The runtime that services run from: `/opt/space/<version>-<digest of the tree>`, root-owned, without a write bit.

It needs neither the checkout nor anybody's home: a copy of the package with byte code, over the dependencies' directory. Before it
gets its name every service proves under its own uid that it can import its package. `/usr/local/bin/space` is a link that is
renamed over the old one, so a command that begins during an upgrade runs either the old runtime or the new one, whole.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from space.config.instance import MAX_INSTANCES, Instance
from space.model.ids import instance_name
from space.setup import command, deps, inputs, shelf
from space.setup.faults import SetupFailed

VERSION = "0.1.0"
COMMAND = Path("/usr/local/bin/space")
CURRENT = deps.OPT / "current"
_BUILDER = 1
_KEEP_SECONDS = 3600  # a runtime that another checkout's tests may be between two commands of


@dataclass(frozen=True, slots=True)
class Proof:
    """`module` must be importable by `uid` from the runtime alone."""

    module: str
    uid: int


def proofs() -> tuple[Proof, ...]:
    """Who must be able to import what.

    The uids are those of the last block, which instances are given last: a sweep of one kills whatever runs under its uids.
    """
    last = Instance(instance_name("proof"), MAX_INSTANCES - 1)
    return (
        Proof("space.control.server", last.control_uid),
        Proof("space.node.server", last.node_uid),
        Proof("space.broker.server", last.broker_uid),
        Proof("space.auditd.server", last.audit_uid),
        Proof("space.dialer.server", last.dialer_uid),
        Proof("space.minter.server", last.minter_uid),
        Proof("space.gateway.server", last.gateway_uid),
        Proof("space.ingress.server", last.ingress_uid),
        Proof("space.rootd.server", 0),
        Proof("space.serve.main", 0),
        Proof("space.cli.main", 0),
        Proof("space.model.sandbox", last.vm_uid(0)),
    )


def place(root: Path) -> Path:
    """Where the runtime of the checkout at `root` lies."""
    tree = inputs.of_tree(root / "src", _sources(root))
    return deps.OPT / f"{VERSION}-{inputs.of_value({'builder': _BUILDER, 'tree': tree, 'below': deps.server(root).name})}"


def make(root: Path) -> tuple[Path, bool]:
    """Build and prove the runtime of the checkout at `root` unless it is there; the directory, and whether it was made just now."""
    final = place(root)
    if final.is_dir():
        final.touch()
        return final, False
    with shelf.staged(final) as stage:
        site = deps.environment(stage, below=deps.server(root))
        for source in _sources(root):
            target = site / source.relative_to(root / "src")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        _describe_distribution(site)
        script = stage / "bin/space"
        script.write_text(f"#!{final}/bin/python -I\nimport sys\n\nfrom space.cli.main import main\n\nsys.exit(main())\n")
        script.chmod(0o755)
        deps.compile_all(stage, final)
        stage.chmod(0o755)  # whatever the umask made of it: the services' uids must get in
        prove(stage, proofs())
        shelf.describe(stage, version=VERSION, deps=deps.server(root).name)
    return final, True


def _sources(root: Path) -> list[Path]:
    """The server, and the evaluation beside it (a distribution of its own, which a checkout has as well)."""
    return [source for package in ("space", "space_evaluate") for source in inputs.sources(root / "src" / package)]


def prove(runtime: Path, wanted: Iterable[Proof]) -> None:
    """Import every service's package under its uid, with an empty environment and no directory to fall back on."""

    def one(proof: Proof) -> None:
        command.run(
            [runtime / "bin/python", "-I", "-B", "-c", f"import {proof.module}"],
            what=f"import {proof.module} as uid {proof.uid} from {runtime.name}", user=proof.uid, cwd=Path("/"), timeout=180,
        )  # fmt: skip

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(one, proof) for proof in wanted]:
            done.result()


def install(runtime: Path) -> bool:
    """Make that runtime the one that `space` starts; False when it was already."""
    if COMMAND.exists() and not (COMMAND.is_symlink() and str(COMMAND.readlink()).startswith(f"{deps.OPT}/")):
        raise SetupFailed(f"{COMMAND} is there and is not ours", hint="move it away")
    pointed = shelf.point(CURRENT, runtime.name)
    return shelf.point(COMMAND, str(runtime / "bin/space")) or pointed


def sweep(current: Path, needed: Iterable[Path], *, now: float | None = None) -> list[str]:
    """Remove runtimes and dependencies that nobody uses; the names of those that went.

    Kept: what is `needed`, what a process was started from or has mapped, and what was used within the last hour.
    """
    now = time.time() if now is None else now
    shelf.sweep_stages(deps.OPT)
    gone = []
    used = {current.name, *(path.name for path in needed)} | in_use(deps.OPT)
    entries = [entry for entry in deps.OPT.iterdir() if entry.is_dir() and not entry.is_symlink()]
    runtimes = [entry for entry in entries if not entry.name.startswith(("deps-", "dev-"))]
    unclear = CURRENT.name in used  # started through the link: which runtime that was then nobody can tell
    kept = [entry for entry in runtimes if unclear or entry.name in used or now - entry.stat().st_mtime < _KEEP_SECONDS]
    used |= {str(shelf.manifest(entry)["deps"]) for entry in kept}
    for entry in entries:
        if entry not in kept and entry.name not in used and now - entry.stat().st_mtime >= _KEEP_SECONDS:
            shelf.remove(entry)
            gone.append(entry.name)
    return gone


def in_use(root: Path) -> set[str]:
    """Names of the directories below `root` that some process was started from or has a library of."""
    prefix = f"{root}/"
    names = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            mapped = [line.partition(prefix)[2] for line in (process / "maps").read_text().splitlines() if prefix in line]
        except OSError:  # it ended, or is a zombie
            continue
        names |= {text.partition("/")[0] for text in mapped}
        names |= {word.removeprefix(prefix).partition("/")[0] for word in words if word.startswith(prefix)}
    return names


def _describe_distribution(site: Path) -> None:
    info = site / f"space_server-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: space-server\nVersion: {VERSION}\n")
    (info / "INSTALLER").write_text("space set-up\n")


def python() -> Path:
    """The interpreter of the current runtime."""
    return Path(os.path.realpath(CURRENT)) / "bin/python"
