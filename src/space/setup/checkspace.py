"""What doctor looks at of `space` itself on this host: storage, artefacts, runtime, settings, certificates, uid blocks, instances.

As in `checkhost`, a probe (`see_...`) decides nothing and a judge looks at nothing.
"""

from __future__ import annotations

import datetime as dt
import http.client
import json
import os
import pwd
import ssl
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from space.config import blocks, services
from space.config import settings as config
from space.config.artefacts import Store
from space.config.instance import MAX_INSTANCES, Instance, is_served
from space.config.settings import Settings
from space.host import namespaces
from space.model.errors import Conflict, SpaceError
from space.setup import contents, storage
from space.setup.checkhost import SETUP
from space.setup.checkup import Check, failure, fine, warning

GIB = storage.GIB
LEAST_FREE = GIB
_SOON_DAYS = 21
_PATIENCE = 3.0
_PARTS = {"kernel": "vmlinux", "initramfs": "initrd.cpio", "qemu": "root", "template": "disk.img"}


# -- storage ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """The data directory. reflinks: None when only root can see. image: the loop file's size and allocated bytes, if it is one."""

    path: Path
    there: bool
    kind: str
    options: frozenset[str]
    reflinks: bool | None
    image: tuple[Path, int, int] | None


def see_place(path: Path, mountinfo: str) -> Place:
    """With two probe files for the reflink, which go again."""
    there = path.is_dir()
    kind, options = mounted(path, mountinfo)
    reflinks = storage.has_reflinks(path) if there and os.access(path, os.W_OK) else None
    image = None
    if storage.backing() is not None:
        with suppress(OSError):
            facts = storage.IMAGE.stat()
            image = (storage.IMAGE, facts.st_size, facts.st_blocks * 512)
    return Place(path, there, kind, options, reflinks, image)


def mounted(path: Path, mountinfo: str) -> tuple[str, frozenset[str]]:
    """The kind of file system that a path lies on, and its options."""
    best, found = -1, ("unknown", frozenset[str]())
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        point = Path(left.split()[4].encode().decode("unicode_escape"))
        if (point == path or point in path.parents) and len(point.parts) >= best:
            kind, _, options = right.split(" ", 2)
            best, found = len(point.parts), (kind, frozenset(options.split(",")))
    return found


def judge_place(found: Place) -> Check:
    """Whether sandboxes' disks can be reflinks, and whether the host's disk can take them from below."""
    looked = f"a reflink below {found.path}, mountinfo"
    if not found.there:
        return failure("storage", f"there is no {found.path}", SETUP, looked_at=looked)
    if found.reflinks is None:
        return fine("storage", f"{found.path} is there; whether it has reflinks only root can see", looked_at=looked, chosen=found.kind)
    where = f"{found.kind} in the loop file {found.image[0]}" if found.image else f"the host's own {found.kind}"
    chosen = f"{found.kind}, loop file" if found.image else found.kind
    if not found.reflinks:
        return failure("storage", f"{found.path} on {where}, reflinks do not work", SETUP + ", or start `space serve`", looked_at=looked)
    detail = f"{found.path} on {where}, reflinks work"
    if found.image is not None and found.image[2] < found.image[1] * 99 // 100:
        detail += f"; {found.image[2] / GIB:.1f} of its {found.image[1] / GIB:.1f} GiB are allocated"
        remedy = f"fallocate -l {found.image[1]} {found.image[0]}: a sparse one goes read-only for good when the host's disk fills"
        return warning("storage", detail, remedy, looked_at=looked, chosen=chosen)
    if found.image is not None and {"discard", "discard=async"} & found.options:
        remedy = "mount it with nodiscard: a TRIM takes the loop file's allocation away"
        return warning("storage", f"{detail}; it is mounted with discard", remedy, looked_at=looked, chosen=chosen)
    return fine("storage", detail, looked_at=looked, chosen=chosen)


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes."""

    path: Path
    free: int
    whole: int


def see_room(path: Path) -> Room:
    """Below the data directory, or where it would be."""
    facts = os.statvfs(path if path.is_dir() else path.parent)
    return Room(path, facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize)


def judge_room(found: Room) -> Check:
    """Disks are reflinks and grow as guests write."""
    detail = f"{found.free / GIB:.1f} of {found.whole / GIB:.1f} GiB below {found.path}"
    remedy = "delete sandboxes (`space list`), or `make clean` and set up with a larger SPACE_STORAGE_GIB"
    if found.free < LEAST_FREE:
        return failure("free space", detail, remedy, looked_at="statvfs")
    if found.free * 10 < found.whole:
        return warning("free space", detail + ": less than a tenth", remedy, looked_at="statvfs")
    return fine("free space", detail, looked_at="statvfs")


# -- artefacts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Artefacts:
    """wrong: what is not as set-up made it, in words."""

    name: str
    source: str
    release: str
    wrong: tuple[str, ...]
    verified: int = 0  # parts whose contents were recorded when they were made


def see_artefacts(store: Store, name: str) -> Artefacts:
    """The base template and everything that it names by digest. NotFound without one."""
    try:
        manifest = store.template(name)
    except Conflict as error:  # of another version, or not the one that the name leads to
        return Artefacts(name, "", "", (f"{name}: {error.message}",))
    parts = {"kernel": manifest.kernel, "initramfs": manifest.initramfs, "qemu": manifest.qemu, "template": manifest.digest}
    wrong, verified = [], 0
    for kind, digest in parts.items():
        place, what = store.path(kind, digest), f"{kind} {digest[:12]}"
        wrong += _wrong_with(place, what, _PARTS[kind])
        if (differences := contents.differences(place)) is not None:
            wrong += [f"{what}: {words}" for words in differences]
            verified += 1
    disk = store.path("template", manifest.digest) / "disk.img"
    if disk.is_file() and disk.stat().st_size != manifest.disk_bytes:
        wrong.append(f"disk.img has {disk.stat().st_size} bytes, not {manifest.disk_bytes}")
    return Artefacts(manifest.name, manifest.source, manifest.kernel_release, tuple(wrong), verified)


def _wrong_with(directory: Path, what: str, part: str) -> list[str]:
    if not directory.is_dir():
        return [f"{what} is gone"]
    if not (directory / part).exists():
        return [f"{what} has no {part}"]
    for path in (directory, directory / part):
        facts = path.stat()
        if facts.st_uid != 0 or facts.st_mode & 0o222:
            return [f"{what}: {path.name} belongs to uid {facts.st_uid} with mode {facts.st_mode & 0o7777:o}"]
    return []


def judge_artefacts(found: Artefacts) -> Check:
    """All there, root's, read-only, and named as they say."""
    looked = "names/, each artefact by its digest, and its contents"
    if found.wrong:
        return failure("artefacts", "; ".join(found.wrong), SETUP, looked_at=looked)
    detail = f"template {found.name}: {found.source}, kernel {found.release}; contents verified: {found.verified} of {len(_PARTS)}"
    if found.verified < len(_PARTS):
        detail += " (an earlier set-up did not record the others)"
    return fine("artefacts", detail, looked_at=looked)


# -- runtime ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Installed:
    """place: where the command leads, None when nowhere."""

    command: Path
    place: Path | None
    uid: int = 0
    mode: int = 0


def see_installed(link: Path) -> Installed:
    """The runtime behind `space`."""
    if not link.is_symlink() or not link.exists():
        return Installed(link, None)
    place = link.resolve().parents[1]
    facts = place.stat()
    return Installed(link, place, facts.st_uid, facts.st_mode & 0o7777)


def judge_installed(found: Installed) -> Check:
    """root's, and nobody's to write."""
    if found.place is None:
        return failure("runtime", f"{found.command} leads nowhere", SETUP, looked_at=str(found.command))
    if found.uid != 0 or found.mode & 0o222:
        detail = f"{found.place} belongs to uid {found.uid} with mode {found.mode:o}"
        return failure("runtime", detail, SETUP, looked_at=str(found.command))
    return fine("runtime", str(found.place), looked_at=str(found.command))


# -- settings and certificates ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Configured:
    """An instance's settings as the next serve would find them. error: what is wrong with them."""

    instance: str
    path: Path
    settings: Settings
    chosen: Mapping[str, str]
    error: str | None = None
    hint: str = ""


