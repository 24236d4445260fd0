"""What an operator may set; each field says why it is there. Unknown keys are errors.

Three places, a later one over an earlier: `/etc/space/<instance>.toml`, the environment (`SPACE_<NAME>`), `space serve --set`.
The comment over a field is its page: `docs/reference/settings.md` is made of them, and one comment stands for all fields below it.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from space.config import egress
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
    # The name below which ports of sandboxes are reached by host name, `<port>-<id>.<domain>`, and this API as `api.<domain>`. It and all
    # names below it have to lead here. Empty: there are no such names, and headers say which sandbox is meant.
    # Use it for nothing else: what runs in a sandbox is a site of it.
    domain: str = ""
    # A JSON file that says which template stands for a container image from which E2B's clients build, such as {"node:20": "node"}.
    e2b_images: str | None = None
    # The port of the ingress at the same address, where servers in sandboxes are reached (docs/howto/ports.md). -1: the one after `port`,
    # so 7071, or any free one if `port` is 0. 0 takes any free one.
    ingress_port: int = -1
    # PEM files for `*.<domain>`; both or neither. Without them serve makes an authority of this machine's own (`space ingress ca`).
    ingress_tls_certificate: str | None = None
    ingress_tls_key: str | None = None
    # `auto` probes KVM with a guest, and takes a Firecracker for it where set-up has one, else QEMU; `firecracker`, `kvm` (QEMU's) and
    # `tcg` force one.
    accelerator: str = "auto"
    # QEMU does not call emulation a boundary: clients from elsewhere are refused unless the operator says so.
    allow_remote_emulated: bool = False
    # A create beyond these answers `no_capacity` at once. Memory 0: what the machine has less a reserve.
    max_sandboxes: int = 200
    memory_mib: int = 0
    # A create answers `no_capacity` while the data directory has less free than this: what is there needs it to go on writing.
    disk_reserve_mib: int = 512
    # Sizes of templates of which a guest that is up is kept in memory: a sandbox of such a size is a clone of it, there in a fraction of a
    # boot. Each takes some 100 MiB, which are let go when a sandbox needs them. 0: every sandbox boots.
    warm_templates: int = 4
    # Clones of such a size that are made before anybody asks, at most, each with the memory of a sandbox until one needs it: as many as
    # were asked for within the last minute. 0: a clone is made when it is asked for.
    clones_ahead: int = 4
    # A client that dies leaves nothing for longer than this.
    max_ttl_seconds: int = 86_400
    # Boots at the same time: more only make each of them slower. 0: one a processor, two at least.
    concurrent_boots: int = 0
    # What one tenant may have at once and how fast it may ask, unless an admin set its own quota. 0: no limit.
    tenant_sandboxes: int = 0
    tenant_cpus: int = 0
    tenant_memory_mib: int = 0
    tenant_disk_mib: int = 0
    tenant_snapshot_mib: int = 0
    tenant_checkpoints: int = 0
    tenant_secrets: int = 1000
    tenant_grants: int = 1000
    tenant_requests_per_second: int = 0
    # Events and audit records are kept so long, and so many of a tenant: a client that is away for a week finds its place again.
    events_days: int = 7
    events_per_tenant: int = 100_000
    audit_days: int = 90
    # A webhook makes the server connect for a tenant, so only global addresses are taken; networks (CIDR) that the operator adds here
    # are taken as well; an address of this machine itself only by itself, such as ["127.0.0.1/32"].
    webhook_networks: tuple[str, ...] = ()
    # Without TLS anybody on the way reads the events; loopback needs no permission.
    allow_http_webhooks: bool = False
    # How the services write their logs: `text`, or `json` with one object a line (docs/howto/operate.md).
    log_format: str = "text"
    # What a serve that is told to stop does with sandboxes: `keep` leaves them running for the next serve, `delete` ends them all.
    on_stop: str = "keep"
    # A process's output waits on the node's disk for who reads it later; beyond these the oldest is dropped, or the process waits.
    spool_mib_per_process: int = 16
    # Of all processes of a sandbox, ended ones included: what one tenant's sandbox can take of the disk.
    spool_mib_per_sandbox: int = 256
    # So long after its end a sandbox's processes and their output can be asked for. 0: not at all.
    retention_seconds: int = 3600
    # Each running sandbox's figures are taken that often, for their history; 0: never. Each costs the guest some milliseconds.
    metrics_interval_seconds: int = 30
    # Who is asked for the addresses of names that a policy allows: addresses, or `address:port` (`[address]:port` of IPv6). Empty:
    # those of the machine's /etc/resolv.conf. Guests never ask anybody.
    egress_resolvers: tuple[str, ...] = ()
    # Networks (CIDR) that the gateway may connect to although they are not public; an address of this machine itself only by itself,
    # such as ["10.1.2.3/32"]. A policy has to allow the name as well.
    egress_reachable: tuple[str, ...] = ()
    # A PEM bundle of authorities that upstream servers may be certified by, besides those of the machine's system.
    egress_ca_file: str | None = None
    # Where the addresses come from that stand for names inside a sandbox. They lead nowhere; another network helps where an agent's own
    # defences refuse this one.
    egress_synthetic: str = "198.18.0.0/15"
    # Where the broker's minter exchanges credentials for tokens: `name=https://host/path`. A secret says the name; nobody but the operator
    # says where its client's secret goes. They are verified as upstreams are, and dialled under the same rules (egress_reachable).
    token_endpoints: tuple[str, ...] = ()
    # What records of egress take of the disk, together; beyond it the oldest go, as they do after audit_days.
    egress_log_mib: int = 4096
    # The key that opens the broker's store: a file of the broker's uid, 0600, made when there is none. None: `broker.keyring` below the
    # instance's data.
    broker_keyring: str | None = None

    @property
    def ingress_at(self) -> int:
        """The port that the ingress binds; 0: any free one."""
        if self.ingress_port >= 0:
            return self.ingress_port
        return self.port + 1 if 0 < self.port < 65_535 else 0


_DOMAIN = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?\Z")
DEFAULT = "default"
FLAGS = "--set"
_SOURCES = "sources"
_AT_LEAST_1 = (
    "max_sandboxes", "max_ttl_seconds", "events_days", "events_per_tenant", "audit_days", "egress_log_mib", "spool_mib_per_process",
    "spool_mib_per_sandbox",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings, and where each value came from: DEFAULT, the file's path, the variable's name, or FLAGS."""

    settings: Settings
    sources: dict[str, str]


