"""What the tests of the E2B face stand on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import space
from space.serve.private import Served

Js = Callable[..., Any]  # the body of an async function, and what it is given, to what it returns


@dataclass(frozen=True, slots=True)
class Running:
    """A server that the SDKs are pointed at. served: its own side."""

    served: Served
    key: str = field(repr=False)

    @property
    def env(self) -> dict[str, str]:
        """What a user sets."""
        return {"E2B_API_KEY": self.key, "E2B_API_URL": self.served.url, "E2B_SANDBOX_URL": self.served.url}

    def admin(self) -> space.Client:
        """Our own SDK, with the admin's key; the tests' tenant is `e2b`."""
        return space.Client(api_url=self.served.url, api_key=self.served.api_key)

    def ours(self) -> space.Client:
        """Our own SDK, with the same key as E2B's."""
        return space.Client(api_url=self.served.url, api_key=self.key)
