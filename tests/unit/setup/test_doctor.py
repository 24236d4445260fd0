"""What doctor concludes from what it sees, fact by fact; and that its probes see this very machine."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from space.config import blocks, services
from space.config.artefacts import Store, TemplateManifest
from space.config.instance import Instance, claim
from space.config.settings import Settings
from space.host import namespaces
from space.serve import layout
from space.setup import checkhost, checkspace, contents, doctor, kvmprobe
from space.setup.checkhost import Clock, Firewall, Kernel, Kvm, Limits, Memory, Namespaces, Rights, Tun
from space.setup.checkspace import GIB, Artefacts, Blocks, Certificate, Installed, Place, Room, Running
from space.setup.checkup import FAILURE, OK, WARNING, Check
from space.testing.certificates import certificate

ALL = sum(1 << bit for bit in checkhost.CAPABILITIES.values())
GOOD_KERNEL = Kernel("6.1.0-9-cloud-amd64", "x86_64", seccomp=True)
GOOD_SPACES = Namespaces(frozenset(checkhost.NAMESPACES), None)
GOOD_KVM = Kvm(there=True, ran=None, setting="auto", verdict=None)
GOOD_LIMITS = Limits(200, 65536, 10**6, 32768, 10**5)
GOOD_PLACE = Place(Path("/d"), there=True, kind="xfs", options=frozenset({"rw"}), reflinks=True, image=None)
LOOP = (Path("/d.img"), 8 * GIB, 8 * GIB)
NOW = 2e9
GOOD_CERTIFICATE = Certificate("default", "/c.pem", NOW, NOW - 1000, NOW + 90 * 86_400)
GOOD_BLOCKS = Blocks({"a": blocks.uids(0), "b": blocks.uids(1)}, (range(100_000, 165_536),), {"root": 0})
HEALTH = {"status": "ok", "isolation": "hardware", "version": "0.1.0"}
SERVICES = dict.fromkeys(services.NAMES, "/opt/r")
LACKING = {name: "/opt/r" for name in services.NAMES if name != "node"}
GOOD_RUNNING = Running("a", served=True, alive=SERVICES, health=HEALTH, installed=Path("/opt/r"), log=Path("/l"))


def verdict(check: Check) -> tuple[str, str]:
    """Level, and all its words; whoever must do something is told what."""
    assert check.ok == (check.level != FAILURE)
    assert bool(check.remedy) == (check.level != OK)
    assert check.looked_at
    return check.level, f"{check.detail} {check.remedy} {check.chosen}"


@pytest.mark.parametrize(
    ("check", "level", "words"),
    [
        (checkhost.judge_kernel(GOOD_KERNEL), OK, "6.1.0-9"),
        (checkhost.judge_kernel(replace(GOOD_KERNEL, release="5.15.0")), OK, ""),
        (checkhost.judge_kernel(replace(GOOD_KERNEL, release="5.14.9")), FAILURE, "5.15 or newer"),
        (checkhost.judge_kernel(replace(GOOD_KERNEL, release="6.18+rc1")), OK, ""),
        (checkhost.judge_kernel(replace(GOOD_KERNEL, machine="aarch64")), FAILURE, "x86_64"),
        (checkhost.judge_kernel(replace(GOOD_KERNEL, seccomp=False)), FAILURE, "seccomp missing"),
        (checkhost.judge_rights(Rights(0, ALL)), OK, "root"),
        (checkhost.judge_rights(Rights(1000, ALL)), OK, "need root"),
        (checkhost.judge_rights(Rights(0, ALL & ~(1 << 21))), FAILURE, "CAP_SYS_ADMIN"),
        (checkhost.judge_namespaces(GOOD_SPACES), OK, "mnt, net"),
        (checkhost.judge_namespaces(replace(GOOD_SPACES, made=False)), OK, "only root can see"),
        (checkhost.judge_namespaces(replace(GOOD_SPACES, made="No space left on device")), FAILURE, "user.max_"),
        (checkhost.judge_namespaces(replace(GOOD_SPACES, there=frozenset({"mnt"}))), FAILURE, "missing: net, pid"),
        (checkhost.judge_tun(Tun(None)), OK, "opens"),
        (checkhost.judge_tun(Tun("Permission denied", hidden=True)), OK, "only root"),
        (checkhost.judge_tun(Tun("Operation not permitted")), FAILURE, "modprobe tun"),
        (checkhost.judge_firewall(Firewall(installed=True, error="")), OK, "lists its tables"),
        (checkhost.judge_firewall(Firewall(installed=True, error=None)), OK, "only root"),
        (checkhost.judge_firewall(Firewall(installed=True, error="no")), FAILURE, "nf_tables"),
        (checkhost.judge_firewall(Firewall(installed=False, error=None)), FAILURE, "no nft"),
        (checkhost.judge_cgroups({"memory": "v2", "pids": "v2", "cpu": "v2"}), OK, "cgroup v2"),
        (checkhost.judge_cgroups({"memory": "v1", "pids": "v1", "cpu": "v2"}), OK, "both hierarchies"),
        (checkhost.judge_cgroups({"memory": "disabled", "pids": "v1", "cpu": "v1"}), FAILURE, "cgroup_enable=memory"),
        (checkhost.judge_cgroups({}), FAILURE, "memory missing"),
        (checkhost.judge_memory(Memory(8000, 4000, 7000, set_by_operator=False)), OK, "7000"),
        (checkhost.judge_memory(Memory(8000, 4000, 7900, set_by_operator=True)), WARNING, "lower memory_mib"),
        (checkhost.judge_memory(Memory(8000, 100, 7000, set_by_operator=False)), WARNING, "100 of 8000"),
        (checkhost.judge_memory(Memory(1100, 900, 76, set_by_operator=False)), FAILURE, "larger machine"),
        (checkhost.judge_clock(Clock(NOW, synchronised=True)), OK, "is synchronised"),
        (checkhost.judge_clock(Clock(NOW, synchronised=None)), OK, "2033"),
        (checkhost.judge_clock(Clock(NOW, synchronised=False)), WARNING, "NTP"),
        (checkhost.judge_clock(Clock(0, synchronised=True)), FAILURE, "1970"),
        (checkhost.judge_limits(GOOD_LIMITS), OK, "200 sandboxes"),
        (checkhost.judge_limits(replace(GOOD_LIMITS, files=1024)), WARNING, "ulimit -Hn"),
        (checkhost.judge_limits(replace(GOOD_LIMITS, files_left=100)), WARNING, "fs.file-max"),
        (checkhost.judge_limits(replace(GOOD_LIMITS, processes=100)), WARNING, "pid_max"),
        (checkhost.judge_limits(replace(GOOD_LIMITS, slots=0)), WARNING, "max_net_namespaces"),
    ],
)  # fmt: skip
def test_what_is_concluded_of_the_host(check: Check, level: str, words: str) -> None:
    found, said = verdict(check)
    assert found == level
    assert words in said


@pytest.mark.parametrize(
    ("found", "level", "chosen", "words"),
    [
        (GOOD_KVM, OK, "auto", "a probe guest decides"),
        (replace(GOOD_KVM, verdict=("kvm", "it said hello")), OK, "kvm", "it said hello"),
        (replace(GOOD_KVM, verdict=("tcg", "no hello within 5 s")), WARNING, "tcg", "runs code"),
        (replace(GOOD_KVM, ran="cannot run an instruction"), WARNING, "tcg", "not usable: cannot run an instruction"),
        (replace(GOOD_KVM, ran="no", verdict=("tcg", "no hello")), WARNING, "tcg", "not usable: no"),
        (replace(GOOD_KVM, hidden=True), OK, "auto", "only root can see"),
        (replace(GOOD_KVM, there=False), OK, "tcg", "has no /dev/kvm"),
        (replace(GOOD_KVM, there=False, verdict=("tcg", "no device")), OK, "tcg", "no device"),
        (replace(GOOD_KVM, setting="tcg"), OK, "tcg", "the operator set it"),
        (replace(GOOD_KVM, setting="kvm"), OK, "kvm", "the operator set it"),
        (replace(GOOD_KVM, setting="firecracker"), OK, "firecracker", "the operator set it"),
        (replace(GOOD_KVM, setting="firecracker", there=False), FAILURE, "", "accelerator is firecracker, and this host has no"),
        (replace(GOOD_KVM, setting="kvm", ran="cannot make a VM"), FAILURE, "", "cannot make a VM"),
        (replace(GOOD_KVM, setting="kvm", there=False), FAILURE, "", "set accelerator = auto"),
    ],
)
def test_kvm_counts_only_when_it_runs_code_and_the_nodes_guest_knows_best(found: Kvm, level: str, chosen: str, words: str) -> None:
    check = checkhost.judge_kvm(found)
    assert (check.level, check.chosen) == (level, chosen)
    assert words in f"{check.detail} {check.remedy}"


@pytest.mark.parametrize(
    ("check", "level", "words"),
    [
        (checkspace.judge_place(GOOD_PLACE), OK, "the host's own xfs"),
        (checkspace.judge_place(replace(GOOD_PLACE, there=False)), FAILURE, "there is no /d"),
        (checkspace.judge_place(replace(GOOD_PLACE, reflinks=None)), OK, "only root"),
        (checkspace.judge_place(replace(GOOD_PLACE, reflinks=False)), FAILURE, "do not work"),
        (checkspace.judge_place(replace(GOOD_PLACE, image=LOOP)), OK, "loop file"),
        (checkspace.judge_place(replace(GOOD_PLACE, image=(LOOP[0], 8 * GIB, GIB))), WARNING, "fallocate -l 8589934592 /d.img"),
        (checkspace.judge_place(replace(GOOD_PLACE, image=LOOP, options=frozenset({"discard=async"}))), WARNING, "nodiscard"),
        (checkspace.judge_room(Room(Path("/d"), 5 * GIB, 8 * GIB)), OK, "5.0 of 8.0"),
        (checkspace.judge_room(Room(Path("/d"), 2 * GIB, 80 * GIB)), WARNING, "less than a tenth"),
        (checkspace.judge_room(Room(Path("/d"), GIB - 1, 8 * GIB)), FAILURE, "SPACE_STORAGE_GIB"),
        (checkspace.judge_artefacts(Artefacts("base", "Debian", "6.1", (), 4)), OK, "contents verified: 4 of 4"),
        (checkspace.judge_artefacts(Artefacts("base", "Debian", "6.1", (), 1)), OK, "did not record"),
        (checkspace.judge_artefacts(Artefacts("base", "Debian", "6.1", ("qemu is gone",))), FAILURE, "qemu is gone"),
        (checkspace.judge_installed(Installed(Path("/b"), Path("/opt/r"), 0, 0o555)), OK, "/opt/r"),
        (checkspace.judge_installed(Installed(Path("/b"), None)), FAILURE, "leads nowhere"),
        (checkspace.judge_installed(Installed(Path("/b"), Path("/opt/r"), 0, 0o775)), FAILURE, "mode 775"),
        (checkspace.judge_certificate(GOOD_CERTIFICATE), OK, "valid until"),
        (checkspace.judge_certificate(replace(GOOD_CERTIFICATE, not_after=NOW + 20 * 86_400)), WARNING, "in 20 days"),
        (checkspace.judge_certificate(replace(GOOD_CERTIFICATE, not_after=NOW - 1)), FAILURE, "ended on 2033"),
        (checkspace.judge_certificate(replace(GOOD_CERTIFICATE, not_before=NOW + 1)), FAILURE, "not valid yet"),
        (checkspace.judge_certificate(replace(GOOD_CERTIFICATE, error="no PEM")), FAILURE, "/c.pem: no PEM"),
        (checkspace.judge_blocks(GOOD_BLOCKS), OK, "a 1879048192-"),
        (checkspace.judge_blocks(replace(GOOD_BLOCKS, owners={})), OK, "no instance"),
        (checkspace.judge_blocks(replace(GOOD_BLOCKS, owners=dict.fromkeys("ab", blocks.uids(0)))), FAILURE, "a and b have the same"),
        (checkspace.judge_blocks(replace(GOOD_BLOCKS, granted=(blocks.uids(1)[7:8],))), FAILURE, "b: subordinate"),
        (checkspace.judge_blocks(replace(GOOD_BLOCKS, accounts={"eve": blocks.uids(0)[5]})), FAILURE, "is eve"),
        (checkspace.judge_blocks(replace(GOOD_BLOCKS, accounts={"eve": blocks.uids(9)[0]})), WARNING, "eve"),
        (checkspace.judge_running(GOOD_RUNNING), OK, "0.1.0, ok, isolation: hardware"),
        (checkspace.judge_running(replace(GOOD_RUNNING, served=False, alive={})), OK, "not served"),
        (checkspace.judge_running(replace(GOOD_RUNNING, served=False)), WARNING, "serve is dead; audit, broker, "),
        (checkspace.judge_running(replace(GOOD_RUNNING, alive=LACKING)), FAILURE, "/l/node.log"),
        (checkspace.judge_running(replace(GOOD_RUNNING, health="Connection refused")), FAILURE, "does not answer: Connection refused"),
        (checkspace.judge_running(replace(GOOD_RUNNING, health=HEALTH | {"status": "degraded"})), FAILURE, "node is not connected"),
        (checkspace.judge_running(replace(GOOD_RUNNING, installed=Path("/opt/new"))), WARNING, "and /opt/new is installed"),
        (checkspace.judge_running(replace(GOOD_RUNNING, installed=None)), OK, ""),
        (checkspace.judge_running(replace(GOOD_RUNNING, alive=None)), OK, "isolation: hardware"),
    ],
)  # fmt: skip
def test_what_is_concluded_of_space_on_it(check: Check, level: str, words: str) -> None:
    found, said = verdict(check)
    assert found == level
    assert words in said


def test_the_exit_status_counts_warnings_only_when_asked() -> None:
    good, slow, bad = Check("a", True, ""), Check("b", True, "", "x", WARNING), Check("c", False, "", "x")
    assert [doctor.status([good]), doctor.status([good, slow]), doctor.status([good, slow], strict=True)] == [0, 0, 1]
    assert [doctor.status([slow, bad]), doctor.status([bad], strict=True), doctor.status([good], strict=True)] == [1, 1, 0]


@pytest.mark.parametrize(("uid", "level"), [(0, FAILURE), (1000, WARNING)])
def test_what_only_root_may_see_is_no_failure_for_others(monkeypatch: pytest.MonkeyPatch, uid: int, level: str) -> None:
    def look() -> Check:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "geteuid", lambda: uid)
    [found] = doctor.guarded(look)
    assert found.level == level
    assert "Permission denied" in found.detail


def test_probes_see_this_machine() -> None:
    assert verdict(checkhost.judge_kernel(checkhost.see_kernel()))[0] == OK
    assert checkhost.see_rights().uid == os.geteuid()
    assert checkhost.see_namespaces().made in (None, False)
    assert set(checkhost.see_cgroups()) <= set(checkhost.CONTROLLERS)
    memory = checkhost.see_memory(1, set_by_operator=False)
    assert 0 < memory.available <= memory.total
    assert abs(checkhost.see_clock().now - time.time()) < 5
    assert checkhost.see_limits(1).files > 0


def test_a_kvm_that_hangs_or_dies_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang() -> str:
        time.sleep(60)
        return "ok"

    def die() -> str:
        os._exit(3)

    monkeypatch.setattr(kvmprobe, "WITHIN", 0.1)
    monkeypatch.setattr(kvmprobe, "_attempt", hang)
    assert kvmprobe.probe() == "one instruction did not end within 0.1 s"
    monkeypatch.setattr(kvmprobe, "WITHIN", 5.0)
    monkeypatch.setattr(kvmprobe, "_attempt", die)
    assert kvmprobe.probe() == "the process that tried it died"
    monkeypatch.setattr(kvmprobe, "_attempt", lambda: "cannot make a VM: no")
    assert kvmprobe.probe() == "cannot make a VM: no"
    monkeypatch.setattr(kvmprobe, "_attempt", lambda: "ok")
    assert kvmprobe.probe() is None


def test_the_file_system_is_that_of_the_nearest_mount() -> None:
    info = (
        "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /var rw - tmpfs t rw\n3 1 7:0 / /var/lib/space rw - btrfs /dev/loop0 rw,discard\n"
        "4 1 7:1 / /var/lib/space rw - btrfs /dev/loop1 rw,nodiscard\n5 1 7:1 / /var/lib/spaces rw - xfs /dev/x rw\n"
    )
    assert checkspace.mounted(Path("/var/lib/space"), info) == ("btrfs", frozenset({"rw", "nodiscard"}))
    assert checkspace.mounted(Path("/var/lib"), info)[0] == "tmpfs"
    assert checkspace.mounted(Path("/srv"), info)[0] == "ext4"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    digests = {kind: str(number) * 32 for number, kind in enumerate(("kernel", "initramfs", "qemu", "template"))}
    for kind, part in checkspace._PARTS.items():
        directory = tmp_path / kind / digests[kind]
        directory.mkdir(parents=True)
        (directory / part).write_bytes(b"x" * 10)
    manifest = TemplateManifest(
        "base", digests["template"], digests["kernel"], digests["initramfs"], digests["qemu"], 10, 1, "6.1", "Debian"
    )
    manifest.save(tmp_path / "template" / digests["template"] / "manifest.json")
    (tmp_path / "names").mkdir()
    (tmp_path / "names/base").symlink_to(f"../template/{digests['template']}")
    for kind in ("kernel", "template"):
        contents.record(tmp_path / kind / digests[kind])
    for path in tmp_path.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o555 if path.is_dir() else 0o444)
    return Store(tmp_path)


def test_artefacts_are_whole_roots_and_named_as_they_say(store: Store) -> None:
    found = checkspace.see_artefacts(store, "base")
    assert (found.wrong, found.verified) == ((), 2)
    kernel = next((store.root / "kernel").iterdir())
    kernel.chmod(0o755)
    (disk := next((store.root / "template").glob("*/disk.img"))).chmod(0o644)
    disk.write_bytes(b"x")
    (next((store.root / "qemu").iterdir()) / "root").unlink()
    initrd = next((store.root / "initramfs").iterdir())
    (initrd / "initrd.cpio").unlink()
    initrd.rmdir()
    wrong = "; ".join(checkspace.see_artefacts(store, "base").wrong)
    for words in (
        "with mode 755",
        "has no root",
        "initramfs 111111111111 is gone",
        "disk.img has 1 bytes, not 10",
        "mode 644",
        "disk.img was changed",
    ):
        assert words in wrong


def test_a_name_that_leads_to_another_template_is_told(store: Store) -> None:
    template = next((store.root / "template").iterdir())
    template.rename(template.with_name("f" * 32))
    (store.root / "names/base").unlink()
    (store.root / "names/base").symlink_to("../template/" + "f" * 32)
    wrong = "; ".join(checkspace.see_artefacts(store, "base").wrong)
    assert wrong == f"base: template {'f' * 32} cannot be used: its manifest is that of {'3' * 32}"


def test_the_certificate_is_read_with_its_key(tmp_path: Path) -> None:
    made, other = certificate(tmp_path, "a"), certificate(tmp_path, "b")
    found = checkspace.see_certificate("default", Settings(tls_certificate=str(made[0]), tls_key=str(made[1])), time.time())
    assert found is not None
    assert found.error is None
    assert found.not_before <= time.time() <= found.not_after
    mixed = checkspace.see_certificate("default", Settings(tls_certificate=str(made[0]), tls_key=str(other[1])), 0)
    assert mixed is not None
    assert "mismatch" in (mixed.error or "").lower()
    lost = checkspace.see_certificate("default", Settings(tls_certificate="/nowhere", tls_key="/nowhere"), 0)
    assert lost is not None
    assert "No such file" in (lost.error or "")
    assert checkspace.see_certificate("default", Settings(), 0) is None


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    made = claim("one", data_root=tmp_path / "data", run_root=tmp_path / "run")
    layout.make_directories(made)
    return made


def test_an_instance_is_asked_whether_it_is_well(instance: Instance) -> None:
    assert checkspace.see_running(instance, None).served is False
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    mine = {"pid": os.getpid(), "started": namespaces.start_time(os.getpid()), "boot": boot, "build": "/opt/r /opt/r/space Settings()"}
    services = [{"role": "rootd", **mine}, {"role": "node", **mine, "started": 1}, {"role": "control", **mine}]
    instance.services.write_text(json.dumps(services))
    held = layout.lock(instance)
    try:
        with answering(json.dumps(HEALTH).encode()) as url:
            instance.endpoint.write_text(json.dumps({"url": url}))
            found = checkspace.see_running(instance, Path("/opt/r"))
            assert found.served
            assert found.alive == {"rootd": "/opt/r", "control": "/opt/r"}  # the node's pid is somebody else's by now
            assert found.health == HEALTH
        with answering(b"[]") as url:
            instance.endpoint.write_text(json.dumps({"url": url}))
            assert checkspace.see_running(instance, None).health == "its answer is no object"
        assert "refused" in str(checkspace.see_running(instance, None).health)
        instance.endpoint.unlink()
        assert "No such file" in str(checkspace.see_running(instance, None).health)
    finally:
        os.close(held)


def test_settings_are_read_as_serve_would(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    good = checkspace.judge_settings(checkspace.see_settings("lab", path, {"SPACE_PORT": "1"}))
    assert (good.level, good.detail) == (OK, "port from SPACE_PORT")
    path.write_text("prot = 1")
    bad = checkspace.judge_settings(checkspace.see_settings("lab", path, {}))
    assert bad.level == FAILURE
    assert "unknown setting 'prot'" in bad.detail
    assert "known: " in bad.remedy


def test_an_interpreter_without_the_library_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = certificate(tmp_path, "a")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    found = checkspace.see_certificate("default", Settings(tls_certificate=str(made[0]), tls_key=str(made[1])), 0)
    assert found is not None
    assert "cannot read certificates" in (found.error or "")
