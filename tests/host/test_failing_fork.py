"""A fork that the kernel refuses costs rootd that one start, not its PID namespace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from space.host import process
from space.model.rootd import StartVmm
from space.rootd import sandboxes, vmm
from space.testing.roothost import WORD, RootHost


@pytest.mark.parametrize("prepared", [False, True], ids=["of the tree's child", "of the VMM's"])
def test_a_start_after_a_fork_that_failed_works(host: RootHost, monkeypatch: pytest.MonkeyPatch, prepared: bool) -> None:
    request = host.prepare()
    operation = StartVmm(request.sandbox, request.generation, "tcg")

    def rootd() -> bytes:
        place, children = sandboxes.open_place(host.instance), vmm.Children()
        if prepared:
            children.trees.of(place.store.path("qemu", place.store.template_by_digest(request.template).qemu) / "root")
        held = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (names only)

        def refused() -> int:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fork", refused)
            with pytest.raises(BlockingIOError):
                vmm.start(place, children, operation)
        namespaces = {Path(f"/proc/self/ns/{name}").readlink() for name in ("pid", "pid_for_children")}
        assert len(namespaces) == 1, namespaces
        assert len(os.listdir("/proc/self/fd")) == held  # noqa: PTH208
        os.close(vmm.start(place, children, operation))
        return b"started"

    assert process.forked(rootd) == b"started"
    assert host.talk(request) == WORD
    status = Path(f"/proc/{host.record(request)['pid']}/status").read_text()
    assert f"NSpid:\t{host.record(request)['pid']}\t1\n" in status
