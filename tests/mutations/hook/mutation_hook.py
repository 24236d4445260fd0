"""Weakens one module of the product, before anybody imports it, in every process of the throw-away environment that this was copied into.

Beside it lies `mutation.json`: the module's name, what stands in its source once, and what stands there instead; `done/mark` is made when
that was done. A line of that environment's path file imports this in every process, also with -I, as services are started.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

HERE = Path(__file__).parent


class Weakened(SourceFileLoader):
    """The module with other words in one place."""

    old = new = ""

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text()
        if source.count(self.old) != 1:
            os.write(2, f"mutation: {self.old!r} stands {source.count(self.old)} times in {self.path}\n".encode())
            os._exit(97)
        with suppress(OSError):
            (HERE / "done/mark").touch()
        return compile(source.replace(self.old, self.new), self.path, "exec", dont_inherit=True)


class Finder:
    """Finds that one module."""

    def __init__(self, module: str, old: str, new: str) -> None:
        self._module = module
        self._words = old, new

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """As an import asks."""
        if name != self._module:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.origin is not None
        loader = Weakened(name, spec.origin)
        loader.old, loader.new = self._words
        spec.loader = loader
        return spec


if (HERE / "mutation.json").exists():
    told = json.loads((HERE / "mutation.json").read_text())
    sys.meta_path.insert(0, Finder(told["module"], told["old"], told["new"]))
