"""A table of nftables in the network namespace that one is in: load it, read it back, take it away. For rootd, its sweep, and set-up."""

from __future__ import annotations

import json
import shutil
from typing import Any

from space.host import process


def load(text: str) -> None:
    """Load rules as nft's own text, in one step. ProcessFailed: nothing has changed."""
    process.run(["nft", "-f", "-"], data=text.encode())


def table(name: str) -> Any:
    """What the kernel has under that name, of family inet, as nft's JSON. ProcessFailed when there is none."""
    return json.loads(process.run(["nft", "-j", "-p", "list", "table", "inet", name]).stdout)


def ruleset() -> Any:
    """Everything that it has."""
    return json.loads(process.run(["nft", "-j", "-p", "list", "ruleset"]).stdout)


def remove(name: str) -> None:
    """Take it away; one that is not there is fine, as is a machine without nft. OSError when it stays."""
    if shutil.which("nft", path=process.ENVIRONMENT["PATH"]) is None:
        return
    try:
        load(f"table inet {name} {{ }}\ndelete table inet {name}\n")
    except process.ProcessFailed as error:
        raise OSError(f"the packet filter {name} stays: {error}") from error
