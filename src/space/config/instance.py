"""An instance: one installation of the server, and everything that it puts on a host.

Every path, uid, cgroup, namespace and socket hangs on the instance's name and index, so that several instances (tests,
`space run`, benches) live side by side and a sweep of one touches nothing of another. They share only the read-only
artefact store. uids are numbers without passwd entries: a private instance needs its own, and nothing has to be removed.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from space.config import blocks
from space.host import namespaces
from space.model.ids import InstanceName, instance_name

DATA_ROOT = Path("/var/lib/space")
RUN_ROOT = Path("/run/space")
SETTINGS_ROOT = Path("/etc/space")

MAX_INSTANCES = 200
_FIRST_VM_UID = 1024
SLOTS = 1536  # slots, and so VMs and gateway workers, of one instance
_FIRST_WORKER_UID = _FIRST_VM_UID + SLOTS


@dataclass(frozen=True, slots=True)
class Instance:
    """The names of one instance. `data_root` and `run_root` are arguments only so that unit tests can use a directory of theirs."""

    name: InstanceName
    index: int
    data_root: Path = DATA_ROOT
    run_root: Path = RUN_ROOT

    # -- uids (each with a gid of the same number) --------------------------------------------------------------
    @property
    def control_uid(self) -> int:
        """The control process."""
        return self.uid_range[1]

    @property
    def node_uid(self) -> int:
        """The node process."""
        return self.uid_range[2]

    @property
    def broker_uid(self) -> int:
        """The broker: keys, and who may have something signed."""
        return self.uid_range[3]

    @property
    def gateway_uid(self) -> int:
        """The gateway's zygote; each worker has a uid of its own."""
        return self.uid_range[4]

    @property
    def dialer_uid(self) -> int:
        """The dialer, the only one that speaks to the outside for a guest."""
        return self.uid_range[5]

    @property
    def audit_uid(self) -> int:
        """The keeper of the gateway's records."""
        return self.uid_range[6]

    @property
    def memory_uid(self) -> int:
        """The processes that hold the memory of shared snapshots."""
        return self.uid_range[7]

    @property
    def minter_uid(self) -> int:
        """The minter, which exchanges credentials for tokens."""
        return self.uid_range[8]

    @property
    def ingress_uid(self) -> int:
        """The ingress: strangers' requests to ports of sandboxes."""
        return self.uid_range[9]

    def vm_uid(self, slot: int) -> int:
        """The VMM that runs in `slot`; ValueError outside 0 to SLOTS - 1."""
        return self.uid_range[_FIRST_VM_UID + _slot(slot)]

    def worker_uid(self, slot: int) -> int:
        """The gateway's worker for the sandbox in `slot`; ValueError outside 0 to SLOTS - 1."""
        return self.uid_range[_FIRST_WORKER_UID + _slot(slot)]

    @property
    def uid_range(self) -> range:
        """Every uid that belongs to this instance."""
        return blocks.uids(self.index)

    # -- names in the kernel -------------------------------------------------------------------------------------
    @property
    def cgroup(self) -> str:
        """The instance's cgroup, below the root of each hierarchy; sandboxes are children of it.

        With the index: an instance of the same name in another root file system on this kernel has another one.
        """
        return f"space-{self.name}-{self.index}"

    # -- on disk -------------------------------------------------------------------------------------------------
    @property
    def artefacts(self) -> Path:
        """Shared, root-owned, read-only: kernels, initramfs, VMMs, templates, each `<kind>/<digest>/`."""
        return self.data_root / "artefacts"

    @property
    def data(self) -> Path:
        return self.data_root / "instances" / self.name

    @property
    def ephemeral(self) -> Path:
        """If it is there, nobody wants the instance once the serve that it names is gone: `pid start-time`."""
        return self.data / "ephemeral"

    @property
    def sandboxes(self) -> Path:
        """Root-owned, 0711: `<sandbox>/` holds disk.img (VM uid : node gid, 0660) and sandbox.json (root's record)."""
        return self.data / "sandboxes"

    @property
    def templates(self) -> Path:
        """Root-owned, root : node gid, 0750: templates that users made, `<digest>/` each (`config.shelf`)."""
        return self.data / "templates"

    @property
    def snapshots(self) -> Path:
        """Root's own, 0700: `<snapshot>/` as `config.snapshots` says."""
        return self.data / "snapshots"

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
    def broker_data(self) -> Path:
        """broker's own, 0700: store.db, sealed."""
        return self.data / "broker"

    @property
    def broker_roots(self) -> Path:
        """broker's own, 0700: roots of templates that rootd provided and the broker has not adopted yet."""
        return self.data / "broker-roots"

    @property
    def broker_keyring(self) -> Path:
        """Opens the broker's store, unless the setting `broker_keyring` names another file; broker's own, 0600."""
        return self.data / "broker.keyring"

    @property
    def audit_data(self) -> Path:
        """audit's own, 0700: the chains of records."""
        return self.data / "audit"

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

    @property
    def broker_socket(self) -> Path:
        return self.run / "broker.sock"

    @property
    def gateway_socket(self) -> Path:
        return self.run / "gateway.sock"

    @property
    def dialer_socket(self) -> Path:
        return self.run / "dialer.sock"

    @property
    def audit_socket(self) -> Path:
        return self.run / "audit.sock"

    @property
    def minter_socket(self) -> Path:
        return self.run / "minter.sock"

    @property
    def ports_socket(self) -> Path:
        """control's, for the ingress alone: which port of which sandbox, and then its bytes."""
        return self.run / "ports.sock"

    @property
    def relay_socket(self) -> Path:
        """The ingress's, for control alone: clients of the API's address that ask for a port."""
        return self.run / "relay.sock"

    @property
    def ingress_ca(self) -> Path:
        """Root-owned: the authority of this instance's names, where no certificate is configured; ca.pem (0644), ca-key.pem (0600)."""
        return self.data / "ingress-ca"

    def netns(self, slot: int) -> Path:
        """The bind mount that keeps a slot's network namespace."""
        return self.run / "netns" / str(slot)

    def vm_run(self, sandbox: str) -> Path:
        """A VM's sockets: qmp.sock, control.sock, bulk.sock, serial.sock (directory root : node gid, 0750)."""
        return self.run / "vm" / sandbox


