"""The key that opens the broker's store: made at the first serve, never over another, never beside a store that it would not open.

It lies apart from the store so that it can be kept apart: another disk, a file that an operator puts there at boot. serve makes it
and looks at who owns it; what is in it only the broker reads.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from space.config import keyfile
from space.config.instance import Instance
from space.config.settings import Settings
from space.model.errors import Conflict, InvalidArgument, Unavailable

STORE = keyfile.STORE


def path(instance: Instance, settings: Settings) -> Path:
    """Where it is."""
    return instance.broker_keyring if settings.broker_keyring is None else Path(settings.broker_keyring)


def ensure(instance: Instance, settings: Settings, *, durable: bool = True) -> None:
    """It is there and the broker's alone afterwards.

    InvalidArgument: it is somebody else's, or open to others. Conflict: there is a store, and no key to it.
    """
    place = path(instance, settings)
    with suppress(FileExistsError):
        if not os.path.lexists(place):
            _make(instance, place, durable=durable)
    if fault := keyfile.objection(place, instance.broker_uid):
        raise InvalidArgument(f"the broker's keyring {place} {fault}", hint=f"chown {instance.broker_uid} {place}; chmod 600 {place}")


def _make(instance: Instance, place: Path, *, durable: bool) -> None:
    if (store := instance.broker_data / STORE).exists():
        raise Conflict(
            f"{store} is there, and {place}, the key that opens it, is not",
            hint=f"put the key back (from where you keep it, or a backup made with --with-keyring); if it is lost for good, so is what the "
            f"store holds: move {store} away, and the next serve begins a new one",
        )
    try:
        keyfile.make(place, instance.broker_uid, durable=durable)
    except FileExistsError:
        raise
    except OSError as error:
        raise Unavailable(
            f"cannot make the broker's keyring {place}: {error.strerror}", hint="setting broker_keyring names the file"
        ) from error
