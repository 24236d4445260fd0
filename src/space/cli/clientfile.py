"""The client's own file, `~/.config/space/config.toml` (or below XDG_CONFIG_HOME): which server, and the file with its key.

    api_url = "https://space.example.com"
    key_file = "/home/me/.config/space/key"

What is said on the command line or in the environment comes before it; an instance of this machine comes after it. The key goes to that
address only.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from space.model.errors import InvalidArgument

NAMES = ("api_url", "key_file")


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a client is made with, and where each part came from. None: the SDK finds it (SPACE_API_KEY, an instance of this machine)."""

    url: str | None
    url_from: str | None
    key_file: str | None
    key_from: str | None


def place(environ: Mapping[str, str]) -> Path:
    """Where the file is."""
    base = environ.get("XDG_CONFIG_HOME") or ""
    # The specification has relative paths ignored.
    return (Path(base) if base.startswith("/") else Path.home() / ".config") / "space/config.toml"


def load(path: Path) -> dict[str, str]:
    """What the file says; nothing when it is not there. InvalidArgument for one that cannot be right."""
    try:
        need_file(path)
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot read {path}: {error}") from error
    import tomllib

    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"{path} is no TOML: {error}", hint="mend it, or remove it and use `space config set`") from error
    for name, value in found.items():
        if name not in NAMES:
            raise InvalidArgument(f"{path}: there is no setting {name!r}", hint=f"there are {' and '.join(NAMES)}")
        if not isinstance(value, str) or not value:
            raise InvalidArgument(f"{path}: {name} must be text")
    return found


def need_file(path: Path) -> None:
    """OSError for what is there and is no regular file: a FIFO would be waited for, and a device be replaced."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISREG(mode):
        raise OSError(errno.EEXIST, "it is no regular file", str(path))


def store(path: Path, values: Mapping[str, str]) -> None:
    """Replace the file, whole."""
    path = path.resolve()  # who keeps the file elsewhere, and a link here, keeps the link
    need_file(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in sorted(values.items()))
        need_file(path)
        beside.rename(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def chosen(url: str | None, key_file: str | None, instance: str | None, environ: Mapping[str, str]) -> Chosen:
    """What the options, the environment and the file say together."""
    path = place(environ)
    found: dict[str, str] = {}
    url_from = "--url" if url else None
    if not url and not instance and environ.get("SPACE_API_URL"):
        url, url_from = environ["SPACE_API_URL"], "SPACE_API_URL"
    if not instance and (url or not environ.get("SPACE_INSTANCE")):
        found = load(path)
    if not url and "api_url" in found:
        url, url_from = found["api_url"], str(path)
    key_from = "--key-file" if key_file else "SPACE_API_KEY" if environ.get("SPACE_API_KEY") else None
    if key_from is None and "key_file" in found and url and url.rstrip("/") == found.get("api_url", "").rstrip("/"):
        key_file, key_from = found["key_file"], str(path)
    return Chosen(url, url_from, key_file, key_from)
