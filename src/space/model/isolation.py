"""What stands between a guest and the host, in the words that every operator and every API answer gets."""

from __future__ import annotations

from typing import Final

HARDWARE: Final = "hardware-virtualized"
EMULATED: Final = "emulated (development only)"  # software emulation is no boundary by itself


def isolation(accelerator: str) -> str:
    """The words for an accelerator: `kvm`, `firecracker` (which is KVM as well), or `tcg` (and whatever else is no hardware)."""
    return HARDWARE if accelerator in ("kvm", "firecracker") else EMULATED
