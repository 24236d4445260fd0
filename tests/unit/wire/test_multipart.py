"""Bodies of many parts: whatever is in them comes out as it went in, however it is cut; what is no such body is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.core.wire import multipart
from space.core.wire.multipart import BadMultipart, Decoder, Part, PartEnd, Piece, boundary_of

BOUNDARY = b"b-1"


def read(body: bytes, step: int) -> list[tuple[bytes, bytes | None, bytes]]:
    decoder = Decoder(BOUNDARY)
    found: list[tuple[bytes, bytes | None, bytes]] = []
    head: Part | None = None
    data = b""
    for at in range(0, len(body), step):
        for event in decoder.feed(body[at : at + step]):
            match event:
                case Part():
                    head, data = event, b""
                case Piece(more):
                    data += more
                case PartEnd():
                    assert head is not None
                    found.append((head.name, head.file_name, data))
    decoder.end()
    return found


def part(data: bytes, head: bytes = b'form-data; name="file"; filename="f"') -> bytes:
    return b"--" + BOUNDARY + b"\r\nContent-Disposition: " + head + b"\r\nContent-Type: text/plain\r\n\r\n" + data + b"\r\n"


END = b"--" + BOUNDARY + b"--\r\n"
NEAR = st.sampled_from([b"\r", b"\n", b"-", b"\r\n", b"\r\n--", b"\r\n--b", b"\r\n--b-", b"--b-1", b"\r\n--b-2", b"x"])


@given(st.lists(st.lists(NEAR | st.binary(max_size=5), max_size=12).map(b"".join), max_size=4), st.integers(1, 40))
def test_what_is_in_parts_comes_out_as_it_went_in(parts: list[bytes], step: int) -> None:
    # What holds the delimiter itself cannot be sent with this boundary.
    parts = [one for one in parts if b"\r\n--b-1" not in b"\r\n" + one + b"\r"]
    body = b"".join(part(one) for one in parts) + END
    assert read(body, step) == [(b"file", b"f", one) for one in parts]


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize(
    ("head", "name", "file_name"),
    [
        (b'form-data; name="file"; filename="/a b/\xc3\xbc"', b"file", "/a b/ü".encode()),
        (b"form-data; name=file", b"file", None),
        (b'form-data; name="file"; filename="q %22 %0D%0A %25 \\" \\\\ \\n"', b"file", b'q " \r\n %25 " \\ \\n'),
        (b'FORM-DATA;NAME=file ; FileName="x;y=z"', b"file", b"x;y=z"),
        (b'form-data; filename=""; name=""', b"", b""),
    ],
)
def test_a_parts_head_says_its_name(head: bytes, name: bytes, file_name: bytes | None, step: int) -> None:
    assert read(part(b"1", head) + END, step) == [(name, file_name, b"1")]


def test_what_stands_before_and_behind_is_passed_over() -> None:
    assert read(b"before\r\n" + part(b"1") + END + b"behind\r\n--b-1\r\n", 7) == [(b"file", b"f", b"1")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b-1",
        part(b"1"),
        part(b"1") + b"--b-1-",
        part(b"1") + b"--b-1x",
        b"--b-1\r\n\r\n1\r\n" + END,
        b"--b-1\r\nno colon\r\n\r\n1\r\n" + END,
        b"--b-1\r\nContent-Disposition: attachment\r\n\r\n1\r\n" + END,
        b'--b-1\r\nContent-Disposition: form-data; name="open\r\n\r\n1\r\n' + END,
        b"--b-1\r\nX: " + b"y" * multipart.MOST_HEAD + b"\r\n\r\n1\r\n" + END,
        b"x" * 5000 + part(b"1") + END,
        part(b"") * (multipart.MOST_PARTS + 1) + END,
    ],
    ids=range(12),
)
def test_what_is_no_such_body_is_refused(body: bytes) -> None:
    for step in (5, 1 << 20):
        with pytest.raises(BadMultipart):
            read(body, step)


def test_nothing_of_a_large_part_is_held() -> None:
    decoder = Decoder(BOUNDARY)
    decoder.feed(part(b"")[:-2])
    for _ in range(100):
        (event,) = decoder.feed(b"x" * 65_536)
        assert event == Piece(b"x" * 65_536)


@pytest.mark.parametrize(
    "text",
    [
        "text/plain",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        'multipart/form-data; boundary="a b "',
        "multipart/form-data; boundary=" + "x" * 71,
        "multipart/form-data; boundary=ü",
        "multipart/form-data; =;",
    ],
)
def test_a_type_without_a_boundary_is_refused(text: str) -> None:
    with pytest.raises(BadMultipart):
        boundary_of(text)


def test_a_boundary_may_be_quoted() -> None:
    assert boundary_of('Multipart/Form-Data; charset=utf-8; Boundary="a b"') == b"a b"
    assert boundary_of("multipart/form-data;boundary=----x'()+_,-./:=?") == b"----x'()+_,-./:=?"
