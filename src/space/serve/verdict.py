"""One verdict on `/dev/kvm` for a whole host: a node probes it with a guest, which takes seconds, and private instances come and go.

serve hands the file on as it is, bounded and unread; the node that gets it checks boot and kernel. It is no secret, and what a
node could forge in it is the label of guests that the same operator runs.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from space.config.instance import Instance, instances

_FILE = "accelerator.json"
_LIMIT = 4096


def hand_on(instance: Instance) -> None:
    """Give a node that has none the verdict of this host, if there is one: the shared copy, or that of another instance."""
    own = instance.node_data / _FILE
    if own.exists():
        return
    others = (other.node_data / _FILE for other in instances(data_root=instance.data_root, run_root=instance.run_root))
    for candidate in (instance.run_root / _FILE, *others):
        if found := _read(candidate):
            _write(own, found, instance.node_uid)
            return


def keep(instance: Instance) -> None:
    """Keep the node's verdict for the instances to come."""
    if found := _read(instance.node_data / _FILE):
        _write(instance.run_root / _FILE, found, 0)


def _read(path: Path) -> bytes:
    with suppress(OSError):
        # The directory is a service's, so nothing is taken for granted of what lies in it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return file.read(_LIMIT)
    return b""


def _write(path: Path, data: bytes, owner: int) -> None:
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchown(descriptor, owner, owner)
        file.write(data)
    staged.rename(path)
