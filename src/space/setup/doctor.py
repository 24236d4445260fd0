"""`space doctor`: facts about this machine and what `space` is on it, each with a verdict and, where it is not well, a remedy.

`checkhost` and `checkspace` have the facts; here is what is looked at and in which order. Nothing is changed but two probe files for the
reflink. Without root some facts cannot be seen, and are said so.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from space.config.artefacts import Store
from space.config.instance import DATA_ROOT, RUN_ROOT, SETTINGS_ROOT, Instance, instances, is_abandoned
from space.core.lifecycle.admission import memory_budget
from space.host.cgroups import LEAF
from space.model.errors import SpaceError
from space.setup import checkegress, checkhost, checkkvm, checkspace, deps, runtime, shelf, storage, template
from space.setup.checkup import FAILURE, WARNING, Check, fine

DEFAULT = "default"
Look = Callable[[], "Check | list[Check]"]


def checks(only: str | None = None) -> list[Check]:
    """All facts, in the order in which they build on each other; a check that fails to look is one too. only: of instances, that one."""
    looks: tuple[Look, ...] = (
        kernel, rights, namespaces, tun, firewall, edge, cgroups, clock, limits, memory,
        reflinks, space_left, accelerator, firecrackers, production, artefacts, installed, services, uids,
    )  # fmt: skip
    found = [check for look in looks for check in guarded(look)]
    for name in [only] if only else _names():
        found += guarded(lambda: settings(name), f"settings of {name}")  # noqa: B023 - called at once
        found += guarded(lambda: certificate(name), f"certificate of {name}")  # noqa: B023
        found += guarded(lambda: outside(name), f"egress of {name}")  # noqa: B023
        found += guarded(lambda: running(name), f"instance {name}")  # noqa: B023
    return found + guarded(leftovers)


def status(found: Sequence[Check], *, strict: bool = False) -> int:
    """The exit status: 0 when sandboxes work, 1 when something is missing; strict: 1 for a warning as well."""
    return 1 if any(check.level == FAILURE or (strict and check.level == WARNING) for check in found) else 0


def guarded(look: Look, name: str = "") -> list[Check]:
    """What was seen; what kept it from looking becomes a check too."""
    try:
        found = look()
    except (OSError, ValueError, KeyError, IndexError, SpaceError) as error:
        unseen = os.geteuid() != 0 and isinstance(error, PermissionError)  # nobody knows that it is not well
        remedy = getattr(error, "hint", None) or ("run `space doctor` as root" if os.geteuid() else checkhost.SETUP)
        what, detail = name or look.__name__.replace("_", " "), f"cannot be seen: {error}"
        return [Check(what, unseen, detail, remedy, WARNING if unseen else FAILURE)]
    return found if isinstance(found, list) else [found]


def _names() -> Iterator[str]:
    """Every instance that there is or has a file of settings, and the default one."""
    known = {str(instance.name) for instance in instances()} | {path.stem for path in SETTINGS_ROOT.glob("*.toml")}
    yield from sorted(known | {DEFAULT}, key=lambda name: (name != DEFAULT, name))


# -- the host -----------------------------------------------------------------------------------------------------------


def kernel() -> Check:
    """Release and seccomp."""
    return checkhost.judge_kernel(checkhost.see_kernel())


def rights() -> Check:
    """root's capabilities."""
    return checkhost.judge_rights(checkhost.see_rights())


def namespaces() -> Check:
    """Kinds of namespaces that the jail uses."""
    return checkhost.judge_namespaces(checkhost.see_namespaces())


def tun() -> Check:
    """The device behind every TAP."""
    return checkhost.judge_tun(checkhost.see_tun())


def firewall() -> Check:
    """nftables, asked for its tables."""
    return checkhost.judge_firewall(checkhost.see_firewall())


def edge() -> Check:
    """What a slot's edge loads."""
    return checkegress.judge_edge(checkegress.see_edge())


def cgroups() -> Check:
    """Every controller with the hierarchy that it is in."""
    return checkhost.judge_cgroups(checkhost.see_cgroups())


def clock() -> Check:
    """The time and whether somebody keeps it."""
    return checkhost.judge_clock(checkhost.see_clock())


def limits() -> Check:
    """Files, processes and namespaces for max_sandboxes."""
    return checkhost.judge_limits(checkhost.see_limits(_configured(DEFAULT).settings.max_sandboxes))


def memory() -> Check:
    """Memory against the settings."""
    wanted = _configured(DEFAULT).settings.memory_mib
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return checkhost.judge_memory(checkhost.see_memory(memory_budget(wanted, total), set_by_operator=wanted != 0))


def accelerator() -> Check:
    """Which accelerator guests get: the node decides at the first sandbox and keeps its verdict."""
    return checkhost.judge_kvm(_kvm())


