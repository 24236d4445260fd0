"""Root disks of Debian: a minimal Debian 12 for agents, and more packages if somebody wants them, all of them signed.

mmdebstrap fetches through this machine's own apt sources and settings and runs no code of ours. What belongs to this machine
(mirror, proxy, resolver, host name, certificates) is taken out or never gets in: downloads are made by the host's apt, so the
host's CA certificates count there, and in the guest lie Debian's own ca-certificates package and the root of `root`, made with the disk.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path

from space.config.artefacts import Store
from space.core.plan.machine import GATEWAY
from space.setup import apt, command, inputs, root, shelf

PACKAGES = ("python3", "python3-pip", "python3-venv", "git", "curl", "ca-certificates", "sudo", "iproute2", "procps", "less", "vim-tiny")
DISK_BYTES = 2 << 30
USER, UID = "user", 1000
_BUILDER = 2
_FILES = {
    "etc/hostname": "sandbox\n",
    "etc/hosts": "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    "etc/resolv.conf": f"nameserver {GATEWAY}\n",
    "etc/environment": root.ENVIRONMENT,
    "etc/profile.d/space-environment.sh": root.PROFILE,
    "etc/sudoers.d/space-environment": root.SUDOERS,
    "etc/machine-id": "",
    "etc/default/locale": "LANG=C.UTF-8\n",
    # A sandbox is thrown away; the marker that keeps pip from Debian's own Python would only be in an agent's way.
    "etc/pip.conf": "[global]\nbreak-system-packages = true\ndisable-pip-version-check = true\n",
    # What people type; Debian's small one answers to `vi` only.
    "usr/local/bin/vim": '#!/bin/sh\nexec vim.tiny "$@"\n',
    "etc/sudoers.d/user": f"{USER} ALL=(ALL:ALL) NOPASSWD: ALL\n",
}
_MODES = {"etc/sudoers.d/user": 0o440, "etc/sudoers.d/space-environment": 0o440, "usr/local/bin/vim": 0o755}
# mmdebstrap keeps the machine's apt settings in the first two; the others are logs and caches with times in them.
_REMOVED = (
    "etc/apt/apt.conf.d/99mmdebstrap", "etc/dpkg/dpkg.cfg.d/99mmdebstrap", "var/log/dpkg.log", "var/log/alternatives.log",
    "var/log/bootstrap.log", "var/cache/ldconfig/aux-cache", "var/cache/debconf/config.dat-old", "var/cache/debconf/templates.dat-old",
    "var/lib/dpkg/status-old", "etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-",
)  # fmt: skip
_EXAMPLE_SOURCES = "usr/share/doc/apt/examples/sources.list"


def recipe(extra: Sequence[str] = ()) -> str:
    """What is done, without which package versions are found. extra: packages beside those of every machine for agents."""
    named = {
        "kind": "rootfs", "builder": _BUILDER, "suite": apt.SUITE, "packages": PACKAGES, "files": _FILES,
        "bytes": DISK_BYTES, "user": [USER, UID],
    }  # fmt: skip
    return inputs.of_value(named | ({"extra": sorted(extra)} if extra else {}))


def make(store: Store, python: Path, *, update: bool, extra: Sequence[str] = ()) -> tuple[Path, bool]:
    """The root disk and whether it was made just now. Without `update` an earlier one of the same recipe is taken as it is.

    python: an interpreter that has the server's dependencies, for the root. extra: as in `recipe`.
    """
    if not update and (found := shelf.newest(store.root / "rootfs", recipe(extra))):
        return found, False
    sources = apt.debian_sources()
    digest = inputs.of_value({"recipe": recipe(extra), "lists": apt.release_digests()})
    final = store.path("rootfs", digest)
    if final.is_dir():
        final.touch()
        return final, False
    with shelf.staged(final, recorded=True) as stage:
        tree = stage / "tree"
        bootstrap(tree, sources, (*PACKAGES, *sorted(extra)))
        fresh = root.make(python, f"base {digest[:12]}")
        dress(tree)
        root.install(tree, fresh.certificate)
        packages = command.run(
            ["dpkg-query", f"--admindir={tree}/var/lib/dpkg", "-W", "-f", "${Package} ${Version}\n"], what="list the template's packages"
        ).decode()
        _make_disk(tree, stage / "disk.img", digest)
        shelf.remove(tree)
        root.keep(store, fresh)
        versions = dict(line.split(" ") for line in packages.splitlines())
        beside = {"extra": sorted(extra)} if extra else {}
        shelf.describe(stage, recipe=recipe(extra), suite=apt.SUITE, root=fresh.fingerprint, packages=versions, **beside)
    return final, True


def bootstrap(tree: Path, sources: list[apt.Source], packages: Sequence[str]) -> None:
    """A minimal Debian with these packages, as root's files in `tree`."""
    # Files, not arguments: a proxy's or a mirror's address can hold a password, and arguments are for everybody to see.
    options, mirrors = tree.with_name("apt.conf"), tree.with_name("sources.list")
    for path, lines in ((options, [f"{option};" for option in apt.acquire_options()]), (mirrors, [source.line for source in sources])):
        path.touch(mode=0o600)
        path.write_text("".join(f"{line}\n" for line in lines))
    command.run(
        ["mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory", "--quiet", "--dpkgopt=force-unsafe-io",
         f"--aptopt={options}", f"--include={','.join(packages)}", apt.SUITE, tree, mirrors],
        what="make the root disk's tree", hint="see the machine's apt sources and proxy; `apt-get update` must work",
    )  # fmt: skip
    options.unlink()
    mirrors.unlink()


def dress(tree: Path) -> None:
    """Turn a bootstrapped tree into an agent's machine: the account, the names, and nothing of the host's."""
    command.run(["chroot", tree, "useradd", "-m", "-s", "/bin/bash", "-u", str(UID), "-U", USER], what="make the template's user")
    for name in _REMOVED:
        (tree / name).unlink(missing_ok=True)
    for name, text in _FILES.items():
        path = tree / name
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(_MODES.get(name, 0o644))
    entries = (tree / "etc/apt/sources.list.d").glob("*")
    for entry in entries:
        entry.unlink()
    example = (tree / _EXAMPLE_SOURCES).read_text() if (tree / _EXAMPLE_SOURCES).is_file() else ""
    lines = [line.partition(" main")[0] + " main\n" for line in example.splitlines() if line.startswith("deb ")]
    (tree / "etc/apt/sources.list").write_text("".join(lines))


def _make_disk(tree: Path, disk: Path, digest: str) -> None:
    """An ext4 holding `tree`, sparse, with a journal and an identity that follows from the digest."""
    size = disk_bytes(int(command.run(["du", "-s", "-B1", "--apparent-size", tree], what="measure the tree").split()[0]))
    with disk.open("xb") as file:
        file.truncate(size)
    identity = str(uuid.UUID(hex=digest))
    command.run(
        ["mkfs.ext4", "-q", "-F", "-m", "0", "-L", "space", "-U", identity, "-E", f"lazy_itable_init=1,hash_seed={identity}",
         "-d", tree, disk],
        what="make the root disk", env={"E2FSPROGS_FAKE_TIME": "1700000000"},
    )  # fmt: skip
    os.truncate(disk, size)


def disk_bytes(tree: int) -> int:
    """How large a disk is for a tree of so many bytes: DISK_BYTES, or whole GiB that leave half of the tree's size and 512 MiB free."""
    return max(DISK_BYTES, -(-(tree * 3 // 2 + (512 << 20)) >> 30) << 30)
