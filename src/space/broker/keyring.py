"""Keys that wrap: what the broker keeps on a disk is sealed with AES-256-GCM under a key that lies elsewhere.

    keyring    one or more lines of 64 hexadecimal digits; the first wraps, every one unwraps
    envelope   1 byte version (1), 8 bytes id of the wrapping key, 12 bytes nonce, ciphertext with its tag

The id tells which key of the ring opens an envelope, so that a ring can turn: put the new key first, let the broker wrap everything anew,
then take the old one away. What an envelope is for (`purpose`, such as a root's name) is authenticated with it, so that none can stand
for another.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from space.model.errors import InvalidArgument, SpaceError
from space.model.secret import Secret

VARIABLE = "SPACE_BROKER_KEY"
_VERSION = 1
_ID, _NONCE, _TAG = 8, 12, 16
_LINE = re.compile(r"[0-9a-fA-F]{64}\Z")
_MOST_KEYS = 16


class Sealed(SpaceError):
    """An envelope that this ring does not open: its key is not here, or its bytes are not what was written."""


class Keyring:
    """Wraps with its first key, unwraps with any. It has no `repr` of a key."""

    __slots__ = ("_keys", "current")

    def __init__(self, keys: Sequence[Secret]) -> None:
        if not keys or any(len(key.reveal()) != 32 for key in keys):
            raise ValueError("a keyring has one key at least, each of 32 bytes")
        self._keys = {_id(key): AESGCM(key.reveal()) for key in keys}
        self.current = _id(keys[0])

    def __repr__(self) -> str:
        return f"Keyring({self.current.hex()} of {len(self._keys)})"

    def seal(self, purpose: str, secret: Secret) -> bytes:
        """The envelope of a secret."""
        head, nonce = bytes([_VERSION]) + self.current, secrets.token_bytes(_NONCE)
        return head + nonce + self._keys[self.current].encrypt(nonce, secret.reveal(), _bound(head, purpose))

    def open(self, purpose: str, envelope: bytes) -> Secret:
        """What was sealed for that purpose. Sealed."""
        if len(envelope) < 1 + _ID + _NONCE + _TAG or envelope[0] != _VERSION:
            raise Sealed(f"{purpose}: an envelope of {len(envelope)} bytes that this version does not know")
        head, nonce = envelope[: 1 + _ID], envelope[1 + _ID : 1 + _ID + _NONCE]
        key = self._keys.get(head[1:])
        if key is None:
            raise Sealed(
                f"{purpose} is sealed under key {head[1:].hex()}, which is not in the ring", hint="put that key into the ring again"
            )
        try:
            return Secret(key.decrypt(nonce, envelope[1 + _ID + _NONCE :], _bound(head, purpose)))
        except InvalidTag:
            raise Sealed(f"{purpose}: its envelope is not what was written") from None

    def is_current(self, envelope: bytes) -> bool:
        """Whether it is under the key that wraps now."""
        return envelope[1 : 1 + _ID] == self.current


def parse(text: str) -> Keyring:
    """A ring from its lines. InvalidArgument, which says the line's number and nothing of its content."""
    lines = text.split()
    if not 1 <= len(lines) <= _MOST_KEYS:
        raise InvalidArgument(f"the keyring has {len(lines)} keys, 1 to {_MOST_KEYS} are possible")
    for number, line in enumerate(lines, 1):
        if not _LINE.match(line):
            raise InvalidArgument(f"key {number} of the keyring is not 64 hexadecimal digits (it has {len(line)} characters)")
    return Keyring([Secret(bytes.fromhex(line)) for line in lines])


def read(path: Path) -> Keyring:
    """A ring from a file that only this uid can read. InvalidArgument when it is missing, somebody else's, or open to others."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise InvalidArgument(f"the keyring {path} cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or stat.S_IMODE(facts.st_mode) & 0o177:
            raise InvalidArgument(
                f"the keyring {path} is mode {stat.S_IMODE(facts.st_mode):04o} of uid {facts.st_uid}",
                hint=f"it has to be a file of uid {os.geteuid()} with mode 0600",
            )
        data = file.read(_MOST_KEYS * 128 + 1)
    try:
        return parse(data.decode("ascii"))
    except UnicodeDecodeError:
        raise InvalidArgument(f"the keyring {path} is not text") from None


def from_environment(environment: MutableMapping[str, str]) -> Keyring | None:
    """The ring of the variable, which is taken out, so that no child has it."""
    text = environment.pop(VARIABLE, None)
    return None if text is None else parse(text)


def _id(key: Secret) -> bytes:
    return hashlib.sha256(b"space wrapping key\0" + key.reveal()).digest()[:_ID]


def _bound(head: bytes, purpose: str) -> bytes:
    return b"space envelope\0" + head + purpose.encode()
