"""Which accelerator guests get: real KVM, or software emulation, which is no boundary by itself; and which VMM drives KVM.

A `/dev/kvm` that opens, and even makes a VM, may have no hardware behind it. So a guest decides: booted with KVM it must say hello
within `limits.KVM_PROBE`, once per boot of the host and per guest kernel. The verdict is kept in the node's data, where doctor reads it.
A probe that learned nothing (the host was full, say) leaves no verdict: what asked for one fails, and the next one probes again. A
sandbox is not given the weaker accelerator because of a fault that passes.

Where KVM is worth it, Firecracker drives it if there is one that may be used (`space setup firecracker`), else QEMU. That is looked up
each time, so that a Firecracker that is added boots the next sandbox.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, cast

import msgspec

from space.config.firecracker import Firecracker
from space.core.plan import firecracker
from space.model.errors import Conflict, NotFound, SpaceError, Unavailable

log = logging.getLogger(__name__)

_FILE = "accelerator.json"
_UNTRIED = "try again; the setting `accelerator` decides without a probe"


@dataclass(frozen=True, slots=True)
class Verdict:
    """accelerator: `kvm` (QEMU's), `firecracker` (KVM as well) or `tcg`; why, in a sentence. boot_id, kernel: what it was decided for.
    probed: a guest has tried it out.
    """

    accelerator: Literal["kvm", "firecracker", "tcg"]
    why: str
    boot_id: str
    kernel: str
    probed: bool = False


# Boots a guest of this kernel's template with KVM: None when it said hello, else why it did not; raises when it could not be tried.
# Leaves nothing.
Probe = Callable[[str], Awaitable[str | None]]


def without_probe(setting: str, *, device_is_there: bool, boot_id: str, kernel: str, cached: Verdict | None) -> Verdict | None:
    """The verdict where none is needed of a guest; None: probe."""
    if setting != "auto":
        return Verdict(cast("Literal['kvm', 'firecracker', 'tcg']", setting), f"the operator set accelerator = {setting}", boot_id, kernel)
    if not device_is_there:
        return Verdict("tcg", "this host has no /dev/kvm", boot_id, kernel)
    # Any other reason (no device then, an operator's word) may hold no more, or be of another instance: serve hands the file on unread.
    if cached is not None and cached.probed and (cached.boot_id, cached.kernel) == (boot_id, kernel):
        return cached
    return None


def host_boot_id() -> str:
    """This boot of the host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def kvm_is_there() -> bool:
    """Whether the host has the device at all. Who opens it is rootd's matter, and what it is worth the probe's."""
    return Path("/dev/kvm").exists()


def load(directory: Path) -> Verdict | None:
    """The verdict that was kept in the node's data directory, if there is one (doctor reads it too)."""
    try:
        return msgspec.json.decode((directory / _FILE).read_bytes(), type=Verdict)
    except (FileNotFoundError, msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _save(directory: Path, verdict: Verdict) -> None:
    staged = directory / f".{_FILE}.{os.getpid()}"
    staged.write_text(json.dumps(asdict(verdict), indent=1) + "\n")
    staged.rename(directory / _FILE)


def none_there() -> Firecracker:
    """Of a host without one."""
    raise NotFound("there is no Firecracker on this machine")


class Accelerators:
    """Decides once per kernel and remembers."""

    def __init__(
        self, setting: str, directory: Path, *, device_is_there: bool, boot_id: str, jailed: Callable[[], Firecracker] = none_there
    ) -> None:
        """jailed: the Firecracker that boots new sandboxes; raises why there is none that may."""
        self._setting = setting
        self._directory = directory
        self._device_is_there = device_is_there
        self._boot_id = boot_id
        self._jailed = jailed
        self._verdicts: dict[str, Verdict] = {}
        self._turn = asyncio.Lock()
        self._probe: Probe | None = None

    def probe_with(self, probe: Probe) -> None:
        """How a probe guest is booted (it needs the node, which needs this object)."""
        self._probe = probe

    async def decide(self, kernel: str) -> Verdict:
        """The verdict for a kernel artefact; takes up to the probe's time, once. SpaceError when the probe learned nothing, and when the
        operator wants a Firecracker and there is none.
        """
        async with self._turn:
            if kernel not in self._verdicts:
                self._verdicts[kernel] = await self._decide(kernel)
            return self._driven(self._verdicts[kernel])

    def _driven(self, verdict: Verdict) -> Verdict:
        """With the VMM that drives it."""
        if self._setting not in ("auto", firecracker.NAME) or verdict.accelerator == "tcg":
            return verdict
        try:
            found = self._jailed()
        except (NotFound, Conflict) as error:
            if self._setting == firecracker.NAME:
                raise Unavailable(f"the setting accelerator is firecracker, and {error.message}", hint=error.hint) from error
            return verdict
        return replace(verdict, accelerator="firecracker", why=f"{verdict.why}; Firecracker {found.version} is there")

    async def _decide(self, kernel: str) -> Verdict:
        ready = without_probe(
            self._setting,
            device_is_there=self._device_is_there,
            boot_id=self._boot_id,
            kernel=kernel,
            cached=load(self._directory),
        )
        if ready is None:
            assert self._probe is not None, "probe_with was not called"
            try:
                failure = await self._probe(kernel)
            except OSError as error:
                raise Unavailable(f"cannot try out this host's /dev/kvm: {error}", hint=_UNTRIED) from error
            except SpaceError as error:
                log.warning("accelerator for kernel %s: not found out: %s", kernel, error)
                error.message = f"cannot try out this host's /dev/kvm: {error.message}"
                error.hint = error.hint or _UNTRIED
                raise
            if failure is None:
                ready = Verdict("kvm", "a probe guest said hello under KVM", self._boot_id, kernel, probed=True)
            else:
                ready = Verdict("tcg", f"a probe guest under KVM did not get there: {failure}", self._boot_id, kernel, probed=True)
        log.info("accelerator for kernel %s: %s (%s)", kernel, ready.accelerator, ready.why)
        if self._setting == "auto":  # what an operator set is no finding, and serve hands findings on to other instances
            _save(self._directory, ready)
        return ready