def see_settings(instance: str, path: Path, environment: Mapping[str, str]) -> Configured:
    """Reads them as serve does."""
    try:
        found = config.resolve(path, None, environment)
    except SpaceError as error:
        return Configured(instance, path, Settings(), {}, error.message, error.hint or "")
    chosen = {key: source for key, source in found.sources.items() if source != config.DEFAULT}
    return Configured(instance, path, found.settings, chosen)


def judge_settings(found: Configured) -> Check:
    """Whether the next serve would take them."""
    name, looked = f"settings of {found.instance}", f"{found.path}, SPACE_* of this environment"
    if found.error is not None:
        return failure(name, found.error, found.hint or f"mend {found.path}", looked_at=looked)
    said = ", ".join(f"{key} from {source}" for key, source in sorted(found.chosen.items()))
    return fine(name, said or "defaults", looked_at=looked)


@dataclass(frozen=True, slots=True)
class Certificate:
    """The API's certificate. Times: seconds since the epoch."""

    instance: str
    path: str
    now: float
    not_before: float = 0
    not_after: float = 0
    error: str | None = None


def see_certificate(instance: str, settings: Settings, now: float) -> Certificate | None:
    """The first certificate of the file, and whether the key belongs to it; None without TLS."""
    path = settings.tls_certificate
    if path is None or settings.tls_key is None:
        return None
    try:
        from cryptography import x509

        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, settings.tls_key, password=_no_password)
        found = x509.load_pem_x509_certificates(Path(path).read_bytes())[0]
    except ImportError:
        return Certificate(instance, path, now, error="this interpreter cannot read certificates: run the installed `space doctor`")
    except (OSError, ValueError) as error:
        return Certificate(instance, path, now, error=str(error))
    return Certificate(instance, path, now, found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp())


def _no_password() -> str:
    raise ValueError("the key has a passphrase")


def judge_certificate(found: Certificate) -> Check:
    """Valid now, and for some weeks."""
    name, looked = f"certificate of {found.instance}", found.path
    if found.error is not None:
        remedy = "tls_certificate and tls_key name PEM files that belong together"
        return failure(name, f"{found.path}: {found.error}", remedy, looked_at=looked)
    ends = dt.datetime.fromtimestamp(found.not_after, dt.UTC)
    days = (found.not_after - found.now) / 86_400
    if found.now < found.not_before:
        return failure(name, f"{found.path} is not valid yet", "look at the host's clock, or take another", looked_at=looked)
    if days < 0:
        return failure(name, f"{found.path} ended on {ends:%Y-%m-%d}", "renew it and start `space serve` again", looked_at=looked)
    if days < _SOON_DAYS:
        detail = f"{found.path} ends on {ends:%Y-%m-%d}, in {days:.0f} days"
        return warning(name, detail, "renew it; it counts from the next start of serve on", looked_at=looked)
    return fine(name, f"{found.path} is valid until {ends:%Y-%m-%d}", looked_at=looked)


# -- uid blocks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Blocks:
    """owners: each instance's block. granted: subordinate ids of the host's users. accounts: of passwd, with their uid."""

    owners: Mapping[str, range]
    granted: tuple[range, ...]
    accounts: Mapping[str, int]


def see_blocks(found: Iterable[Instance]) -> Blocks:
    """What the instances' records, subuid, subgid and passwd say."""
    owners = {str(one.name): one.uid_range for one in found}
    return Blocks(owners, tuple(blocks.grants()), {entry.pw_name: entry.pw_uid for entry in pwd.getpwall()})


