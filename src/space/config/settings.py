"""What an operator may set, in `/etc/space/<instance>.toml`; each field says why it is there. Unknown keys are errors."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from space.config.instance import Instance
from space.model.errors import InvalidArgument, Unavailable


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the server, with the defaults of a single machine."""

    # The API's address. Anything but loopback needs TLS, and an isolation that is a boundary.
    host: str = "127.0.0.1"
    # 0 takes any free port, which private instances use.
    port: int = 7070
    # PEM files; both or neither.
    tls_certificate: str | None = None
    tls_key: str | None = None
    # Names that the Host header may carry besides the address itself: a browser tricked by DNS rebinding brings another.
    allowed_hosts: tuple[str, ...] = ()
    # `auto` probes KVM with a guest; `tcg` and `kvm` force one.
    accelerator: str = "auto"
    # QEMU does not call emulation a boundary: clients from elsewhere are refused unless the operator says so.
    allow_remote_emulated: bool = False
    # A create beyond these answers `no_capacity` at once. Memory 0: what the machine has less a reserve.
    max_sandboxes: int = 200
    memory_mib: int = 0
    # A client that dies leaves nothing for longer than this.
    max_ttl_seconds: int = 86_400
    # Boots at the same time: more only make each of them slower. 0: one a processor, two at least.
    concurrent_boots: int = 0


def load(path: Path, overrides: dict[str, str] | None = None) -> Settings:
    """Settings of a file (which may be absent) with overrides from the command line. InvalidArgument names key and remedy."""
    values: dict[str, Any] = {}
    if path.is_file():
        try:
            values = tomllib.loads(path.read_text())
        except tomllib.TOMLDecodeError as error:
            raise InvalidArgument(f"{path} is not TOML: {error}") from error
    settings = Settings()
    known = {field.name: field for field in fields(Settings)}
    for key, value in values.items():
        if key not in known:
            raise InvalidArgument(f"{path}: unknown setting {key!r}", hint="known: " + ", ".join(sorted(known)))
        settings = _set(settings, key, value, where=str(path))
    for key, text in (overrides or {}).items():
        if key not in known:
            raise InvalidArgument(f"unknown setting {key!r}", hint="known: " + ", ".join(sorted(known)))
        settings = _set(settings, key, _parse(key, text), where="--set")
    return _checked(settings)


def save_effective(instance: Instance, settings: Settings) -> None:
    """Write what this run of the instance goes by, for its services to read. It holds no secret, only paths of them."""
    staged = instance.run / f".settings.json.{os.getpid()}"
    staged.write_text(json.dumps(asdict(settings), indent=1, sort_keys=True) + "\n")
    staged.chmod(0o644)
    staged.rename(instance.run / "settings.json")


def load_effective(instance: Instance) -> Settings:
    """What serve wrote; Unavailable when the instance was never served since the run directory was made."""
    path = instance.run / "settings.json"
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise Unavailable(
            f"{path} is not there: instance {instance.name} is not served", hint=f"space serve --instance {instance.name}"
        ) from None
    settings = Settings()
    for key, value in values.items():
        if value is not None:
            settings = _set(settings, key, value, where=str(path))
    return _checked(settings)


def _parse(key: str, text: str) -> Any:
    default = getattr(Settings(), key)
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise InvalidArgument(f"setting {key} is true or false, not {text!r}")
        return text == "true"
    if isinstance(default, int):
        try:
            return int(text)
        except ValueError:
            raise InvalidArgument(f"setting {key} is a whole number, not {text!r}") from None
    if isinstance(default, tuple):
        return [part for part in text.split(",") if part]
    return text


def _set(settings: Settings, key: str, value: Any, *, where: str) -> Settings:
    default = getattr(Settings(), key)
    if isinstance(default, tuple) and isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = tuple(value)
    expected: type = str if default is None else type(default)
    if type(value) is not expected:
        raise InvalidArgument(f"{where}: setting {key} wants {expected.__name__}, not {value!r}")
    changed: dict[str, Any] = {key: value}
    return replace(settings, **changed)


def _checked(settings: Settings) -> Settings:
    if not 0 <= settings.port <= 65535:
        raise InvalidArgument(f"setting port is 0 to 65535, not {settings.port}")
    if settings.accelerator not in ("auto", "kvm", "tcg"):
        raise InvalidArgument(f"setting accelerator is auto, kvm or tcg, not {settings.accelerator!r}")
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise InvalidArgument("settings tls_certificate and tls_key belong together: one of them is missing")
    for key in ("max_sandboxes", "max_ttl_seconds"):
        if getattr(settings, key) < 1:
            raise InvalidArgument(f"setting {key} is at least 1, not {getattr(settings, key)}")
    return settings
