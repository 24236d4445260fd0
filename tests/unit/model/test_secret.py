"""A secret is revealed where somebody says so, and nowhere by accident."""

from __future__ import annotations

import copy
import json
import logging
import pickle
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import pytest

from space.model.secret import Secret

CANARY = b"canary-5f3c"


@dataclass
class Holder:
    secret: Secret


@pytest.mark.parametrize(
    "show",
    [
        str,
        bytes,
        list,
        hash,
        copy.copy,
        copy.deepcopy,
        pickle.dumps,
        json.dumps,
        msgspec.json.encode,
        msgspec.msgpack.encode,
        msgspec.to_builtins,
        lambda secret: f"{secret}",
        lambda secret: f"{secret:>10}",
        lambda secret: "%s" % secret,  # noqa: UP031 - what a log call does
        lambda secret: asdict(Holder(secret)),
        lambda secret: pickle.dumps(Holder(secret)),
    ],
)
def test_a_secret_refuses_to_be_shown_copied_or_serialised(show: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError) as raised:
        show(Secret(CANARY))
    assert CANARY.decode() not in str(raised.value)


def test_its_repr_is_empty_also_inside_of_another_value() -> None:
    assert repr(Secret(CANARY)) == ""
    assert CANARY.decode() not in repr(Holder(Secret(CANARY)))


def test_a_log_call_with_a_secret_prints_none(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("canary")
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler()])
    monkeypatch.setattr(logger, "propagate", False)
    logger.error("it is %s and %r", Secret(CANARY), Secret(CANARY))
    assert CANARY.decode() not in "".join(capsys.readouterr())


def test_it_is_revealed_and_compared() -> None:
    assert Secret(CANARY).reveal() == CANARY
    assert Secret(CANARY) == Secret(CANARY)
    assert Secret(CANARY) != Secret(b"another")
    assert Secret(CANARY) != CANARY
