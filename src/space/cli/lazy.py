"""The server's parts, imported when a command needs them: the client's distribution has none of them."""

from __future__ import annotations

import importlib
from typing import Any

from space.model.errors import Unsupported


def loaded(module: str, name: str) -> Any:
    """A public name of a module of the server; Unsupported where only the client is installed."""
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise Unsupported("this installation is the client alone", hint="this command needs the server's distribution") from error
