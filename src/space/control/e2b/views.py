"""Sandboxes as E2B's clients are told of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from space.control.e2b.ids import CLIENT_ID, ENVD_VERSION, to_e2b, to_ours
from space.control.e2b.seat import metadata
from space.control.e2b.sizes import ours
from space.control.e2b.store import Extras
from space.control.e2b.wake import RESTS
from space.control.records import Record
from space.control.services import Services
from space.model.errors import NotFound
from space.model.sandbox import Phase

Snapshot = tuple[str, list[str]]  # id, names
_OVER = frozenset({Phase.DELETING, Phase.GONE, Phase.FAILED})
_DISK_ONLY = frozenset({Phase.STOPPING, Phase.STOPPED})


def mine(services: Services, tenant: str, sandbox: str) -> Record:
    """A tenant's sandbox that is there, by the id that E2B's clients know. NotFound."""
    record = services.sandboxes.living(to_ours(sandbox))
    if record is None or record.tenant != tenant or record.phase in _OVER or services.e2b.extras.of(record.id).holds:
        raise NotFound(f'sandbox "{sandbox[:64]}" was not found')
    return record


def there(services: Services, tenant: str) -> list[Record]:
    """All of a tenant's that are there."""
    extras = services.e2b.extras
    return [one for one in services.sandboxes.of_tenant(tenant) if one.phase not in _OVER and not extras.of(one.id).holds]


def state(record: Record) -> str:
    """`running` or `paused`."""
    return "paused" if record.phase in RESTS else "running"


def time(microseconds: int) -> str:
    """RFC 3339."""
    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def sandbox(services: Services, record: Record) -> dict[str, Any]:
    """What makes one usable: the answer to create, connect and resume."""
    extras = services.e2b.extras.of(record.id)
    tokens = services.e2b.tokens
    return {
        "sandboxID": to_e2b(record.id),
        "templateID": template(record, extras),
        "clientID": CLIENT_ID,
        "alias": template(record, extras).partition(":")[0],
        "envdVersion": ENVD_VERSION,
        "domain": services.settings.domain or None,
        "trafficAccessToken": None if extras.public else tokens.traffic(record.id),
        # Ours: how what may leave it was understood.
        "egressPolicy": extras.policy or None,
        **({"envdAccessToken": tokens.envd(record.id)} if extras.secure else {}),
    }


def listed(services: Services, record: Record) -> dict[str, Any]:
    """One of a list."""
    extras = services.e2b.extras.of(record.id)
    named = template(record, extras)
    return {
        "sandboxID": to_e2b(record.id),
        "templateID": named,
        "clientID": CLIENT_ID,
        "alias": named.partition(":")[0],
        "startedAt": time(record.created_us),
        "endAt": time(ends(record)),
        "cpuCount": record.spec.cpus,
        "memoryMB": record.spec.memory_mib,
        "diskSizeMB": record.spec.disk_mib,
        "state": state(record),
        "envdVersion": ENVD_VERSION,
        "metadata": dict(metadata(record, extras)),
        "volumeMounts": [],
    }


def detail(services: Services, record: Record) -> dict[str, Any]:
    """One, whole."""
    extras = services.e2b.extras.of(record.id)
    said = listed(services, record) | {
        "domain": services.settings.domain or None,
        "allowInternetAccess": extras.internet,
        "lifecycle": {
            "autoResume": extras.auto_resume,
            "onTimeout": "kill" if record.spec.on_timeout == "delete" else "pause",
        },
        "egressPolicy": extras.policy or None,
    }
    if extras.network is not None:
        said["network"] = extras.network
    if extras.secure:
        said["envdAccessToken"] = services.e2b.tokens.envd(record.id)
    if record.phase in RESTS and record.phase not in (Phase.SUSPENDING, Phase.STOPPING):
        said["pauseMode"] = "filesystem" if record.phase in _DISK_ONLY else "full"
    return said


def template(record: Record, extras: Extras) -> str:
    """Of which it was made, as whoever made it said."""
    return extras.template or record.spec.template


def template_name(services: Services, record: Record) -> str:
    """Its template's name, without tag and namespace."""
    return ours(template(record, services.e2b.extras.of(record.id))).partition(":")[0]


def ends(record: Record) -> int:
    """Microseconds; of one that is kept until somebody acts, when its time would be over if it woke now."""
    if record.expires_us is not None:
        return record.expires_us
    return int(datetime.now(UTC).timestamp() * 1e6) + record.spec.ttl_seconds * 1_000_000
