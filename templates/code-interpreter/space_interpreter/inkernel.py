"""In a kernel's own process: ipykernel and bash_kernel, with what an execution's variables and a restored machine ask of them."""

from __future__ import annotations

import os
import random
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bash_kernel.kernel import BashKernel
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from IPython.core.formatters import BaseFormatter
from traitlets import ObjectName, Unicode

from space_interpreter import charts, frames


class Application(IPKernelApp):
    """A kernel that drops nothing of what it says, however slowly that is read, and writes no history to the disk."""

    def init_iopub(self, context: Any) -> None:
        context.sndhwm = 0
        super().init_iopub(context)


class Python(IPythonKernel):
    """ipykernel's, whose requests may bring variables of the environment."""

    async def execute_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        os.environ.update(parent["metadata"].get("adopted", {}))
        with _environment(parent["metadata"].get("variables", {})):
            await super().execute_request(stream, ident, parent)
        if parent["metadata"].get("rehearsal"):
            self.shell.reset(new_session=True)


class Bash(BashKernel):
    """bash_kernel's, with the same: its shell is another process, which is told by commands."""

    stale = False

    async def execute_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        variables = parent["metadata"].get("variables", {})
        if self.stale:
            self.stale = False
            self._quietly("RANDOM=$SRANDOM")
        for name, value in parent["metadata"].get("adopted", {}).items():
            self._quietly(f"export {name}={shlex.quote(value)}")
        for name, value in variables.items():
            self._quietly(f"[[ -v {name} ]] && _before_{name}=${name}; export {name}={shlex.quote(value)}")
        await super().execute_request(stream, ident, parent)
        if parent["metadata"].get("rehearsal"):
            self.execution_count = 0
        for name in variables:
            self._quietly(f"if [[ -v _before_{name} ]]; then {name}=$_before_{name}; unset _before_{name}; else unset {name}; fi")

    def _quietly(self, command: str) -> None:
        self.bashwrapper.run_command(command, timeout=5)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set while a block runs; what was there before is there again afterwards."""
    if not variables:
        yield
        return
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class Data(BaseFormatter):
    """A table as a dictionary of its columns."""

    format_type = Unicode("e2b/data")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = dict


class Chart(BaseFormatter):
    """What a figure shows, as data."""

    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = dict


def run(kind: str, connection: str) -> None:
    """Be that kernel until it is told to end."""
    python = kind == "python"
    application = Application.instance(kernel_class=Python if python else Bash)
    application.initialize(
        [f"--IPKernelApp.connection_file={connection}", "--HistoryManager.enabled=False", "--IPKernelApp.parent_handle=0"]
    )
    if python:
        _prepare(application.shell)
    signal.signal(signal.SIGUSR1, lambda *_: reseed() if python else setattr(application.kernel, "stale", True))
    application.start()


def _prepare(shell: Any) -> None:
    formatters = shell.display_formatter.formatters
    for formatter in (Data(parent=shell.display_formatter), Chart(parent=shell.display_formatter)):
        formatters[formatter.format_type] = formatter
    formatters["e2b/data"].for_type_by_name("pandas.core.frame", "DataFrame", frames.data)
    charts.watch()
    # By a method: what is registered for figures is dropped whenever their format is chosen.
    sys.modules["matplotlib.figure"].Figure._repr_e2b_chart_ = charts.of
    shell.run_line_magic("matplotlib", "inline")
    reseed()


def reseed() -> None:
    """Numbers that no copy of this process draws."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "ssl" in sys.modules:
        sys.modules["ssl"].RAND_add(os.urandom(32), 32.0)