def _slot(number: int) -> int:
    if not 0 <= number < SLOTS:
        raise ValueError(f"slot {number} is not within 0 to {SLOTS - 1}")
    return number


def claim(name: str, *, ephemeral: bool = False, data_root: Path = DATA_ROOT, run_root: Path = RUN_ROOT) -> Instance:
    """The instance of that name, given a free uid block if it is new (root only). RuntimeError when all are taken.

    ephemeral: a new one is this process's, and marked so before anybody can see it.
    """
    checked = instance_name(name)
    directory = _block(data_root, 0).parent
    directory.mkdir(parents=True, exist_ok=True)
    with blocks.locked(directory):
        found = load(checked, data_root=data_root, run_root=run_root)
        if found is not None:
            return found
        _forget_half_made(data_root)
        others = blocks.taken()
        for index in range(MAX_INSTANCES):
            if not _block(data_root, index).exists() and not blocks.overlaps(blocks.uids(index), others):
                return _make(Instance(checked, index, data_root, run_root), ephemeral=ephemeral)
    raise RuntimeError(f"all {MAX_INSTANCES} instances are taken (space clean --instance NAME removes one)")


def _block(data_root: Path, index: int) -> Path:
    return data_root / "instances" / ".blocks" / str(index)


def _make(instance: Instance, *, ephemeral: bool) -> Instance:
    """Block, mark, record, in this order: cut off before the last it is half made, and its block is free to the next claim."""
    _block(instance.data_root, instance.index).write_text(instance.name)
    instance.data.mkdir(mode=0o755, parents=True, exist_ok=True)
    if ephemeral:
        mark_ephemeral(instance)
    staged = instance.data / f".instance.json.{os.getpid()}"
    staged.write_text(json.dumps({"name": instance.name, "index": instance.index}))
    staged.rename(instance.data / "instance.json")
    return instance


