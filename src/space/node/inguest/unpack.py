"""Turn this guest's root into that of an OCI image: layers checked, unpacked beside it, then put in its place.

    python3 -I unpack.py IMAGE [REFERENCE]          IMAGE: a layout directory, or a tar archive of one

It runs in a builder microVM alone, as root. What it refuses (a path out of the tree, a device, a link that leads out, a digest that is not
right, more than the disk holds) is one line on standard error, and status 1. The last line of standard output is the image's configuration.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import stat
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

NEW, OLD = "space-new", "space-old"
MOST_JSON = 4 << 20
MOST_LAYERS = 500
MOST_ENTRIES = 1_000_000
MOST_DEPTH = 200
_CHUNK = 1 << 20
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})\Z")
_LAYER = re.compile(
    r"application/vnd\.(oci\.image\.layer\.(nondistributable\.)?v1\.tar|docker\.image\.rootfs\.diff\.tar)(\.gzip|\+gzip)?\Z"
)
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_REFERENCE = "org.opencontainers.image.ref.name"
_ATTRIBUTES = ("security.capability", "user.")
_STAYS = ("dev", "proc", "sys", "run")
_TRUST = ("etc/environment", "etc/ssl/certs/ca-certificates.crt", "usr/local/share/ca-certificates/space.crt")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class Refused(Exception):
    """The image is not taken; why."""


# -- where blobs come from ----------------------------------------------------------------------------------------------


class Layout:
    """An image layout: its index, and blobs that are checked before a byte of them is used."""

    def __init__(self, path: str) -> None:
        self._directory = path if os.path.isdir(path) else None
        self._archive = None if self._directory else tarfile.open(path, "r:")  # noqa: SIM115 (as long as the program)
        self._members: dict[str, tarfile.TarInfo] = {}
        for member in self._archive or ():
            if member.isreg():
                self._members.setdefault(member.name.removeprefix("./"), member)

    def index(self) -> Any:
        with self._open("index.json") as file:
            return _json(file.read(MOST_JSON + 1), "index.json")

    def blob(self, descriptor: Any, what: str) -> IO[bytes]:
        """An open blob, whose digest and size are what the descriptor says."""
        digest = str(descriptor.get("digest", "")) if isinstance(descriptor, dict) else ""
        match = _DIGEST.match(digest)
        if match is None:
            raise Refused(f"{what} has no SHA-256 digest but {digest[:80]!r}")
        file = self._open(f"blobs/sha256/{match[1]}")
        seen, size = hashlib.sha256(), 0
        while chunk := file.read(_CHUNK):
            seen.update(chunk)
            size += len(chunk)
        if seen.hexdigest() != match[1]:
            raise Refused(f"{what} has another digest than it says: {seen.hexdigest()}")
        if size != descriptor.get("size"):
            raise Refused(f"{what} has {size} bytes and not {str(descriptor.get('size'))[:20]}")
        file.seek(0)
        return file

    def document(self, descriptor: Any, what: str) -> Any:
        with self.blob(descriptor, what) as file:
            return _json(file.read(MOST_JSON + 1), what)

    def _open(self, name: str) -> IO[bytes]:
        if self._directory is not None:
            path = os.path.join(self._directory, name)
            if not stat.S_ISREG(os.lstat(path).st_mode) if os.path.lexists(path) else True:
                raise Refused(f"the image has no {name}")
            return open(path, "rb")
        member = self._members.get(name)
        found = self._archive.extractfile(member) if self._archive is not None and member is not None else None
        if found is None:
            raise Refused(f"the image has no {name}")
        return found


def _json(data: bytes, what: str) -> Any:
    if len(data) > MOST_JSON:
        raise Refused(f"{what} has more than {MOST_JSON} bytes")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise Refused(f"{what} is no JSON") from None
    if not isinstance(found, dict):
        raise Refused(f"{what} is no object")
    return found


def chosen(layout: Layout, reference: str) -> tuple[Any, Any]:
    """Manifest and configuration of the image that is meant, for this machine."""
    machine = _MACHINES.get(os.uname().machine, os.uname().machine)
    found = _listed(layout.index(), "index.json")
    if reference:
        found = [each for each in found if (each.get("annotations") or {}).get(_REFERENCE) == reference]
    for _ in range(3):  # an index of indexes
        fitting = [each for each in found if _fits(each, machine)]
        if len(fitting) != 1:
            names = sorted({str((each.get("annotations") or {}).get(_REFERENCE, "?"))[:60] for each in fitting})[:10]
            raise Refused(f"{len(fitting)} images fit linux/{machine} and {reference!r}: {', '.join(names) or 'none'} (image names one)")
        [one] = fitting
        if one.get("mediaType") not in _INDEXES:
            manifest = layout.document(one, "the manifest")
            return manifest, layout.document(manifest.get("config"), "the configuration")
        found = _listed(layout.document(one, "an index"), "an index")
    raise Refused("indexes lie in indexes")


def _listed(index: Any, what: str) -> list[Any]:
    manifests = index.get("manifests")
    if not isinstance(manifests, list) or len(manifests) > 1000 or not all(isinstance(each, dict) for each in manifests):
        raise Refused(f"{what} lists no manifests")
    return [each for each in manifests if each.get("mediaType", _MANIFESTS[0]) in (*_MANIFESTS, *_INDEXES)]


def _fits(descriptor: Any, machine: str) -> bool:
    platform = descriptor.get("platform") or {"os": "linux", "architecture": machine}
    return platform.get("os") == "linux" and platform.get("architecture") == machine


# -- layers ---------------------------------------------------------------------------------------------------------------


class Tree:
    """What layers are laid over one another in: this process's root directory, into which the caller has changed.

    Whatever a layer's links say, a path ends inside: the kernel has no other root to follow them to.
    """

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._entries = 0

    def lay(self, layer: IO[bytes]) -> None:
        """One layer over what is there. Refused at the first entry that must not be."""
        made: set[str] = set()
        late: list[tuple[str, tarfile.TarInfo]] = []
        try:
            with tarfile.open(fileobj=layer, mode="r|") as archive:
                for entry in archive:
                    self._entry(archive, entry, made, late)
        except (tarfile.TarError, EOFError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise Refused(f"cannot unpack: {error}") from None
            raise Refused(f"a layer is no tar archive: {error}") from None
        for path, entry in reversed(late):  # a directory's time and mode after what lies in it
            with suppress(FileNotFoundError, NotADirectoryError):
                _dress(path, entry)

    def _entry(self, archive: tarfile.TarFile, entry: tarfile.TarInfo, made: set[str], late: list[tuple[str, tarfile.TarInfo]]) -> None:
        self._entries += 1
        if self._entries > MOST_ENTRIES:
            raise Refused(f"the layers have more than {MOST_ENTRIES} entries")
        path = _inside(entry.name)
        parent, _, name = path.rpartition("/")
        if name == ".wh..wh..opq":
            for other in _names(parent or "/"):
                if not any(one == f"{parent}/{other}" or one.startswith(f"{parent}/{other}/") for one in made):
                    remove(f"{parent}/{other}")
            return
        if name.startswith(".wh."):
            if name in (".wh..", ".wh...") or name.startswith(".wh..wh."):
                raise Refused(f"a whiteout of no name: {entry.name[:200]!r}")
            if (gone := f"{parent}/{name[4:]}") not in made:
                remove(gone)
            return
        if path == "":
            late.append(("/", entry))
            return
        _parents(parent)
        if entry.isdir():
            if not (os.path.lexists(path) and stat.S_ISDIR(os.lstat(path).st_mode)):
                remove(path)
                os.mkdir(path)
            late.append((path, entry))
        else:
            remove(path)
            self._leaf(archive, entry, path)
        made.add(path)

    def _leaf(self, archive: tarfile.TarFile, entry: tarfile.TarInfo, path: str) -> None:
        if entry.isreg():
            self._left -= entry.size
            if self._left < 0:
                raise Refused("the layers hold more than the disk (disk_mib in the recipe makes it larger)")
            source = archive.extractfile(entry)
            with open(path, "xb") as file:
                while source is not None and (chunk := source.read(_CHUNK)):
                    file.write(chunk)
        elif entry.issym():
            os.symlink(entry.linkname, path)
        elif entry.islnk():
            target = _inside(entry.linkname)
            if not os.path.lexists(target) or stat.S_ISDIR(os.lstat(target).st_mode):
                raise Refused(f"{entry.name[:200]!r} is a hard link to {entry.linkname[:200]!r}, which is not there")
            os.link(target, path, follow_symlinks=False)
            return  # what it leads to is dressed already
        elif entry.isfifo():
            os.mkfifo(path)
        else:
            kind = "a device" if entry.isdev() else f"of type {entry.type!r}"
            raise Refused(f"{entry.name[:200]!r} is {kind}")
        _dress(path, entry)


def _inside(name: str) -> str:
    """An entry's path from the tree's root on; "" for the root itself."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in name or len(parts) > MOST_DEPTH:
        raise Refused(f"a path leads out of the tree: {name[:200]!r}")
    return "".join(f"/{part}" for part in parts)


