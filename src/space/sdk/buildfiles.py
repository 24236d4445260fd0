"""What goes along with a recipe: files and trees below its directory, and what was fetched for it, as one tar stream and as digests."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from space.model.errors import InvalidArgument
from space.sdk.localfile import text, told

CHUNK = 256 << 10
_BLOCK = tarfile.BLOCKSIZE


def recipe_text(recipe: Path) -> str:
    """A recipe file's text. InvalidArgument when it cannot be read, is too long or is no text."""
    return text(recipe, what="a recipe")


def digest(source: Path) -> str:
    """A digest of a file or a tree: names, modes, links and contents; times and owners do not count."""
    seen = hashlib.sha256()
    for name, path, facts in _entries(source):
        with told("read", path):
            _count(seen, name, path, facts)
    return seen.hexdigest()


def _count(seen: hashlib._Hash, name: str, path: Path, facts: os.stat_result) -> None:
    seen.update(f"{len(name)} {name} {stat.S_IFMT(facts.st_mode)} {facts.st_mode & 0o777}\n".encode("utf-8", "surrogateescape"))
    if stat.S_ISLNK(facts.st_mode):
        seen.update(os.fsencode(path.readlink()) + b"\n")
    elif stat.S_ISREG(facts.st_mode):
        with path.open("rb") as file:
            seen.update(hashlib.file_digest(file, "sha256").digest())


def packed(recipe: Path, inputs: Sequence[str], downloads: Path | None) -> Iterator[bytes]:
    """The tar stream: `files/<input>` of the recipe's directory, `downloads/...`. Nothing is gathered in memory."""
    roots: Mapping[str, Path] = {f"files/{name}": recipe / name for name in inputs}
    if downloads is not None:
        roots = {**roots, "downloads": downloads}
    for prefix, source in roots.items():
        for name, path, facts in _entries(source):
            yield from _entry(f"{prefix}/{name}".rstrip("/"), path, facts)
    yield bytes(2 * _BLOCK)


def _entries(source: Path) -> Iterator[tuple[str, Path, os.stat_result]]:
    """Itself (named ""), then what is in it, sorted. InvalidArgument for what is no file, directory or link."""
    try:
        facts = source.lstat()
    except OSError as error:
        raise InvalidArgument(f"cannot read {source}: {error.strerror}", hint="paths of a recipe are below its directory") from None
    kinds = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    if not any(kind(facts.st_mode) for kind in kinds):
        raise InvalidArgument(f"{source} is no file, directory or link", hint="leave it out of what the recipe copies")
    yield "", source, facts
    if stat.S_ISDIR(facts.st_mode):
        with told("read", source):
            inside = sorted(source.iterdir())
        for inner in inside:
            for name, path, found in _entries(inner):
                yield f"{inner.name}/{name}".rstrip("/"), path, found


def _entry(name: str, path: Path, facts: os.stat_result) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = facts.st_mode & 0o7777, int(facts.st_mtime)
    if stat.S_ISDIR(facts.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(facts.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, _leads_to(path)
    else:
        info.size = facts.st_size
    yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    if info.isreg():
        left = info.size
        with told("read", path):
            file = path.open("rb")
        with file:
            while left:
                with told("read", path):
                    data = file.read(min(CHUNK, left))
                if not data:
                    raise InvalidArgument(f"{path} became shorter while it was read", hint="build again")
                left -= len(data)
                yield data
        yield bytes(-info.size % _BLOCK)


def _leads_to(link: Path) -> str:
    with told("read", link):
        return os.fspath(link.readlink())