class WrongFlag(InvalidArgument):
    """What `--set` says is wrong: the command line is to blame, and nothing on the host."""


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"SPACE_{name.upper()}"


def resolve(path: Path, overrides: Mapping[str, str] | None = None, environment: Mapping[str, str] | None = None) -> Resolved:
    """Settings of a file (which may be absent), of the environment, and of the command line. InvalidArgument names key and remedy.

    WrongFlag when it is `overrides` that are wrong. Variables that are no setting's are somebody else's and ignored.
    """
    settings, sources = Settings(), {field.name: DEFAULT for field in fields(Settings)}
    for key, value in _table(path).items():
        _known(key, f"{path}: ")
        settings, sources[key] = _set(settings, key, value, where=str(path)), str(path)
    for key in sources:
        name = variable(key)
        if name in (environment or {}):
            text = (environment or {})[name]
            settings, sources[key] = _set(settings, key, _parse(key, text, name), where=name), name
    below = settings
    try:
        for key, text in (overrides or {}).items():
            _known(key, "")
            settings, sources[key] = _set(settings, key, _parse(key, text, f"setting {key}"), where=FLAGS), FLAGS
    except InvalidArgument as error:
        raise WrongFlag(error.message, hint=error.hint) from None
    try:
        _checked(settings)
    except InvalidArgument as error:
        if settings == below or not _is_right(below):
            raise
        raise WrongFlag(error.message, hint=error.hint) from None
    return Resolved(settings, sources)


def load(path: Path, overrides: Mapping[str, str] | None = None) -> Settings:
    """Settings of a file (which may be absent) with overrides from the command line. InvalidArgument names key and remedy."""
    return resolve(path, overrides).settings


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from error


def _known(key: str, where: str) -> None:
    names = sorted(field.name for field in fields(Settings))
    if key not in names:
        raise InvalidArgument(f"{where}unknown setting {key!r}", hint="known: " + ", ".join(names))


def _is_right(settings: Settings) -> bool:
    try:
        _checked(settings)
    except InvalidArgument:
        return False
    return True