def judge_blocks(found: Blocks) -> Check:
    """Nobody else has an instance's uids: whoever has one reads its disks and signals its VMs."""
    looked = "instance records, /etc/subuid, /etc/subgid, passwd"
    wrong, names = [], sorted(found.owners)
    for number, one in enumerate(names):
        wrong += [f"{one} and {other} have the same uids" for other in names[number + 1 :] if found.owners[one] == found.owners[other]]
        theirs = [grant for grant in found.granted if blocks.overlaps(found.owners[one], [grant])]
        wrong += [f"{one}: subordinate ids {grant.start}-{grant.stop - 1} are granted to a user" for grant in theirs]
        wrong += [f"{one}: uid {uid} is {name}" for name, uid in found.accounts.items() if uid in found.owners[one]]
    if wrong:
        remedy = "move the accounts or grants away; no instance gives its uids up while it is there"
        return failure("uids", "; ".join(wrong), remedy, looked_at=looked)
    ours = range(blocks.uids(0).start, blocks.uids(MAX_INSTANCES - 1).stop)
    near = [name for name, uid in found.accounts.items() if uid in ours]
    if near:
        return warning("uids", f"accounts among the uids of instances to come: {', '.join(near)}", "give them lower uids", looked_at=looked)
    held = ", ".join(f"{name} {block.start}-{block.stop - 1}" for name, block in sorted(found.owners.items()))
    return fine("uids", held or "no instance has any", looked_at=looked)


# -- instances ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Running:
    """An instance. alive: its services by role, with the place that each runs from; None when only root can see them.

    health: what control answered, or why it did not.
    """

    name: str
    served: bool
    alive: Mapping[str, str] | None
    health: Mapping[str, object] | str
    installed: Path | None
    log: Path


def see_running(instance: Instance, installed: Path | None) -> Running:
    """Asks control at its own address."""
    alive = _alive(instance)
    served = is_served(instance)
    health: dict[str, object] | str = "it is not served"
    if served or (alive is not None and "control" in alive):
        health = _health(instance)
    return Running(str(instance.name), served, alive, health, installed, instance.log)


def _alive(instance: Instance) -> dict[str, str] | None:
    alive: dict[str, str] = {}
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        for record in json.loads(instance.services.read_text()):
            if record["boot"] == boot and namespaces.start_time(int(record["pid"])) == int(record["started"]):
                alive[str(record["role"])] = str(record["build"]).split(" ")[0]
    except PermissionError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        pass  # nobody ever served it, or its record is being written
    return alive


def _health(instance: Instance) -> dict[str, object] | str:
    try:
        url = str(json.loads(instance.endpoint.read_text())["url"])
        scheme, _, address = url.partition("://")
        connection = http.client.HTTPConnection(address, timeout=_PATIENCE)
        if scheme == "https":
            # Our own listener, by an address that its certificate need not name; nothing secret is sent.
            connection = http.client.HTTPSConnection(address, timeout=_PATIENCE, context=ssl._create_unverified_context())  # noqa: S323
        try:
            connection.request("GET", "/healthz")
            found = json.loads(connection.getresponse().read(65_536))
        finally:
            connection.close()
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    return found if isinstance(found, dict) else "its answer is no object"


def judge_running(found: Running) -> Check:
    """Served, answering, the node connected, by the runtime that is installed."""
    name, looked = f"instance {found.name}", "its lock, services.json, GET /healthz"
    if not found.served and found.alive:
        detail = f"serve is dead; {', '.join(sorted(found.alive))} run on"
        return warning(name, detail, f"start `space serve --instance {found.name}`: it adopts them", looked_at=looked)
    if not found.served:
        return fine(name, "not served", looked_at=looked)
    alive = found.alive if found.alive is not None else {}
    lacking = [role for role in services.NAMES if role not in alive and found.alive is not None]
    if lacking:
        remedy = f"serve starts them again; {found.log}/{lacking[0]}.log says why they end"
        return failure(name, f"served, without {', '.join(lacking)}", remedy, looked_at=looked)
    if isinstance(found.health, str):
        return failure(name, f"control does not answer: {found.health}", f"look at {found.log}/control.log", looked_at=looked)
    detail = f"space {found.health.get('version')}, {found.health.get('status')}, isolation: {found.health.get('isolation')}"
    if found.health.get("status") != "ok":
        return failure(name, f"{detail}: the node is not connected", f"look at {found.log}/node.log", looked_at=looked)
    others = sorted({place for place in alive.values() if found.installed is not None and place != str(found.installed)})
    if others:
        fact = f"{detail}; it runs from {', '.join(others)}, and {found.installed} is installed"
        return warning(name, fact, "start serve again to run the installed one; sandboxes run on meanwhile", looked_at=looked)
    return fine(name, detail, looked_at=looked, chosen=str(found.health.get("isolation")))
