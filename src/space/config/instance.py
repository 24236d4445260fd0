"""An instance: one installation of the server, and everything that it puts on a host.

Every path, uid, cgroup, namespace and socket hangs on the instance's name and index, so that several instances (tests,
`space run`, benches) live side by side and a sweep of one touches nothing of another. They share only the read-only
artefact store. uids are numbers without passwd entries: a private instance needs its own, and nothing has to be removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from space.model.ids import InstanceName, instance_name

DATA_ROOT = Path("/var/lib/space")
RUN_ROOT = Path("/run/space")
SETTINGS_ROOT = Path("/etc/space")

_UID_BASE = 0x000A_0000  # 655,360: above every uid that a distribution hands out
_UIDS_PER_INSTANCE = 4096
MAX_INSTANCES = 200
_FIRST_VM_UID = 1024
SLOTS = 2048  # slots, and so VMs, of one instance


@dataclass(frozen=True, slots=True)
class Instance:
    """The names of one instance. `data_root` and `run_root` are arguments only so that unit tests can use a directory of theirs."""

    name: InstanceName
    index: int
    data_root: Path = DATA_ROOT
    run_root: Path = RUN_ROOT

    # -- uids (each with a gid of the same number) --------------------------------------------------------------
    @property
    def _uids(self) -> int:
        return _UID_BASE + self.index * _UIDS_PER_INSTANCE

    @property
    def control_uid(self) -> int:
        """The control process."""
        return self._uids + 1

    @property
    def node_uid(self) -> int:
        """The node process."""
        return self._uids + 2

    def vm_uid(self, slot: int) -> int:
        """The VMM that runs in `slot`; ValueError outside 0 to SLOTS - 1."""
        if not 0 <= slot < SLOTS:
            raise ValueError(f"slot {slot} is not within 0 to {SLOTS - 1}")
        return self._uids + _FIRST_VM_UID + slot

    @property
    def uid_range(self) -> range:
        """Every uid that belongs to this instance."""
        return range(self._uids, self._uids + _UIDS_PER_INSTANCE)

    # -- names in the kernel -------------------------------------------------------------------------------------
    @property
    def cgroup(self) -> str:
        """The instance's cgroup, below the root of each hierarchy; sandboxes are children of it."""
        return f"space-{self.name}"

    # -- on disk -------------------------------------------------------------------------------------------------
    @property
    def artefacts(self) -> Path:
        """Shared, root-owned, read-only: kernels, initramfs, VMMs, templates, each `<kind>/<digest>/`."""
        return self.data_root / "artefacts"

    @property
    def data(self) -> Path:
        return self.data_root / "instances" / self.name

    @property
    def sandboxes(self) -> Path:
        """Root-owned, 0711: `<sandbox>/` holds disk.img (VM uid : node gid, 0660) and sandbox.json (root's record)."""
        return self.data / "sandboxes"

    @property
    def control_data(self) -> Path:
        """control's own, 0700: state.db, admin-key (0600)."""
        return self.data / "control"

    @property
    def admin_key(self) -> Path:
        return self.control_data / "admin-key"

    @property
    def node_data(self) -> Path:
        """node's own, 0700: ledger.db, spools."""
        return self.data / "node"

    @property
    def log(self) -> Path:
        """Root-owned, 0700: one file a service."""
        return self.data / "log"

    # -- at run time ---------------------------------------------------------------------------------------------
    @property
    def run(self) -> Path:
        return self.run_root / self.name

    @property
    def lock(self) -> Path:
        """Held (flock) by serve."""
        return self.run / "lock"

    @property
    def services(self) -> Path:
        """serve's record of the processes it started, for the next serve to adopt."""
        return self.run / "services.json"

    @property
    def endpoint(self) -> Path:
        """{"url": ...} of the API while serve runs; 0644."""
        return self.run / "endpoint.json"

    @property
    def rootd_socket(self) -> Path:
        return self.run / "rootd.sock"

    @property
    def node_socket(self) -> Path:
        return self.run / "node.sock"

    def netns(self, slot: int) -> Path:
        """The bind mount that keeps a slot's network namespace."""
        return self.run / "netns" / str(slot)

    def vm_run(self, sandbox: str) -> Path:
        """A VM's sockets: qmp.sock, control.sock, bulk.sock, serial.sock (directory root : node gid, 0750)."""
        return self.run / "vm" / sandbox


def claim(name: str, *, data_root: Path = DATA_ROOT, run_root: Path = RUN_ROOT) -> Instance:
    """The instance of that name, given a free uid block if it is new (root only). RuntimeError when all are taken."""
    checked = instance_name(name)
    found = load(checked, data_root=data_root, run_root=run_root)
    if found is not None:
        return found
    blocks = data_root / "instances" / ".blocks"
    blocks.mkdir(parents=True, exist_ok=True)
    for index in range(MAX_INSTANCES):
        try:
            descriptor = os.open(blocks / str(index), os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            continue
        with os.fdopen(descriptor, "w") as file:
            file.write(checked)
        instance = Instance(checked, index, data_root, run_root)
        instance.data.mkdir(mode=0o755, parents=True, exist_ok=True)
        staged = instance.data / f".instance.json.{os.getpid()}"
        staged.write_text(json.dumps({"name": checked, "index": index}))
        staged.rename(instance.data / "instance.json")
        return instance
    raise RuntimeError(f"all {MAX_INSTANCES} instances are taken (space clean --instance NAME removes one)")


def load(name: str, *, data_root: Path = DATA_ROOT, run_root: Path = RUN_ROOT) -> Instance | None:
    """The instance of that name if it exists on this host."""
    checked = instance_name(name)
    record = data_root / "instances" / checked / "instance.json"
    try:
        index = int(json.loads(record.read_text())["index"])
    except FileNotFoundError:
        return None
    return Instance(checked, index, data_root, run_root)


def release(instance: Instance) -> None:
    """Give the uid block back, the last step of removing an instance; idempotent."""
    with suppress(FileNotFoundError):
        (instance.data / "instance.json").unlink()
    with suppress(FileNotFoundError):
        (instance.data_root / "instances" / ".blocks" / str(instance.index)).unlink()


def instances(*, data_root: Path = DATA_ROOT, run_root: Path = RUN_ROOT) -> Iterator[Instance]:
    """Every instance on this host."""
    root = data_root / "instances"
    for entry in sorted(root.iterdir()) if root.is_dir() else ():
        if not entry.name.startswith(".") and (found := load(entry.name, data_root=data_root, run_root=run_root)):
            yield found
