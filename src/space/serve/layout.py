"""The directories and listeners of an instance, with their owners and modes. serve makes them; the services find them.

| what | owner | mode | why |
|---|---|---|---|
| data, run | root | 0755 | the endpoint and the settings are for everybody |
| sandboxes, run/vm | root | 0711 | a VM uid, the node pass through to the one directory that is theirs |
| control_data | control | 0700 | database and admin key |
| node_data | node | 0700 | ledger and spools |
| broker_data | broker | 0700 | roots and the like, sealed |
| broker_roots | broker | 0700 | roots that rootd provides; the broker seals them and takes the files away |
| audit_data | audit | 0700 | the gateway's records |
| log | root | 0700 | opened by serve and inherited |
| rootd.sock | root : node's gid | 0660 | the node alone talks to rootd, which checks the peer as well |
| broker, audit, dialer, minter, gateway.sock | root : node's gid | 0660 | the node alone binds sandboxes there; they check the peer |
| node.sock | root : control's gid | 0660 | control alone talks to the node, which checks the peer as well |
| ports.sock | root : ingress's gid | 0660 | the ingress alone asks control for ports, which checks the peer as well |
| relay.sock | root : control's gid | 0660 | control alone hands clients to the ingress, which checks the peer as well |
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path

from space.config.instance import Instance
from space.config.settings import Settings
from space.host import namespaces
from space.model.errors import Conflict, InvalidArgument

BACKLOG = 512
_LINGERS = 5.0


def make_directories(instance: Instance) -> None:
    """Make what is missing and put right what is there; idempotent."""
    _directory(instance.data_root, 0, 0o755)
    _directory(instance.data.parent, 0, 0o755)
    _directory(instance.run_root, 0, 0o755)
    _directory(instance.data, 0, 0o755)
    _directory(instance.run, 0, 0o755)
    _directory(instance.run / "vm", 0, 0o711)
    _directory(instance.sandboxes, 0, 0o711)
    _directory(instance.control_data, instance.control_uid, 0o700)
    _directory(instance.node_data, instance.node_uid, 0o700)
    _directory(instance.broker_data, instance.broker_uid, 0o700)
    _directory(instance.broker_roots, instance.broker_uid, 0o700)
    _directory(instance.audit_data, instance.audit_uid, 0o700)
    _directory(instance.log, 0, 0o700)


def _directory(path: Path, owner: int, mode: int) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(descriptor, owner, owner)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


def lock(instance: Instance) -> int:
    """Hold the instance for this process, for as long as the descriptor is open; Conflict names who holds it already."""
    descriptor = os.open(instance.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + _LINGERS
    while not _locked(descriptor):
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        # A serve that was killed between fork and exec of a service leaves a child that holds the lock until it notices.
        if holder.isdigit() and namespaces.start_time(int(holder)) is None and time.monotonic() < deadline:
            time.sleep(0.01)
            continue
        os.close(descriptor)
        raise Conflict(
            f"instance {instance.name} is served already, by pid {holder}", hint="stop that one, or take another name with --instance"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def listen(instance: Instance, role: str, settings: Settings) -> socket.socket:
    """The listener of a role, bound and listening; InvalidArgument when the API's address cannot be had."""
    records = {
        "rootd": instance.rootd_socket,
        "broker": instance.broker_socket,
        "audit": instance.audit_socket,
        "dialer": instance.dialer_socket,
        "minter": instance.minter_socket,
        "gateway": instance.gateway_socket,
    }
    if (path := records.get(role)) is not None:
        return _unix(path, socket.SOCK_SEQPACKET, instance.node_uid)
    if role == "node":
        return _unix(instance.node_socket, socket.SOCK_STREAM, instance.control_uid)
    if role == "ingress":
        return _tcp(settings.host, settings.ingress_at, "ingress_port")
    return _tcp(settings.host, settings.port, "port")


def listen_also(instance: Instance, role: str) -> socket.socket:
    """The second listener of control or the ingress."""
    if role == "control":
        return _unix(instance.ports_socket, socket.SOCK_STREAM, instance.ingress_uid)
    return _unix(instance.relay_socket, socket.SOCK_STREAM, instance.control_uid)


def _unix(path: Path, kind: int, gid: int) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, kind)
    mask = os.umask(0o777)  # nobody gets in between bind and chmod
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    os.chown(path, 0, gid)
    path.chmod(0o660)
    listener.listen(BACKLOG)
    return listener


def _tcp(host: str, port: int, setting: str) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise InvalidArgument(
            f"cannot listen on {host} port {port}: {error.strerror or error}", hint=f"--set {setting}=N takes another"
        ) from error
    return listener
