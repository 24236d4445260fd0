"""The gate: admission applied. It keeps the one `Admission` value and wakes whose turn to boot has come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from space.core.lifecycle.admission import Admission, Capacity, NoRoom
from space.model.errors import DeadlineExceeded, NoCapacity


class Gate:
    """One a node."""

    def __init__(self, capacity: Capacity, *, disk_free_mib: Callable[[], int] | None = None) -> None:
        """disk_free_mib: asked at each entry, for what is left is also others' doing."""
        self._disk_free_mib = disk_free_mib
        self._admission = Admission(capacity)
        self._turns: dict[str, asyncio.Future[None]] = {}

    @property
    def capacity(self) -> Capacity:
        return self._admission.capacity

    @property
    def memory_mib(self) -> int:
        """Memory that is taken, VMMs' overhead included."""
        return self._admission.memory_mib

    def enter(self, sandbox: str, guest_mib: int) -> None:
        """Take memory and a place in the queue; NoCapacity at once when it does not fit now."""
        asked = self._admission.ask(sandbox, guest_mib, None if self._disk_free_mib is None else self._disk_free_mib())
        if isinstance(asked, NoRoom):
            raise NoCapacity(f"cannot create {sandbox}: {asked.why}", hint=asked.hint)
        self._become(asked)

    def set_aside(self, name: str, mib: int) -> None:
        """Memory of nobody's sandbox; NoCapacity when it is not free."""
        free = self.capacity.memory_mib - self.memory_mib
        if mib > free:
            raise NoCapacity(f"{mib} MiB are needed and {max(free, 0)} are free")
        self._become(self._admission.setting_aside(name, mib))

    def give_back(self, name: str) -> None:
        """That memory is free; idempotent."""
        self._become(self._admission.setting_aside(name, 0))

    def adopt(self, sandbox: str, guest_mib: int) -> None:
        """Count a sandbox that runs already."""
        self._become(self._admission.adopted(sandbox, guest_mib))

    async def turn(self, sandbox: str, seconds: float) -> None:
        """Until its boot may begin; DeadlineExceeded after `seconds`. Cancellation keeps the place until `leave`."""
        if sandbox in self._admission.booting:
            return
        turn = self._turns[sandbox] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await turn
        except TimeoutError:
            raise DeadlineExceeded(f"{sandbox} waited {seconds:.0f} s for other sandboxes to boot", hint="try again later") from None
        finally:
            self._turns.pop(sandbox, None)

    def booted(self, sandbox: str) -> None:
        """Its boot is over, well or not; idempotent."""
        self._become(self._admission.booted(sandbox))

    def leave(self, sandbox: str) -> None:
        """It holds no compute any more; idempotent."""
        self._become(self._admission.left(sandbox))

    def _become(self, admission: Admission) -> None:
        self._admission = admission
        for sandbox in admission.booting & self._turns.keys():
            if not self._turns[sandbox].done():
                self._turns[sandbox].set_result(None)
