"""Run code in microVMs: `from space import Sandbox, AsyncSandbox`.

Importing `space` imports nothing else: a name is looked up in the SDK when it is first used, so that the server's
processes and the command line do not pay for an HTTP client that they may not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from space.model import errors
    from space.model.errors import SpaceError
    from space.sdk import (
        AsyncClient,
        AsyncProcess,
        AsyncSandbox,
        AsyncTerminal,
        Client,
        CommandFailed,
        Gap,
        IdlePolicy,
        Output,
        OutputLost,
        Process,
        PtySize,
        Result,
        Sandbox,
        Terminal,
    )

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncTerminal",
    "Client",
    "CommandFailed",
    "Gap",
    "IdlePolicy",
    "Output",
    "OutputLost",
    "Process",
    "PtySize",
    "Result",
    "Sandbox",
    "SpaceError",
    "Terminal",
    "__version__",
    "errors",
]


def __getattr__(name: str) -> Any:
    if name in ("errors", "SpaceError"):
        from space.model import errors as found

        return found if name == "errors" else found.SpaceError
    if name in __all__:
        from space import sdk

        return getattr(sdk, name)
    raise AttributeError(f"module 'space' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
