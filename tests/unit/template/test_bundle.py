"""A template as bytes: what goes in comes out in any pieces, and what is not exactly that is refused."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.template.bundle import BLOCK, END, MIB, Block, BundleRefused, Content, Header, Reader, head, pack

ONE, TWO = Block(0, b"a" * BLOCK), Block(5 * BLOCK, b"b" * BLOCK)


def header(*blocks: Block, **changed: object) -> Header:
    content = Content()
    for block in blocks:
        content.add(block)
    return Header(**{"content": content.digest(), "disk_bytes": MIB, "settings": "{}", **changed})  # type: ignore[arg-type]


def written(*blocks: Block, **changed: object) -> bytes:
    return head(header(*blocks, **changed)) + b"".join(map(pack, blocks)) + END


def read(data: bytes, sizes: list[int] | None = None, most: int = 1 << 40) -> list[Header | Block]:
    reader, found, at = Reader(most), [], 0
    for size in [*(sizes or []), len(data)]:
        found += reader.receive(data[at : at + size])
        at += size
    reader.close()
    return found


@given(st.lists(st.integers(0, 70_000), max_size=8))
def test_what_is_written_is_read_in_any_pieces(sizes: list[int]) -> None:
    assert read(written(ONE, TWO), sizes) == [header(ONE, TWO), ONE, TWO]


def test_empty_disk_is_a_template_too() -> None:
    assert read(written()) == [header()]


@given(st.integers(0, len(written(ONE)) - 1), st.integers(1, 255))
def test_changed_byte_anywhere_is_noticed(at: int, by: int) -> None:
    data = bytearray(written(ONE))
    data[at] ^= by
    with pytest.raises(BundleRefused):
        read(bytes(data))


@given(st.integers(0, len(written(ONE)) - 1))
def test_what_ends_early_is_refused(size: int) -> None:
    with pytest.raises(BundleRefused):
        read(written(ONE)[:size])


HOSTILE = {
    "after its end": written(ONE) + b"x",
    "block 0 comes after 0": head(header(ONE, ONE)) + 2 * pack(ONE) + END,
    "block 0 comes after 5": head(header(TWO, ONE)) + pack(TWO) + pack(ONE) + END,
    "block 16 comes after": head(header()) + pack(Block(16 * BLOCK, ONE.data)) + END,
    "zeros only": head(header()) + pack(Block(0, bytes(BLOCK))) + END,
    "has the digest": head(header(TWO)) + pack(ONE) + END,
    "at most": written(disk_bytes=65 * MIB),
    "not one of whole MiB": written(disk_bytes=MIB + 1),
    "a disk of 0 bytes": written(disk_bytes=0),
    "a disk of -1048576": written(disk_bytes=-MIB),
    "other fields": written(disk_bytes=True),
    "its root is no digest": written(root="../etc"),
    "its content is no digest": written(content="g" * 64),
    "no template of this version": b"space template 2\n" + bytes(100),
    "its header has 4294967295 bytes": b"space template 1\n" + b"\xff" * 40,
}


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_bytes_are_refused_with_the_reason(words: str) -> None:
    with pytest.raises(BundleRefused, match=words):
        read(HOSTILE[words], most=64 * MIB)


@pytest.mark.parametrize("text", [b"[]", b"{}", b"[" * 5000, b"\xff", b'{"content": 1}', b'{"a": NaN}'])
def test_header_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(BundleRefused, match="header"):
        read(b"space template 1\n" + len(text).to_bytes(4, "big") + hashlib.sha256(text).digest() + text)


def test_nothing_of_a_reader_grows_with_what_comes() -> None:
    reader = Reader()
    reader.receive(head(header(TWO, disk_bytes=1 << 40)))
    for index in range(200):
        reader.receive(pack(Block(index * BLOCK, ONE.data)))
        assert len(reader._buffer) == 0
    assert json.loads(reader.header.settings) == {} if reader.header else False
