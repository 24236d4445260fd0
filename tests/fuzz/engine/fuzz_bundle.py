"""A template that comes as a file: whole and as its header says, or refused; what it is cut into does not count."""

from __future__ import annotations

from tests.fuzz.engine.guided import Target

from space.core.template import bundle

_MOST = 4 << 20


def fuzz_bundle(data: bytes) -> None:
    whole, pieces = _read(data, len(data) or 1), _read(data, 977)
    assert (whole is None) == (pieces is None)
    if whole is None:
        return
    assert whole == pieces
    header, blocks = whole
    assert header.disk_bytes <= _MOST
    assert bundle.head(header) + b"".join(map(bundle.pack, blocks)) + bundle.END == data
    assert all(block.offset + bundle.BLOCK <= header.disk_bytes for block in blocks)


def _read(data: bytes, size: int) -> tuple[bundle.Header, list[bundle.Block]] | None:
    reader, blocks = bundle.Reader(_MOST), list[bundle.Block]()
    try:
        for at in range(0, len(data), size):
            blocks += [found for found in reader.receive(data[at : at + size]) if isinstance(found, bundle.Block)]
            assert len(reader._buffer) <= bundle.MOST_HEADER + 100
        return reader.close(), blocks
    except bundle.BundleRefused:
        return None


def _seed(*blocks: bundle.Block) -> bytes:
    content = bundle.Content()
    for block in blocks:
        content.add(block)
    return bundle.head(bundle.Header(content.digest(), 1 << 20, "{}")) + b"".join(map(bundle.pack, blocks)) + bundle.END


TARGET = Target(
    "bundle",
    (bundle,),
    fuzz_bundle,
    (_seed(), _seed(bundle.Block(0, b"x" * bundle.BLOCK))),
    (bundle.MAGIC, bundle.END, b'"disk_bytes": ', b'"root": ""', b"1048576"),
)
