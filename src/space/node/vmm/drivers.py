"""All drivers as one: a machine is made by the one that its accelerator names, and found again by the one that made it."""

from __future__ import annotations

from space.core.plan import firecracker
from space.node.vmm.firecracker import FirecrackerVmm
from space.node.vmm.seam import Machine, MachinePlan, Vmm


class Drivers:
    """The `Vmm` of a node. A sandbox has the accelerator that was decided when it was made, in all its lives."""

    def __init__(self, qemu: Vmm, jailed: FirecrackerVmm) -> None:
        self._qemu = qemu
        self._jailed = jailed

    async def boot(self, plan: MachinePlan) -> Machine:
        """See the driver."""
        return await self._of(plan).boot(plan)

    async def restore(self, plan: MachinePlan) -> Machine:
        """See the driver."""
        return await self._of(plan).restore(plan)

    async def adopt(self, sandbox: str, generation: int) -> Machine | None:
        """See the driver."""
        driver: Vmm = self._jailed if self._jailed.knows(sandbox) else self._qemu
        return await driver.adopt(sandbox, generation)

    def _of(self, plan: MachinePlan) -> Vmm:
        return self._jailed if plan.accelerator == firecracker.NAME else self._qemu
