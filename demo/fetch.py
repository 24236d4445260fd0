"""The files of `lock.json`, each with the hash that is pinned there, from the cache or through pip as an unprivileged uid.

What arrives is bytes: it is hashed while it is copied, and nothing of it is built, unpacked or imported by pip or by us as root.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PYTHON = "/usr/bin/python3"
UID = 0x000A_0000 - 2  # below the first uid of the first instance; it owns nothing but the download
_HERE = Path(__file__).resolve().parent
_LARGEST = 64 << 20
# What pip, its HTTP library and OpenSSL read. Everything else stays here.
_PASSED_ON = ("PIP_", "SSL_CERT_", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")


@dataclass(frozen=True, slots=True)
class Pinned:
    """A file by name and SHA-256. backend: it builds the library, and is not installed."""

    name: str
    version: str
    file: str
    sha256: str
    backend: bool = False


@dataclass(frozen=True, slots=True)
class Lock:
    """What the demonstration works on. The first file is the library's source distribution."""

    library: str
    version: str
    files: tuple[Pinned, ...]

    @property
    def sdist(self) -> Pinned:
        return self.files[0]

    @property
    def wheels(self) -> tuple[Pinned, ...]:
        return self.files[1:]


class FetchFailed(Exception):
    """A file is not to be had, or is not what was pinned."""


def load(path: Path = _HERE / "lock.json") -> Lock:
    """The lock file."""
    raw = json.loads(path.read_text())
    return Lock(raw["library"], raw["version"], tuple(Pinned(**item) for item in raw["files"]))


def fetch(lock: Lock, cache: Path) -> int:
    """Have every file in `cache`; how many had to be fetched. FetchFailed names the file and the remedy."""
    cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    missing = [pinned for pinned in lock.files if not _is_there(cache / pinned.file, pinned)]
    if not missing:
        return 0
    # Not below the cache: its directories need not be open to the uid.
    with tempfile.TemporaryDirectory(prefix="space-demo-") as scratch:
        place = Path(scratch)
        place.chmod(0o711)
        incoming = place / "in"
        incoming.mkdir()
        _pip(incoming, [pinned.file for pinned in missing])
        for pinned in missing:
            _take(incoming / pinned.file, cache, pinned)
    return len(missing)


def environment(home: Path, outer: dict[str, str]) -> dict[str, str]:
    """The environment for pip: how to reach an index, and nothing else of ours."""
    kept = {name: value for name, value in outer.items() if name.upper().startswith(_PASSED_ON)}
    return kept | {"PATH": "/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8", "PIP_NO_INPUT": "1", "PIP_NO_CACHE_DIR": "1"}


def _pip(incoming: Path, files: list[str]) -> None:
    script = incoming.parent / "pip_fetch.py"
    shutil.copyfile(_HERE / "pip_fetch.py", script)
    script.chmod(0o644)
    home = incoming.parent / "home"
    _lend_configuration(home)
    uid = UID if os.geteuid() == 0 else None
    if uid is not None:
        os.chown(incoming, uid, uid)
    done = subprocess.run(
        [PYTHON, "-I", str(script), str(incoming), *files],
        cwd=incoming,
        env=environment(home, dict(os.environ)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=600,
        umask=0o022,
        user=uid,
        group=uid,
        extra_groups=None if uid is None else [],
    )
    if done.returncode != 0:
        tail = "\n  ".join(done.stderr.strip().splitlines()[-4:])
        raise FetchFailed(f"cannot fetch {', '.join(files)}:\n  {tail}")


def _lend_configuration(home: Path) -> None:
    """The caller's own pip.conf, readable for the uid: the caller's index must count, whoever fetches."""
    home.mkdir()
    for name in (".pip/pip.conf", ".config/pip/pip.conf"):
        source = Path.home() / name
        if source.is_file():
            copy = home / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            if os.geteuid() == 0:
                os.chown(copy, UID, UID)
            copy.chmod(0o400)


def _take(source: Path, cache: Path, pinned: Pinned) -> None:
    """Copy a file that an unprivileged uid wrote: no link is followed, and only the pinned bytes get the name."""
    staged = cache / f".{pinned.file}.{os.getpid()}"
    digest = hashlib.sha256()
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file, staged.open("xb") as copy:
            while data := file.read(1 << 20):
                digest.update(data)
                copy.write(data)
                if copy.tell() > _LARGEST:
                    raise FetchFailed(f"{pinned.file} is larger than {_LARGEST >> 20} MiB")
        if digest.hexdigest() != pinned.sha256:
            raise FetchFailed(
                f"{pinned.file} has SHA-256 {digest.hexdigest()}, and {pinned.sha256} is pinned: the index gives another file"
            )
        staged.chmod(0o444)
        staged.rename(cache / pinned.file)
    except OSError as error:
        raise FetchFailed(f"cannot take {pinned.file}: {error}") from error
    finally:
        with suppress(FileNotFoundError):
            staged.unlink()


def _is_there(path: Path, pinned: Pinned) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == pinned.sha256
    except FileNotFoundError:
        return False
