"""Directories and sockets have exactly the owners and modes that the table in `layout` says."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from space.config import settings as config
from space.config.instance import Instance
from space.config.settings import Settings
from space.model.errors import Conflict, InvalidArgument, Unavailable
from space.serve import layout, runtime


def owner_and_mode(path: Path) -> tuple[int, int, int]:
    found = path.lstat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


def test_each_directory_has_its_owner_and_mode_again_after_somebody_changed_them(instance: Instance) -> None:
    instance.control_data.chmod(0o777)
    os.chown(instance.sandboxes, instance.node_uid, instance.node_uid)
    layout.make_directories(instance)
    control, node = instance.control_uid, instance.node_uid
    assert owner_and_mode(instance.data) == owner_and_mode(instance.run) == (0, 0, 0o755)
    assert owner_and_mode(instance.sandboxes) == (0, 0, 0o711)
    assert owner_and_mode(instance.control_data) == (control, control, 0o700)
    assert owner_and_mode(instance.node_data) == (node, node, 0o700)
    assert owner_and_mode(instance.broker_data) == (instance.broker_uid, instance.broker_uid, 0o700)
    assert owner_and_mode(instance.audit_data) == (instance.audit_uid, instance.audit_uid, 0o700)
    assert owner_and_mode(instance.log) == (0, 0, 0o700)


def test_a_directory_that_became_a_link_is_refused(instance: Instance, tmp_path: Path) -> None:
    instance.node_data.rmdir()
    instance.node_data.symlink_to(tmp_path)
    with pytest.raises(OSError, match="node"):
        layout.make_directories(instance)
    assert owner_and_mode(tmp_path)[0] == 0


def test_sockets_are_for_the_one_peer_only(instance: Instance) -> None:
    with layout.listen(instance, "rootd", Settings()) as rootd, layout.listen(instance, "node", Settings()) as node:
        assert rootd.type == socket.SOCK_SEQPACKET
        assert node.type == socket.SOCK_STREAM
        assert owner_and_mode(instance.rootd_socket) == (0, instance.node_uid, 0o660)
        assert owner_and_mode(instance.node_socket) == (0, instance.control_uid, 0o660)
    with layout.listen(instance, "node", Settings()):  # over the stale file of a dead one
        pass


@pytest.mark.parametrize("role", ["broker", "audit", "dialer", "gateway"])
def test_the_services_of_egress_listen_for_the_node(instance: Instance, role: str) -> None:
    with layout.listen(instance, role, Settings()) as listener:
        assert listener.type == socket.SOCK_SEQPACKET
        assert listener.getsockname() == str(getattr(instance, f"{role}_socket"))
        assert owner_and_mode(getattr(instance, f"{role}_socket")) == (0, instance.node_uid, 0o660)


def test_a_port_in_use_is_said_with_the_remedy(instance: Instance) -> None:
    with (
        layout.listen(instance, "control", Settings(port=0)) as taken,
        pytest.raises(
            InvalidArgument, match=rf"cannot listen on 127.0.0.1 port {taken.getsockname()[1]}: Address already in use \(--set port"
        ),
    ):
        layout.listen(instance, "control", Settings(port=taken.getsockname()[1]))


def test_the_second_holder_is_told_who_the_first_is(instance: Instance) -> None:
    held = layout.lock(instance)
    with pytest.raises(Conflict, match=f"instance unit is served already, by pid {os.getpid()} "):
        layout.lock(instance)
    os.close(held)
    os.close(layout.lock(instance))


def test_effective_settings_come_back_as_they_were_saved(instance: Instance) -> None:
    with pytest.raises(Unavailable, match="is not served"):
        config.load_effective(instance)
    settings = Settings(port=0, allowed_hosts=("a.example.com", "b.example.com"), max_sandboxes=3, tls_certificate="/c", tls_key="/k")
    config.save_effective(instance, settings)
    assert config.load_effective(instance) == settings


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda place: place.chmod(0o777), "can be written by others than root"),
        (lambda place: os.chown(place, 1000, 1000), "belongs to uid 1000"),
        (lambda place: (place / ".git").mkdir(), "is in a checkout"),
    ],
)
def test_services_do_not_run_from_a_place_that_others_can_change(tmp_path: Path, make: object, words: str) -> None:
    assert callable(make)
    place = tmp_path / "runtime"
    (place / "lib").mkdir(parents=True)
    make(place)
    objection = runtime.objection(place / "lib")
    assert objection is not None
    assert words in objection


def test_a_root_owned_place_outside_homes_is_no_objection() -> None:
    assert runtime.objection(Path("/usr/lib")) is None
    assert "home" in (runtime.objection(Path("/root")) or "")


def test_the_lock_is_waited_for_while_only_a_dead_serves_fork_has_it(instance: Instance) -> None:
    """A service that was forked and not yet executed has its serve's descriptors; it ends when it notices."""
    reader, writer = os.pipe()
    serve = os.fork()
    if serve == 0:
        layout.lock(instance)
        if os.fork() == 0:
            os.close(writer)
            os.read(reader, 1)  # until the parent of both lets go
        os._exit(0)
    os.waitpid(serve, 0)
    os.close(reader)
    threading.Timer(0.2, os.close, [writer]).start()
    os.close(layout.lock(instance))
