"""What got slower since an earlier run: samples of the same name side by side, told apart only where their middle halves do not meet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from space.bench.figures import median, quarters
from space.model.errors import InvalidArgument

_LEAST = 0.05  # of a median: less is nothing that anybody would notice
_FEWEST = 3
_MORE_IS_BETTER = ("_per_s", "_mib_s")
_LESS_IS_BETTER = ("_ms", "_s", "_mib", "_kib", "_percent")


def load(path: Path) -> dict[str, dict[str, list[float]]]:
    """Samples that `--samples` wrote, by section and name; InvalidArgument for another file."""
    try:
        found = json.loads(path.read_text())["samples"]
        return {
            str(section): {str(name): [float(one) for one in series] for name, series in named.items()} for section, named in found.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(f"{path} has no samples of a bench: {error}", hint="a run writes them where `samples:` says") from error


def worse(name: str, before: Sequence[float], now: Sequence[float]) -> float | None:
    """How many times worse than before, beyond noise; None when it is not, or when nobody can say."""
    if min(len(before), len(now)) < _FEWEST:
        return None
    more = name.endswith(_MORE_IS_BETTER)
    if not more and not name.endswith(_LESS_IS_BETTER):
        return None
    (earlier_low, earlier_high), (low, high) = quarters(before), quarters(now)
    earlier, later = median(before), median(now)
    if more:
        earlier_low, earlier_high, low, high = -earlier_high, -earlier_low, -high, -low
    if low <= earlier_high or abs(later - earlier) <= _LEAST * abs(earlier) or not earlier or not later:
        return None
    return earlier / later if more else later / earlier


def lines(before: Mapping[str, Mapping[str, Sequence[float]]], now: Mapping[str, Mapping[str, Sequence[float]]]) -> list[str]:
    """A line for each that got worse, the worst first; one that says so when none did. What only one of them has is left out."""
    found: list[tuple[float, str]] = []
    compared = 0
    for section, named in now.items():
        for name, series in named.items():
            earlier = before.get(section, {}).get(name)
            if not earlier or not series:
                continue
            compared += 1
            if (factor := worse(name, earlier, series)) is not None:
                found.append((factor, f"{section}.{name}: {factor:.2f} times worse ({median(earlier):.4g}, now {median(series):.4g})"))
    if not found:
        return [f"nothing got slower beyond noise ({compared} series compared)"]
    return [line for _, line in sorted(found, reverse=True)]
