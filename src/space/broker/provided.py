"""Roots that set-up made with a root disk: rootd puts a file where the broker takes it, seals what is in it, and removes it.

    <template>.pem    the fingerprint in the template's manifest, 64 hexadecimal digits; the certificate; its key

Only root and the broker reach that directory. The manifest says which certificate the template's disk trusts: another one is refused.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from space.broker.certificates import Authority, fingerprint, load_authority
from space.model.errors import Conflict

GENERATION = 0  # set-up's; what an instance makes for itself counts from one
_LARGEST = 16_384
_END = b"-----END CERTIFICATE-----\n"


class Provided:
    """directory: the broker's own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def take(self, template: str) -> Authority | None:
        """What was provided for that template, or None. Conflict: it is not what its disk trusts, or is none at all."""
        data = self._read(template)
        if data is None:
            return None
        expected, _, pem = data.partition(b"\n")
        try:
            certificate, end, key = pem.partition(_END)
            found = load_authority(certificate + end, key)
        except (ValueError, TypeError):  # their words may quote what was read
            raise Conflict(f"the root that was provided for template {template} is no authority", hint="`space setup` mends it") from None
        if (said := fingerprint(found.certificate).encode()) != expected:
            named = ascii(expected[:16])[1:]
            raise Conflict(
                f"the root that was provided for template {template} is '{said[:16].decode()}', and its manifest names {named}",
                hint="`space setup` mends it",
            )
        return found

    def forget(self, template: str) -> None:
        """It is sealed, or was refused: its file goes. Idempotent."""
        with suppress(FileNotFoundError):
            self._path(template).unlink()

    def _path(self, template: str) -> Path:
        return self._directory / f"{template}.pem"

    def _read(self, template: str) -> bytes | None:
        try:
            descriptor = os.open(self._path(template), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            return file.read(_LARGEST) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
