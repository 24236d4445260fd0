"""The broker's public key of audit heads: enough to verify records anywhere, not to vouch for any."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


class PublicKey:
    """Ed25519, 32 bytes. ValueError for anything else."""

    def __init__(self, raw: bytes) -> None:
        self._key = Ed25519PublicKey.from_public_bytes(raw)

    def holds(self, data: bytes, mac: bytes, /) -> bool:
        """Whether it is the broker's signature of that data."""
        try:
            self._key.verify(mac, data)
        except InvalidSignature:
            return False
        return True
