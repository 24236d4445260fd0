"""Where the server is, and with which key: arguments, then the environment, then (for root) the instance of this machine.

The paths of an instance are spelled out here a second time, because the SDK must not import the server's configuration;
a unit test compares the two. An instance's own key goes only to that instance's own address.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from space.model.errors import ConnectionFailed, InvalidArgument, Unauthenticated
from space.model.ids import instance_name

RUN_ROOT = Path("/run/space")
DATA_ROOT = Path("/var/lib/space")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address and the key to use with it; the key stays out of `repr`."""

    url: str
    key: str = field(repr=False)

    @property
    def is_loopback(self) -> bool:
        """Whether the address is this machine: then no proxy of the environment may see the request."""
        host = urlsplit(self.url).hostname or ""
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    @property
    def is_tls(self) -> bool:
        return self.url.startswith("https://")


def resolve(
    api_url: str | None = None,
    api_key: str | None = None,
    *,
    instance: str | None = None,
    key_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    run_root: Path = RUN_ROOT,
    data_root: Path = DATA_ROOT,
) -> Endpoint:
    """The endpoint to talk to.

    An `instance` that is named in the call wins over SPACE_API_URL. Raises ConnectionFailed when no address is known,
    Unauthenticated when no key is, InvalidArgument for values that cannot be right; each says what to set.
    """
    env = os.environ if environ is None else environ
    try:
        name = instance_name(instance or env.get("SPACE_INSTANCE") or "default")
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    local = _local_url(run_root / name / "endpoint.json")
    for name_of, given in (("the address", api_url), ("the key", api_key)):
        if given is not None and not given.strip():
            raise InvalidArgument(f"{name_of} that was given is empty", hint="leave it out to use what is configured")
    url = api_url or (local if instance else None) or (None if instance else env.get("SPACE_API_URL")) or local
    if not url:
        raise ConnectionFailed(
            f"no server is known: instance '{name}' is not running here",
            hint="start it with `space serve`, or set SPACE_API_URL and SPACE_API_KEY",
        )
    url = checked_url(url)
    is_local = local is not None and url == checked_url(local)
    key = api_key or _key_from(key_file) or (env.get("SPACE_API_KEY") if not (instance and is_local) else None)
    if not key and is_local:
        key = _admin_key(data_root / "instances" / name / "control" / "admin-key") or env.get("SPACE_API_KEY")
    if not key:
        raise Unauthenticated(f"there is no key for {url}", hint="set SPACE_API_KEY, or name a file with --key-file")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise InvalidArgument("the key holds characters that no key has", hint="was a whole file or a quoted value given?")
    return Endpoint(url, key)


def _local_url(path: Path) -> str | None:
    try:
        url = json.loads(path.read_text())["url"]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ConnectionFailed(f"{path} does not hold an address: {error!r}", hint="restart `space serve`") from error
    return str(url)


def checked_url(url: str) -> str:
    """The address without a slash at its end; InvalidArgument for one that cannot be right."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:  # brackets that do not close, a port that is none
        raise InvalidArgument(f"not a server address: {url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        raise InvalidArgument(f"not a server address: {url!r}", hint="such as http://127.0.0.1:7070 or https://space.example.com")
    return url.rstrip("/")


def _key_from(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        key = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"cannot read the key file {path}: {error}") from error
    if not key:
        # never fall back on another key, least of all the local admin's
        raise InvalidArgument(f"the key file {path} is empty")
    return key


def _admin_key(path: Path) -> str | None:
    """The key minted at the instance's first start: only its own uid and root can read it."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