def _forget_half_made(data_root: Path) -> None:
    """Undo claims and releases that were cut off. The caller holds the lock, so none is under way."""
    root = data_root / "instances"
    for entry in root.iterdir():
        if not entry.name.startswith(".") and not (entry / "instance.json").exists():
            for path in (entry / "ephemeral", *entry.glob(".instance.json.*")):
                path.unlink(missing_ok=True)
            with suppress(OSError):  # it holds more than a claim makes: a sweep is at it, or was
                entry.rmdir()
    held = {index for path in root.glob("*/instance.json") if (index := _index(path)) is not None}
    for path in (root / ".blocks").iterdir():
        if path.name.isdigit() and int(path.name) not in held:
            path.unlink(missing_ok=True)


def mark_ephemeral(instance: Instance) -> None:
    """Say that the instance belongs to this process."""
    staged = instance.ephemeral.with_name(f".ephemeral.{os.getpid()}")
    staged.write_text(f"{os.getpid()} {namespaces.start_time(os.getpid())}\n")
    staged.chmod(0o600)
    staged.rename(instance.ephemeral)


def abandoned(*, data_root: Path = DATA_ROOT, run_root: Path = RUN_ROOT) -> list[Instance]:
    """Ephemeral instances whose serve is dead, with whoever should have removed them."""
    return [found for found in instances(data_root=data_root, run_root=run_root) if is_abandoned(found)]


def is_abandoned(instance: Instance, *, held: bool = False) -> bool:
    """Whether it is marked, the one who marked it is dead, and nobody serves it. held: the caller has its lock."""
    try:
        pid, _, started = instance.ephemeral.read_text().strip().partition(" ")
    except FileNotFoundError:
        return False
    if pid.isdigit() and str(namespaces.start_time(int(pid))) == started:
        return False
    return held or not is_served(instance)


def is_served(instance: Instance) -> bool:
    """Whether a serve holds its lock."""
    with suppress(FileNotFoundError), instance.lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def load(name: str, *, data_root: Path = DATA_ROOT, run_root: Path = RUN_ROOT) -> Instance | None:
    """The instance of that name if it exists on this host."""
    checked = instance_name(name)
    index = _index(data_root / "instances" / checked / "instance.json")
    return None if index is None else Instance(checked, index, data_root, run_root)


def _index(record: Path) -> int | None:
    try:
        return int(json.loads(record.read_text())["index"])
    except (FileNotFoundError, NotADirectoryError):
        return None


def release(instance: Instance) -> None:
    """Give the uid block back, the last step of removing an instance; idempotent.

    The record goes first: cut off between the two, the block is held by nobody and the next claim sees that. The other way
    round two instances could have one block.
    """
    directory = _block(instance.data_root, instance.index).parent
    if not directory.is_dir():
        (instance.data / "instance.json").unlink(missing_ok=True)
        return
    with blocks.locked(directory):
        if _index(instance.data / "instance.json") not in (None, instance.index):
            return  # the name was claimed again meanwhile
        (instance.data / "instance.json").unlink(missing_ok=True)
        holders = {_index(path) for path in (instance.data_root / "instances").glob("*/instance.json")}
        if instance.index not in holders:
            _block(instance.data_root, instance.index).unlink(missing_ok=True)


def instances(*, data_root: Path = DATA_ROOT, run_root: Path = RUN_ROOT) -> Iterator[Instance]:
    """Every instance on this host."""
    root = data_root / "instances"
    for entry in sorted(root.iterdir()) if root.is_dir() else ():
        if not entry.name.startswith(".") and (found := load(entry.name, data_root=data_root, run_root=run_root)):
            yield found
