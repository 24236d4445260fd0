"""What fuzzing has found is tried again each time: every input of the corpora keeps every promise, and so do some hundred changed ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.fuzz import _specimen as specimen
from tests.fuzz.engine.guided import Broken, Target, fuzz, read_corpus
from tests.fuzz.engine.targets import BY_NAME

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("name", BY_NAME)
def test_every_input_that_was_ever_found_keeps_every_promise(name: str) -> None:
    inputs = read_corpus(CORPUS / name)
    assert inputs, f"python -m tests.fuzz.engine --keep {name}"
    for data in inputs:
        BY_NAME[name].run(data)


def test_the_engine_finds_what_is_wrong_and_makes_it_small() -> None:
    target = Target("specimen", (specimen,), specimen.check, (b"nothing here",), (b"fish",))
    with pytest.raises(Broken) as broken:
        fuzz(target, [], random.Random(1), seconds=30)
    assert broken.value.data == b"fish!"


def test_the_engine_notices_what_never_ends() -> None:
    with pytest.raises(Broken, match="more than"):
        fuzz(Target("slow", (), specimen.slow, (b"x",), slow=0.05), [], random.Random(1), runs=1)