def _parents(path: str) -> None:
    if path and not os.path.isdir(path):
        if os.path.lexists(path):
            raise Refused(f"{path[:200]!r} is no directory, and something lies in it")
        _parents(path.rpartition("/")[0])
        os.mkdir(path, 0o755)


def _dress(path: str, entry: tarfile.TarInfo) -> None:
    os.chown(path, entry.uid, entry.gid, follow_symlinks=False)
    if not entry.issym():
        os.chmod(path, entry.mode & 0o7777)
        for key, value in entry.pax_headers.items():
            attribute = key.removeprefix("SCHILY.xattr.")
            if attribute != key and attribute.startswith(_ATTRIBUTES):
                os.setxattr(path, attribute, value.encode("utf-8", "surrogateescape"), follow_symlinks=False)
    with suppress(OSError, OverflowError):
        os.utime(path, (entry.mtime, entry.mtime), follow_symlinks=False)


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove(path: str) -> None:
    """A path with everything in it; links are removed, never followed. What is not there is fine."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    for name in os.listdir(path):
        remove(f"{path}/{name}")
    os.rmdir(path)


def layers(layout: Layout, manifest: Any) -> Iterator[IO[bytes]]:
    """The layers' tar streams, lowest first."""
    listed = manifest.get("layers")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MOST_LAYERS:
        raise Refused(f"an image has 1 to {MOST_LAYERS} layers")
    for number, descriptor in enumerate(listed, 1):
        kind = str(descriptor.get("mediaType", "")) if isinstance(descriptor, dict) else ""
        match = _LAYER.match(kind)
        if match is None:
            raise Refused(f"layer {number} is of the type {kind[:100]!r}, and tar with or without gzip is understood")
        with layout.blob(descriptor, f"layer {number}") as blob:
            print(f"layer {number} of {len(listed)}: {descriptor.get('size')} bytes", file=sys.stderr, flush=True)
            yield gzip.GzipFile(fileobj=blob) if match[3] else blob  # type: ignore[misc]


