"""`space setup firecracker --from FILE|URL --sha256 D`: a Firecracker and its jailer as an artefact, out of an archive of known bytes.

The archive is what Firecracker's project releases (a .tgz), or any tar or zip file that holds one program named firecracker and one named
jailer, with or without a version behind. Nothing of it is unpacked but these two, and nothing is run before its digest was right: then
the program says its version, as nobody. It becomes the one that boots new sandboxes; those that snapshots name stay.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from space.config import firecracker as layout
from space.config.artefacts import Store
from space.config.instance import DATA_ROOT
from space.core.plan import firecracker as plan
from space.model.errors import InvalidArgument, SpaceError
from space.setup import command, inputs, progress, shelf, storage
from space.setup.downloads import FETCH
from space.setup.faults import SetupFailed

_BUILDER = 1
_MOST_ARCHIVE, _MOST_PROGRAM, _MOST_MEMBERS = 256 << 20, 64 << 20, 10_000
_ANYBODY = 65534
_NAME = re.compile(r"(?:.*/)?(firecracker|jailer)(?:-v?\d+\.\d+\.\d+(?:-x86_64)?)?")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def add(store: Store, archive: Path, sha256: str) -> tuple[Path, plan.Support, bool]:
    """The artefact, how its version stands, and whether it was made just now. InvalidArgument for other bytes; SetupFailed."""
    programs = read(archive, sha256)
    digest = inputs.of_value({"builder": _BUILDER, **{name: hashlib.sha256(data).hexdigest() for name, data in programs.items()}})
    final = store.path(layout.KIND, digest)
    fresh = not final.is_dir()
    if fresh:
        with shelf.staged(final, recorded=True) as stage:
            for name, data in programs.items():
                (stage / name).write_bytes(data)
                (stage / name).chmod(0o555)
            version = _version(stage / layout.BINARY)
            shelf.describe(stage, version=version, archive=sha256)
    known = plan.support(str(shelf.manifest(final)["version"]))
    shelf.point(store.root / layout.KIND / layout.CURRENT, digest)
    return final, known, fresh


def read(archive: Path, sha256: str) -> dict[str, bytes]:
    """The two programs, by name. InvalidArgument when the bytes are not those that were meant, or hold something else."""
    if not _DIGEST.fullmatch(sha256):
        raise InvalidArgument("--sha256 is 64 hexadecimal digits", hint="`sha256sum FILE` prints them; take them from whom you trust")
    if archive.stat().st_size > _MOST_ARCHIVE:
        raise InvalidArgument(f"{archive} has more than {_MOST_ARCHIVE >> 20} MiB")
    data = archive.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise InvalidArgument(
            f"{archive.name} has the SHA-256 {found}, not {sha256}", hint="it is not the file that was meant: nothing was done"
        )
    programs: dict[str, bytes] = {}
    try:
        for name, content in _members(data):
            if name in programs:
                raise InvalidArgument(f"{archive.name} holds more than one {name}")
            programs[name] = content
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as error:
        raise InvalidArgument(f"{archive.name} cannot be read as a tar or zip file: {error}") from None
    if set(programs) != {layout.BINARY, layout.JAILER}:
        raise InvalidArgument(
            f"{archive.name} holds {' and '.join(sorted(programs)) or 'neither program'}, and a firecracker and a jailer are wanted"
        )
    return programs


def _members(data: bytes) -> Iterator[tuple[str, bytes]]:
    return _of_zip(data) if zipfile.is_zipfile(io.BytesIO(data)) else _of_tar(data)


def _of_zip(data: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as bundle:
        for entry in bundle.infolist()[:_MOST_MEMBERS]:
            if (match := _NAME.fullmatch(entry.filename)) and entry.file_size <= _MOST_PROGRAM:
                with bundle.open(entry) as member:
                    yield match[1], member.read(_MOST_PROGRAM)


def _of_tar(data: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as bundle:
        for number, entry in enumerate(bundle):
            if number >= _MOST_MEMBERS:
                raise InvalidArgument(f"the archive has more than {_MOST_MEMBERS} members")
            if (match := _NAME.fullmatch(entry.name)) and entry.isreg() and entry.size <= _MOST_PROGRAM:
                member = bundle.extractfile(entry)
                assert member is not None, "it is a plain file"
                yield match[1], member.read()


def _version(program: Path) -> str:
    """What it says it is, as nobody; SetupFailed for what is none or is refused."""
    program.parent.chmod(0o755)
    said = command.run([program, "--version"], what="ask Firecracker for its version", user=_ANYBODY, timeout=20)
    try:
        version = plan.version(said.decode(errors="replace"))
    except ValueError as error:
        raise SetupFailed(str(error)) from None
    known = plan.support(version)
    if known.state == "refused":
        raise SetupFailed(
            f"Firecracker {version} is not used: {known.why}", hint=f"take another version; proven is {', '.join(plan.PROVEN)}"
        )
    return version


def main(arguments: Sequence[str]) -> int:
    """The exit status of `space setup firecracker`."""
    parser = argparse.ArgumentParser(prog="space setup firecracker", description="Add a Firecracker and its jailer (as root).")
    parser.add_argument("--from", dest="origin", required=True, metavar="FILE|URL", help="a release's archive, or an https address of one")
    parser.add_argument("--sha256", required=True, help="of the archive, from whom you trust")
    parser.add_argument("--source", help=argparse.SUPPRESS)  # the checkout, which `space setup` names
    given = parser.parse_args(arguments)
    try:
        with storage.locked(), tempfile.TemporaryDirectory(prefix="space-firecracker-") as work:
            storage.ensure_locked()
            shelf.sweep_stages(DATA_ROOT / "artefacts" / layout.KIND)
            archive = _fetched(given.origin, Path(work)) if "://" in given.origin else Path(given.origin)
            if not archive.is_file():
                raise InvalidArgument(f"there is no file {archive}")
            _, known, _ = add(Store(DATA_ROOT / "artefacts"), archive, given.sha256)
    except SpaceError as error:
        progress.complain(str(error))
        return 1
    print(f"Firecracker {known.version} boots new sandboxes where KVM is worth it ({known.state}: {known.why})")
    return 0


def _fetched(url: str, work: Path) -> Path:
    """By nobody, through this machine's own proxies."""
    if not url.startswith("https://"):
        raise InvalidArgument("a Firecracker is fetched over https, or given as a file")
    work.chmod(0o711)
    into = work / "fetched"
    into.mkdir(mode=0o700)
    os.chown(into, _ANYBODY, _ANYBODY)
    target = into / "archive"
    argv = [sys.executable, "-I", "-c", FETCH, url, str(target), str(_MOST_ARCHIVE)]
    command.run(argv, what="fetch the Firecracker", hint="see the address, and this machine's proxy", user=_ANYBODY)
    return target