def firecrackers() -> Check:
    """Which of them there are, and what boots the next sandbox under KVM."""
    found = _kvm()
    return checkkvm.judge_firecrackers(checkkvm.see_firecrackers(Store(DATA_ROOT / "artefacts")), setting=found.setting, kvm=found.is_used)


def production() -> list[Check]:
    """What keeps tenants apart where guests run under KVM."""
    return checkkvm.judge_host(checkkvm.see_host()) if _kvm().is_used else []


def _kvm() -> checkhost.Kvm:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    verdict = None
    for directory in (RUN_ROOT, *(instance.node_data for instance in instances())):
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads((directory / "accelerator.json").read_text())
            if found["boot_id"] == boot:
                verdict = verdict or (str(found["accelerator"]), str(found["why"]))
    return checkhost.see_kvm(_configured(DEFAULT).settings.accelerator, verdict)


# -- space on it --------------------------------------------------------------------------------------------------------


def reflinks() -> Check:
    """Whether sandboxes' disks can be reflinks, and what they lie on."""
    return checkspace.judge_place(checkspace.see_place(DATA_ROOT, Path("/proc/self/mountinfo").read_text()))


def space_left() -> Check:
    """Free bytes below the data directory."""
    return checkspace.judge_room(checkspace.see_room(DATA_ROOT))


def artefacts() -> Check:
    """The base template and everything that it names."""
    return checkspace.judge_artefacts(checkspace.see_artefacts(Store(DATA_ROOT / "artefacts"), template.NAME))


def installed() -> Check:
    """The runtime behind `space`."""
    return checkspace.judge_installed(checkspace.see_installed(runtime.COMMAND))


def services() -> Check:
    """Whether every service's uid can import its package, by doing it where we are root."""
    python = runtime.python()
    if os.geteuid() != 0:
        return Check("services' Python", python.exists(), f"{python}; whether each uid can use it only root can see")
    runtime.prove(python.parents[1], runtime.proofs())
    words = f"{deps.PYTHON} {platform.python_version()}: every uid imports its package"
    return fine("services' Python", words, looked_at="an import under each uid")


def uids() -> Check:
    """Whether somebody else has an instance's uids."""
    return checkspace.judge_blocks(checkspace.see_blocks(instances()))


def settings(name: str) -> Check:
    """An instance's settings, as its next serve would find them."""
    return checkspace.judge_settings(_configured(name))


def certificate(name: str) -> list[Check]:
    """The API's certificate, where there is TLS."""
    found = checkspace.see_certificate(name, _configured(name).settings, time.time())
    return [] if found is None else [checkspace.judge_certificate(found)]


def outside(name: str) -> Check:
    """What an instance's gateway goes by."""
    instance = next((one for one in instances() if str(one.name) == name), None)
    return checkegress.judge_outside(checkegress.see_outside(name, _configured(name).settings, instance))


def running(name: str) -> list[Check]:
    """An instance, if there is one of that name."""
    place = checkspace.see_installed(runtime.COMMAND).place
    return [checkspace.judge_running(checkspace.see_running(one, place)) for one in instances() if str(one.name) == name]


def _configured(name: str) -> checkspace.Configured:
    return checkspace.see_settings(name, SETTINGS_ROOT / f"{name}.toml", os.environ)


def leftovers() -> Check:
    """What nobody accounts for: private instances whose serve was killed, stages of a set-up that died, run directories and empty
    cgroups of instances that are gone.

    A cgroup with processes may belong to an instance of another root file system on this kernel.
    """
    here = list(instances())
    found = [f"instance {instance.name}, whose serve was killed" for instance in here if is_abandoned(instance)]
    if not storage.is_locked():
        found += [str(stage) for kind in (DATA_ROOT / "artefacts", deps.OPT) for stage in kind.glob(f"**/{shelf.STAGE}*") if kind.is_dir()]
    known = {str(instance.name) for instance in here}
    found += [str(entry) for entry in _entries(RUN_ROOT) if entry.is_dir() and not entry.name.startswith(".") and entry.name not in known]
    found = sorted([*found, *_empty_cgroups(here)])
    looked = f"{RUN_ROOT}, {DATA_ROOT}, {deps.OPT}, cgroups"
    if found:
        remedy = "`make clean` removes everything; a set-up removes stages and abandoned instances"
        return Check("leftovers", ok=False, detail=", ".join(found), remedy=remedy, looked_at=looked)
    return fine("leftovers", "none", looked_at=looked)


def _empty_cgroups(here: Sequence[Instance]) -> set[str]:
    known, empty = {LEAF, *(instance.cgroup for instance in here)}, set()
    for mount in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = mount.partition(" - ")
        if right.startswith("cgroup"):
            groups = [group for group in Path(left.split()[4]).glob("space-*") if group.name not in known]
            empty |= {f"cgroup {group.name}" for group in groups if not any(file.read_text() for file in group.glob("**/cgroup.procs"))}
    return empty


def _entries(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []
