"""A value that must not be seen: it has no words, no copy, no serial form. It is made in one place and revealed where it is used."""

from __future__ import annotations

import hmac
from typing import NoReturn


class Secret:
    """Bytes that only `reveal` gives. Its `repr` is empty; formatting, pickling, copying and hashing it raise TypeError."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = bytes(value)

    def reveal(self) -> bytes:
        """The bytes: for the cipher, the signature, the one outgoing request."""
        return self._value

    def __repr__(self) -> str:
        return ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("a secret cannot be shown, copied or serialised")

    __str__ = _refuse
    __format__ = _refuse
    __bytes__ = _refuse
    __hash__ = _refuse
    __iter__ = _refuse
    __len__ = _refuse
    __copy__ = _refuse
    __deepcopy__ = _refuse
    __reduce__ = _refuse
    __reduce_ex__ = _refuse
    __getstate__ = _refuse
