"""A rate holds over the broker's own end: what was taken stays taken, and what comes back comes with time."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.broker import rates
from space.broker.keyring import Keyring
from space.broker.rates import Rates
from space.broker.store import Store
from space.core.credentials.grant import Rate
from space.model.errors import Unavailable
from space.model.secret import Secret


class At:
    """A store, and a broker's rates that can be killed."""

    def __init__(self, path: Path) -> None:
        self.now = 1_000_000.0
        self.store = Store(path / "store.db", Keyring([Secret(b"k" * 32)]))
        self.rates = Rates(self.store, lambda: self.now)

    def begun_again(self) -> None:
        self.rates = Rates(self.store, lambda: self.now)

    def taken(self, count: int, rate: Rate, secret: str = "s") -> int:
        return sum(self.rates.take("acme", secret, rate) for _ in range(count))


@pytest.fixture
def at(tmp_path: Path) -> At:
    return At(tmp_path)


def test_a_restart_gives_nothing_back(at: At) -> None:
    rate = Rate(3, 60.0)
    assert at.taken(2, rate) == 2
    for _ in range(5):
        at.begun_again()
        at.now += 1
    assert at.taken(5, rate) == 1
    at.begun_again()
    assert at.taken(5, rate) == 0
    at.now += 60
    assert at.taken(5, rate) == 3


def test_what_was_written_ahead_is_less_and_a_small_part(at: At) -> None:
    rate = Rate(6400, 3600.0)
    assert at.taken(50, rate) == 50
    at.begun_again()
    assert 6400 - 200 <= 50 + at.taken(10_000, rate) <= 6400


def test_another_secret_another_rate_and_one_that_was_deleted_are_counted_apart(at: At) -> None:
    rate = Rate(1, 3600.0)
    assert [at.taken(2, rate), at.taken(2, rate, "other"), at.taken(3, Rate(2, 3600.0))] == [1, 1, 2]
    at.begun_again()
    assert [at.taken(2, rate), at.taken(2, rate, "other")] == [0, 0]
    at.rates.forget("acme", "s")
    at.begun_again()
    assert [at.taken(2, rate), at.taken(2, rate, "other")] == [1, 0]


def test_a_clock_that_is_put_back_gives_nothing(at: At) -> None:
    rate = Rate(2, 10.0)
    assert at.taken(2, rate) == 2
    for _ in range(20):
        at.now -= 100
        at.begun_again()
        assert at.taken(1, rate) == 0
    at.now += 10
    assert at.taken(5, rate) == 2


def test_what_is_full_again_is_not_kept(at: At) -> None:
    assert at.taken(2, Rate(4, 60.0)) == 2
    assert len(at.store.read("SELECT * FROM spent")) == 1
    at.now += 120
    at.begun_again()
    assert at.store.read("SELECT * FROM spent") == []


def test_more_rates_than_can_be_counted_lend_nothing(at: At, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_MOST", 2)
    assert at.taken(1, Rate(1, 1.0)) == at.taken(1, Rate(2, 1.0)) == 1
    with pytest.raises(Unavailable):
        at.taken(1, Rate(3, 1.0))


COURSES = st.lists(st.tuples(st.floats(0, 30), st.integers(1, 40), st.booleans()), max_size=20)


@given(count=st.integers(1, 200), seconds=st.sampled_from([1.0, 60.0, 3600.0]), course=COURSES)
def test_over_any_course_no_more_is_taken_than_the_rate_says(
    tmp_path_factory: pytest.TempPathFactory, count: int, seconds: float, course: list[tuple[float, int, bool]]
) -> None:
    at, rate, total = At(tmp_path_factory.mktemp("rates")), Rate(count, seconds), 0
    for wait, asked, killed in course:
        at.now += wait
        if killed:
            at.begun_again()
        total += at.taken(asked, rate)
        assert total <= count + (at.now - 1_000_000.0) * count / seconds + 1e-6
    at.store.close()
