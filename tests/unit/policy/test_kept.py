"""What outlives workers: addresses mean what they meant, what is spent stays spent, and what is not whole is not believed."""

from __future__ import annotations

import random
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.policy import kept
from space.core.policy.kept import Kept, NoRoom

ONE, OTHER = IPv4Address("198.18.0.1"), IPv4Address("198.18.0.2")


def test_the_next_one_finds_what_the_last_one_put() -> None:
    memory = bytearray(kept.SIZE)
    first = Kept(memory)
    first.put("a.example.com", ONE, 5.0)
    first.put("b.example.com", OTHER, 6.0)
    first.touch("a.example.com", 7.0)
    first.spend("sandbox", "rule[0]", 10, 20)
    first.spend("sandbox", "rule[0]", 11, 20)
    second = Kept(memory)
    assert list(second.names()) == [("b.example.com", OTHER, 6.0), ("a.example.com", ONE, 7.0)]
    assert second.spent("sandbox", "rule[0]") == (11, 20)
    assert second.spent("tenant", "rule[0]") == (0, 0)
    second.drop("b.example.com")
    assert [name for name, _, _ in Kept(memory).names()] == ["a.example.com"]


def test_there_is_room_for_so_many_and_no_more_and_what_was_dropped_is_room() -> None:
    memory = bytearray(kept.SIZE)
    table = Kept(memory)
    for number in range(kept.MOST_NAMES):
        table.put(f"n{number}.example.com", IPv4Address(number + 1), 1.0)
    with pytest.raises(NoRoom):
        table.put("one-more.example.com", ONE, 1.0)
    table.drop("n7.example.com")
    table.put("one-more.example.com", IPv4Address(8), 1.0)
    assert len(list(Kept(memory).names())) == kept.MOST_NAMES
    for number in range(kept.MOST_BUDGETS):
        table.spend("sandbox", f"rule[{number}]", 1, 1)
    with pytest.raises(NoRoom):
        table.spend("sandbox", "one more", 1, 1)
    assert Kept(memory).spent("sandbox", f"rule[{kept.MOST_BUDGETS - 1}]") == (1, 1)


def test_an_entry_that_was_cut_off_is_not_there() -> None:
    memory = bytearray(kept.SIZE)
    Kept(memory).put("a.example.com", ONE, 5.0)
    memory[16 + 20] ^= 1
    assert list(Kept(memory).names()) == []
    Kept(memory).put("b.example.com", OTHER, 5.0)
    assert [name for name, _, _ in Kept(memory).names()] == ["b.example.com"]


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_memory_that_somebody_scribbled_in_gives_each_address_one_name_and_each_name_one_address(seed: int, changes: int) -> None:
    draw = random.Random(seed)
    memory = bytearray(kept.SIZE)
    table = Kept(memory)
    for number in range(20):
        table.put(f"n{number}.example.com", IPv4Address(number + 1), float(number))
    for _ in range(changes):
        at = draw.randrange(16 + 20 * 272)
        memory[at : at + 4] = draw.choice([draw.randbytes(4), bytes(memory[16 : 16 + 4]), b"\xff\xff\xff\xff"])
    found = list(Kept(memory).names())
    assert len({name for name, _, _ in found}) == len({address for _, address, _ in found}) == len(found)


def test_memory_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="memory of"):
        Kept(bytearray(10))
