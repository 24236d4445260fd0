"""Figures: a median, its spread, and the baseline that it was measured beside. The samples are kept for a file of their own."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figure:
    """One promise measured. baseline: what `value` is to be seen against, in words and numbers; low, high: the middle half of it."""

    value: float
    unit: str
    baseline: dict[str, float] = field(default_factory=dict)
    low: float | None = None
    high: float | None = None

    def as_json(self) -> dict[str, object]:
        """`value`, `unit` and `baseline`, and the spread where there is one."""
        spread = {} if self.low is None or self.high is None else {"low": _short(self.low), "high": _short(self.high)}
        baseline = {name: _short(number) for name, number in self.baseline.items()}
        return {"value": _short(self.value), "unit": self.unit, "baseline": baseline, **spread}


@dataclass(frozen=True, slots=True)
class Section:
    """What a section measured: figures by name, and raw samples by name."""

    figures: dict[str, Figure]
    samples: dict[str, list[float]]


def median(samples: Sequence[float]) -> float:
    """The median."""
    return statistics.median(samples)


def quarters(samples: Sequence[float]) -> tuple[float, float]:
    """The first and the third quartile; the extremes of fewer than four."""
    if len(samples) < 4:
        return min(samples), max(samples)
    first, _, third = statistics.quantiles(samples, n=4)
    return first, third


def of(samples: Sequence[float], unit: str, **baseline: float) -> Figure:
    """The median of samples with its middle half."""
    low, high = quarters(samples)
    return Figure(median(samples), unit, dict(baseline), low, high)


def difference(samples: Sequence[float], raw: Sequence[float], unit: str) -> Figure:
    """How much the median of `samples` is above that of `raw`; the spread is that of the pairs, which were taken side by side."""
    pairs = [one - other for one, other in zip(samples, raw, strict=True)]
    low, high = quarters(pairs)
    return Figure(median(samples) - median(raw), unit, {"raw": median(raw), "whole": median(samples)}, low, high)


def ratio(samples: Sequence[float], raw: Sequence[float], **baseline: float) -> Figure:
    """The median of `samples` over that of `raw`; the spread is that of the pairs."""
    low, high = quarters([one / other for one, other in zip(samples, raw, strict=True)])
    return Figure(median(samples) / median(raw), "ratio", dict(baseline), low, high)


def _short(number: float) -> float:
    return float(f"{number:.4g}")
