"""What outlives a sandbox's workers, in memory that they inherit: which synthetic address is whose, and what of each budget is spent.

A worker ends after a while without work, or crashes; an address that a guest still holds must then mean the name that it meant, and a
budget that was used up stays so. The memory is of one size, written in place, and belongs to one sandbox: what a worker that was taken
writes there concerns that sandbox alone, and `Kept` believes no entry that is not whole.

    header    magic, how many entries of names were ever used (so that what was not is not even looked at)
    names     MOST_NAMES entries: checksum, address, last use (seconds of the machine's monotonic clock), length, name
    budgets   MOST_BUDGETS entries: checksum of the key, key (digest of layer and rule), bytes sent, bytes received
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from hashlib import blake2b
from ipaddress import IPv4Address
from zlib import crc32

MOST_NAMES, MOST_BUDGETS = 4096, 8192
_MAGIC = b"spacekept1\0\0"
_HEADER = struct.Struct("=12sI")
_NAME = struct.Struct("=IIdB253s2x")
_USED = struct.Struct("=d")
_BUDGET = struct.Struct("=I16sQQ4x")
_COUNTS = struct.Struct("=QQ")
_NAMES_AT = _HEADER.size
_BUDGETS_AT = _NAMES_AT + MOST_NAMES * _NAME.size
SIZE = -(-(_BUDGETS_AT + MOST_BUDGETS * _BUDGET.size) // 4096) * 4096
Memory = bytearray | memoryview


class NoRoom(Exception):
    """Every entry is used."""


class Kept:
    """Over a buffer of SIZE bytes, zeros at first."""

    def __init__(self, memory: Memory) -> None:
        if len(memory) != SIZE:
            raise ValueError(f"memory of {len(memory)} bytes, not {SIZE}")
        magic, used = _HEADER.unpack_from(memory)
        self._used = min(used, MOST_NAMES) if magic == _MAGIC else 0
        self._memory = memory
        self._places: dict[str, int] = {}
        self._found: list[tuple[str, IPv4Address, float]] = []
        self._free: list[int] = []
        self._budgets: dict[bytes, int] = {}
        self._read_names()
        self._read_budgets()

    # -- names ---------------------------------------------------------------------------------------------------
    def names(self) -> Iterator[tuple[str, IPv4Address, float]]:
        """Name, address and last use, as they were found, the longest unused first."""
        return iter(sorted(self._found, key=lambda one: one[2]))

    def put(self, name: str, address: IPv4Address, used: float) -> None:
        """The address is the name's. NoRoom."""
        if not self._free:
            if self._used == MOST_NAMES:
                raise NoRoom
            self._free.append(_NAMES_AT + self._used * _NAME.size)
            self._used += 1
            _HEADER.pack_into(self._memory, 0, _MAGIC, self._used)
        place = self._free.pop()
        self._places[name] = place
        self._memory[place : place + _NAME.size] = _entry(name.encode("ascii"), int(address), used)

    def touch(self, name: str, used: float) -> None:
        """It was used."""
        _USED.pack_into(self._memory, self._places[name] + 8, used)

    def drop(self, name: str) -> None:
        """The address is nobody's."""
        place = self._places.pop(name)
        self._memory[place : place + _NAME.size] = bytes(_NAME.size)
        self._free.append(place)

    # -- budgets -------------------------------------------------------------------------------------------------
    def spent(self, layer: str, rule: str) -> tuple[int, int]:
        """Bytes sent and received so far."""
        place = self._budgets.get(_key(layer, rule))
        return (0, 0) if place is None else _COUNTS.unpack_from(self._memory, place + 20)

    def spend(self, layer: str, rule: str, sent: int, received: int) -> None:
        """They are this now. NoRoom: there are too many budgets to keep."""
        key = _key(layer, rule)
        place = self._budgets.get(key)
        if place is not None:
            _COUNTS.pack_into(self._memory, place + 20, sent, received)
            return
        if len(self._budgets) >= MOST_BUDGETS:
            raise NoRoom
        place = _BUDGETS_AT + len(self._budgets) * _BUDGET.size
        self._budgets[key] = place
        _BUDGET.pack_into(self._memory, place, crc32(key), key, sent, received)

    # -- what was there ------------------------------------------------------------------------------------------
    def _read_names(self) -> None:
        addresses: set[int] = set()
        for number in range(self._used):
            place = _NAMES_AT + number * _NAME.size
            checksum, address, used, length, text = _NAME.unpack_from(self._memory, place)
            name = text[:length]
            whole = length and checksum == _checksum(name, address) and math.isfinite(used) and used >= 0 and name.isascii()
            if not whole or address in addresses or name.decode() in self._places:
                self._free.append(place)
                continue
            addresses.add(address)
            self._places[name.decode()] = place
            self._found.append((name.decode(), IPv4Address(address), used))

    def _read_budgets(self) -> None:
        for number in range(MOST_BUDGETS):
            place = _BUDGETS_AT + number * _BUDGET.size
            checksum, key, _, _ = _BUDGET.unpack_from(self._memory, place)
            if checksum != crc32(key) or key in self._budgets or not any(key):
                break  # they are written one after the other
            self._budgets[key] = place


def _entry(name: bytes, address: int, used: float) -> bytes:
    return _NAME.pack(_checksum(name, address), address, used, len(name), name)


def _checksum(name: bytes, address: int) -> int:
    return crc32(name, address)


def _key(layer: str, rule: str) -> bytes:
    return blake2b(f"{layer}\0{rule}".encode(), digest_size=16).digest()
