"""Slots: a network namespace that holds a TAP, `lo` (down: nothing speaks over it) and a ruleset that lets nothing through.

A slot is complete or it is not there: it is built in a forked child, the ruleset is read back before the TAP comes up, and
one that is found is checked again and rebuilt when it is not as it should be.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from space.config.instance import Instance
from space.core.plan import ruleset
from space.host import namespaces, nftables, process
from space.model.errors import Internal


def create(instance: Instance, slot: int) -> None:
    """Make the slot, or make sure of it."""
    path = instance.netns(slot)
    path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    if namespaces.is_kept(path):
        if process.forked(lambda: _inspect(path)) == b"whole":
            return
        destroy(instance, slot)
    try:
        process.forked(lambda: _build(path))
    except BaseException:
        destroy(instance, slot)
        raise


def destroy(instance: Instance, slot: int) -> None:
    """Let the namespace go, and with it the TAP and the ruleset; nothing there is fine."""
    namespaces.let_go(instance.netns(slot))


def exists(instance: Instance, slot: int) -> bool:
    """Whether there is such a slot."""
    return namespaces.is_kept(instance.netns(slot))


def existing(instance: Instance) -> list[int]:
    """Every slot that is there."""
    directory = instance.run / "netns"
    names = os.listdir(directory) if directory.is_dir() else []  # noqa: PTH208 (names only)
    return sorted(int(name) for name in names if name.isdigit() and namespaces.is_kept(directory / name))


def silence() -> None:
    """Switch IPv6 off in this namespace, which would chatter towards the guest. Where /proc/sys is read-only the output chain drops it."""
    for scope in ("all", "default"):
        with suppress(OSError):
            Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6").write_text("1")


def _build(path: Path) -> bytes:
    namespaces.keep_network(path)
    silence()
    namespaces.make_tap(ruleset.TAP, namespaces.TAP_MAC)
    nftables.load(ruleset.ruleset())
    loaded = ruleset.canonical(nftables.ruleset())
    if loaded != ruleset.expected():
        raise Internal(f"the ruleset of {path} reads back otherwise than it was written: {json.dumps(loaded)[:2000]}")
    namespaces.set_up(ruleset.TAP)
    return b""


def _inspect(path: Path) -> bytes:
    namespaces.enter_network(path)
    built = namespaces.interfaces() == {"lo", ruleset.TAP} and namespaces.is_up(ruleset.TAP)
    return b"whole" if built and ruleset.canonical(nftables.ruleset()) == ruleset.expected() else b"broken"