def save_effective(instance: Instance, settings: Settings, sources: Mapping[str, str] | None = None) -> None:
    """Write what this run of the instance goes by, for its services to read. It holds no secret, only paths of them."""
    staged = instance.run / f".settings.json.{os.getpid()}"
    facts = asdict(settings) | {_SOURCES: dict(sources or {})}
    staged.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    staged.chmod(0o644)
    staged.rename(instance.run / "settings.json")


def load_effective(instance: Instance) -> Settings:
    """What serve wrote; Unavailable when the instance was never served since the run directory was made."""
    return effective(instance).settings


def effective(instance: Instance) -> Resolved:
    """The same with where each value came from."""
    path = instance.run / "settings.json"
    try:
        values = json.loads(path.read_text())
    except FileNotFoundError:
        raise Unavailable(
            f"{path} is not there: instance {instance.name} is not served", hint=f"space serve --instance {instance.name}"
        ) from None
    settings, sources = Settings(), values.pop(_SOURCES, {})
    for key, value in values.items():
        if value is not None:
            settings = _set(settings, key, value, where=str(path))
    return Resolved(_checked(settings), {field.name: sources.get(field.name, DEFAULT) for field in fields(Settings)})


def _parse(key: str, text: str, where: str) -> Any:
    default = getattr(Settings(), key)
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise InvalidArgument(f"{where} is true or false, not {text!r}")
        return text == "true"
    if isinstance(default, int):
        try:
            return int(text)
        except ValueError:
            raise InvalidArgument(f"{where} is a whole number, not {text!r}") from None
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
    if not -1 <= settings.ingress_port <= 65535:
        raise InvalidArgument(f"setting ingress_port is 0 to 65535, or -1 for the one after port, not {settings.ingress_port}")
    if settings.port == settings.ingress_at != 0:
        raise InvalidArgument(f"settings port and ingress_port are both {settings.port}", hint="the ingress listens apart from the API")
    if settings.domain and (len(settings.domain) > 180 or not _DOMAIN.match(settings.domain)):
        raise InvalidArgument(
            f"setting domain is a name of lower-case labels, such as sandboxes.example.com, not {settings.domain[:200]!r}"
        )
    if settings.accelerator not in ("auto", "firecracker", "kvm", "tcg"):
        raise InvalidArgument(f"setting accelerator is auto, firecracker, kvm or tcg, not {settings.accelerator!r}")
    for key, known in (("log_format", ("text", "json")), ("on_stop", ("keep", "delete"))):
        if getattr(settings, key) not in known:
            raise InvalidArgument(f"setting {key} is {' or '.join(known)}, not {getattr(settings, key)!r}")
    for prefix in ("", "ingress_"):
        if (getattr(settings, f"{prefix}tls_certificate") is None) != (getattr(settings, f"{prefix}tls_key") is None):
            raise InvalidArgument(f"settings {prefix}tls_certificate and {prefix}tls_key belong together: one of them is missing")
    for key in _AT_LEAST_1:
        if getattr(settings, key) < 1:
            raise InvalidArgument(f"setting {key} is at least 1, not {getattr(settings, key)}")
    for key in [name for name in Settings.__dataclass_fields__ if name.startswith("tenant_")]:
        if getattr(settings, key) < 0:
            raise InvalidArgument(f"setting {key} is at least 0 (no limit), not {getattr(settings, key)}")
    for network in settings.webhook_networks:
        try:
            ip_network(network)
        except ValueError as error:
            raise InvalidArgument(f"setting webhook_networks: {error}", hint='networks look like "10.1.0.0/16"') from None
    egress.resolvers(settings.egress_resolvers)
    egress.reachable(settings.egress_reachable)
    egress.synthetic(settings.egress_synthetic)
    egress.token_endpoints(settings.token_endpoints)
    for key in ("egress_ca_file", "broker_keyring", "e2b_images"):
        if (named := getattr(settings, key)) is not None and not Path(named).is_absolute():
            raise InvalidArgument(f"setting {key} is an absolute path, not {named!r}")
    for key in ("retention_seconds", "metrics_interval_seconds", "warm_templates", "clones_ahead"):
        if getattr(settings, key) < 0:
            raise InvalidArgument(f"setting {key} is at least 0, not {getattr(settings, key)}")
    if settings.spool_mib_per_process > settings.spool_mib_per_sandbox:
        raise InvalidArgument(
            f"setting spool_mib_per_process ({settings.spool_mib_per_process}) is more than all processes of a sandbox together "
            f"have: spool_mib_per_sandbox ({settings.spool_mib_per_sandbox})"
        )
    return settings
