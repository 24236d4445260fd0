"""The golden vectors of docs/protocol.md, which the Rust side reads as well, against the Python codec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from space.core.wire import frames, guest
from space.core.wire.events import WasReset
from space.core.wire.frames import BULK, CONTROL, AcceptorDecoder, Decoder, Frame, Garbled, OpenerDecoder, decode_greeting
from space.core.wire.mux import Opener
from space.model.errors import ProtocolError

WIRE = Path(__file__).parent / "wire"
FRAMES = json.loads((WIRE / "frames.json").read_text())
STREAMS = json.loads((WIRE / "streams.json").read_text())
MESSAGES = json.loads((WIRE / "messages.json").read_text())
VALID, MALFORMED = MESSAGES["valid"], MESSAGES["malformed"]
PIPES = {"control": CONTROL, "bulk": BULK}
NUMBERS = {name: number for number, name in frames.NAMES.items()}


def names(vectors: list[dict[str, Any]]) -> list[str]:
    return [vector["name"] for vector in vectors]


@pytest.mark.parametrize("vector", FRAMES, ids=names(FRAMES))
def test_frame_is_encoded_to_the_golden_bytes(vector: dict[str, Any]) -> None:
    frame = vector["frame"]
    made = frames.encode(NUMBERS[frame["type"]], frame["stream"], frame["seq"], bytes.fromhex(frame["payload_hex"]), frame["flags"])
    assert made.hex() == vector["hex"]


def test_every_type_has_a_golden_frame() -> None:
    assert {vector["frame"]["type"] for vector in FRAMES} == set(NUMBERS)


def joined(pieces: list[dict[str, Any]]) -> bytes:
    return b"".join(bytes.fromhex(piece["hex"]) if "hex" in piece else bytes.fromhex(piece["fill"]) * piece["count"] for piece in pieces)


def decoder(vector: dict[str, Any]) -> Decoder:
    pipe = PIPES[vector["pipe"]]
    return AcceptorDecoder(pipe) if vector["role"] == "acceptor" else OpenerDecoder(pipe, bytes.fromhex(vector["nonce"]))


def spoken(item: Frame | Garbled, role: str) -> dict[str, Any]:
    if isinstance(item, Garbled):
        return {"event": "lost" if role == "acceptor" else "error", "reason": item.field}
    if item.type in {frames.HELLO, frames.HELLO_ACK}:
        said = decode_greeting(item.payload)
        kind = frames.NAMES[item.type].lower()
        return {"event": kind, "nonce": said.nonce.hex(), "generation": said.generation, "version": said.version, "pipe": said.pipe}
    return {
        "event": "frame",
        "type": frames.NAMES[item.type],
        "flags": item.lane,
        "stream": item.stream,
        "seq": item.seq,
        "payload_hex": item.payload.hex(),
    }


def expected(event: dict[str, Any]) -> dict[str, Any]:
    event = dict(event)
    fill = event.pop("payload_fill", None)
    if fill:
        event["payload_hex"] = fill["fill"] * fill["count"]
    return event


@pytest.mark.parametrize("step", [None, 1, 7, 4093], ids=["at once", "byte by byte", "in sevens", "in pages"])
@pytest.mark.parametrize("vector", STREAMS, ids=names(STREAMS))
def test_bytes_mean_the_golden_events(vector: dict[str, Any], step: int | None) -> None:
    data, taker = joined(vector["bytes"]), decoder(vector)
    events = [
        spoken(item, vector["role"])
        for at in range(0, len(data), step or len(data))
        for item in taker.receive(data[at : at + (step or len(data))])
    ]
    assert events == [expected(event) for event in vector["events"]]


def plain(value: Any) -> Any:
    """A vector's value as msgspec makes builtins: bin as bytes."""
    match value:
        case {"$bin": str(digits)}:
            return bytes.fromhex(digits)
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case list():
            return [plain(item) for item in value]
    return value


def decoded(vector: dict[str, Any]) -> msgspec.Struct:
    payload = bytes.fromhex(vector["hex"])
    if vector["kind"] == "message":
        return guest.decode(payload)
    request: msgspec.Struct = guest.decode_request(guest.REQUESTS[vector["of"]], payload)
    return request


TYPED = [vector for vector in VALID if vector["kind"] != "reset"]


@pytest.mark.parametrize("vector", TYPED, ids=names(TYPED))
def test_message_means_the_golden_value_and_is_encoded_to_the_golden_bytes(vector: dict[str, Any]) -> None:
    value = decoded(vector)
    as_builtins = msgspec.to_builtins(value, builtin_types=(bytes,))
    assert msgspec.json.encode(as_builtins) == msgspec.json.encode(plain(vector["value"]))
    assert msgspec.msgpack.encode(value).hex() == vector["hex"]


def test_every_verb_and_message_has_a_golden_value() -> None:
    assert {vector["of"] for vector in VALID if vector["kind"] == "request"} == set(guest.REQUESTS)
    tags = {kind.__struct_config__.tag for kind in guest.Message.__args__}
    assert {vector["of"] for vector in VALID if vector["kind"] == "message"} == tags


@pytest.mark.parametrize("vector", MALFORMED, ids=names(MALFORMED))
def test_malformed_request_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        guest.decode_request(guest.REQUESTS[vector["of"]], bytes.fromhex(vector["hex"]))


@pytest.mark.parametrize("vector", [v for v in VALID if v["kind"] == "reset"], ids=lambda v: v["name"])
def test_reset_is_the_golden_one(vector: dict[str, Any]) -> None:
    value, payload = vector["value"], bytes.fromhex(vector["hex"])
    opener = Opener((CONTROL,), b"n" * 16, 7)
    ack = frames.encode_hello_ack(frames.Greeting(b"n" * 16, 7, frames.VERSION, 0))
    opener.receive(0, ack)
    number, _ = opener.send_open("noop", b"\x80")
    assert opener.receive(0, frames.encode(frames.RESET, number, 2, payload)) == [WasReset(number, value["code"], value["message"])]
    number, _ = opener.send_open("noop", b"\x80")
    assert opener.send_reset(number, value["code"], value["message"])[16:-4] == payload