# -- putting it in place --------------------------------------------------------------------------------------------------


@contextmanager
def _within(new: str, here: int) -> Iterator[None]:
    """With `new` as this process's root: no link of the tree's leads anywhere else."""
    os.chroot(new)
    os.chdir("/")
    try:
        yield
    finally:
        os.fchdir(here)
        os.chroot(".")


def _content(path: str) -> bytes:
    with suppress(FileNotFoundError), open(path, "rb") as file:
        return file.read(8 << 20)
    return b""


def furnish(kept: dict[str, bytes]) -> None:
    """What every sandbox counts on, in this process's root: places to mount on, a resolver's file, the account of its commands.

    kept: whom the base trusts, by path; for the gateway answers in the name of servers.
    """
    for name in (*_STAYS, "tmp", "etc", "home"):
        if os.path.islink(f"/{name}") or not os.path.isdir(f"/{name}"):
            remove(f"/{name}")
            os.mkdir(f"/{name}", 0o755)
    os.chmod("/tmp", 0o1777)
    for name, data in kept.items():
        if data:
            _parents(f"/{name}".rpartition("/")[0])
            remove(f"/{name}")
            with open(f"/{name}", "xb") as held:
                held.write(data)
            os.chmod(f"/{name}", 0o644)
    for name, text in (
        ("hostname", "sandbox\n"),
        ("hosts", "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n"),
        ("resolv.conf", ""),
        ("machine-id", ""),
    ):
        remove(f"/etc/{name}")
        with open(f"/etc/{name}", "x") as file:
            file.write(text)
    for name, plain, ours in (
        ("passwd", ["root:x:0:0:root:/root:/bin/sh"], "user:x:1000:1000::/home/user:/bin/sh"),
        ("group", ["root:x:0:"], "user:x:1000:"),
    ):
        path = f"/etc/{name}"
        lines = plain
        with suppress(FileNotFoundError, IsADirectoryError), open(path, errors="surrogateescape") as file:
            lines = file.read(1 << 20).splitlines()
        if not any(line.startswith("user:") for line in lines):
            remove(path)
            with open(path, "x", errors="surrogateescape") as file:
                file.write("\n".join([*lines, ours]) + "\n")
    if not os.path.lexists("/home/user"):
        os.mkdir("/home/user", 0o755)
        os.chown("/home/user", 1000, 1000)


def replace(root: str) -> None:
    """Give the new tree's entries the places of the old one's. Everything that this needs is in memory: the old one is gone then."""
    old = f"{root}/{OLD}"
    os.mkdir(old)
    for name in os.listdir(f"{root}/"):
        if name not in (*_STAYS, NEW, OLD):
            os.rename(f"{root}/{name}", f"{old}/{name}")
    for name in os.listdir(f"{root}/{NEW}"):
        if name not in _STAYS:
            os.rename(f"{root}/{NEW}/{name}", f"{root}/{name}")
    remove(f"{root}/{NEW}")
    remove(old)


def unpack(layout: Layout, manifest: Any, root: str) -> None:
    """All layers below `root`/NEW."""
    new = f"{root}/{NEW}"
    remove(new)
    os.mkdir(new, 0o755)
    facts = os.statvfs(new)
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    tree = Tree(facts.f_bavail * facts.f_frsize)
    kept = {name: _content(f"{root}/{name}") for name in _TRUST}
    for layer in layers(layout, manifest):
        with _within(new, here):
            tree.lay(layer)
    with _within(new, here):
        furnish(kept)
    os.close(here)


def settings(config: Any) -> dict[str, Any]:
    """What of the configuration says how a container begins."""
    inner = config.get("config") or {}
    return {name: inner.get(name) for name in ("Env", "Entrypoint", "Cmd", "User", "WorkingDir")}


def main(argv: list[str]) -> int:
    """The status."""
    os.umask(0)
    try:
        layout = Layout(argv[1])
        manifest, config = chosen(layout, argv[2] if len(argv) > 2 else "")
        unpack(layout, manifest, "")
        replace("")
    except (Refused, OSError, tarfile.TarError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    os.sync()
    print(json.dumps(settings(config)))
    return 0


if __name__ == "__main__":
    assert io  # loaded before the root is another one
    sys.exit(main(sys.argv))
