"""A server for the tests of programs that use the SDK: see `MockServer`."""

from __future__ import annotations

from space.sdk.testing.processes import MockProcess, Process, Program, Reply
from space.sdk.testing.sandbox import MockSandbox
from space.sdk.testing.server import MockServer
from space.sdk.testing.sockets import Service

__all__ = ["MockProcess", "MockSandbox", "MockServer", "Process", "Program", "Reply", "Service"]
