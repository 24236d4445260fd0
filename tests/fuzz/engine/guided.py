"""Coverage-guided fuzzing in a few lines: inputs that take a way through the target which none took before are kept, and changed on.

A target is a function of bytes that raises when a promise is broken. The ways are pairs of lines that follow one another in its modules,
seen by `sys.settrace`, which makes it some times slower and needs no compiler; thousands of inputs a second remain. Everything is drawn
from one seed. An input that takes longer than it may is a failure as well.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

MOST_BYTES = 70_000
_TRACED = 5  # how much slower it is while it is watched


@dataclass(frozen=True)
class Target:
    """name: also of its corpus. modules: whose lines count. run: raises when a promise is broken. seeds: honest inputs.

    words: of its language. make: an input out of the language's grammar, where changed bytes alone would seldom pass the first check.
    slow: seconds of processor time that one input may take.
    """

    name: str
    modules: tuple[ModuleType, ...]
    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...] = ()
    make: Callable[[random.Random], bytes] | None = None
    slow: float = 2.0


class Broken(AssertionError):
    """An input breaks a promise. data: the smallest that was found."""

    def __init__(self, target: str, data: bytes, cause: BaseException | str) -> None:
        super().__init__(f"{target}: {data[:200]!r} ({len(data)} bytes): {cause!r}")
        self.data = data


@dataclass
class Outcome:
    """runs: inputs. ways: pairs of lines that were seen. found: inputs that are new in the corpus."""

    runs: int = 0
    ways: int = 0
    found: list[bytes] = field(default_factory=list)
    seconds: float = 0.0


class Ways:
    """Which ways through some modules were taken."""

    def __init__(self, modules: Iterable[ModuleType]) -> None:
        self._files = {module.__file__ for module in modules}
        self.known: set[tuple[CodeType, int, int]] = set()
        self._taken: set[tuple[CodeType, int, int]] = set()

    def follow(self, run: Callable[[bytes], None], data: bytes) -> bool:
        """Run it; whether it took a new way."""
        self._taken.clear()
        sys.settrace(self._call)
        try:
            run(data)
        finally:
            sys.settrace(None)
        new = not self._taken <= self.known
        self.known |= self._taken
        return new

    def _call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename not in self._files:
            return None
        code, taken, last = frame.f_code, self._taken, 0

        def line(frame: FrameType, event: str, _argument: Any) -> Any:
            nonlocal last
            taken.add((code, last, frame.f_lineno if event == "line" else -1))
            last = frame.f_lineno
            return line

        return line


def fuzz(target: Target, corpus: Iterable[bytes], chance: random.Random, *, seconds: float = 0.0, runs: int = 0) -> Outcome:
    """For so long, or so many inputs. Broken, with a smaller input if one breaks it too."""
    ways, outcome, began = Ways(target.modules), Outcome(), time.monotonic()
    pool: list[bytes] = []
    for data in dict.fromkeys([*corpus, *target.seeds]):
        checked(target, data, ways)
        outcome.runs += 1
        pool.append(data)
    while (time.monotonic() - began < seconds) if seconds else (outcome.runs < runs):
        if target.make is not None and chance.random() < 0.25:
            data = target.make(chance)
        else:
            # Later finds are deeper: half of the time one of the last is taken.
            data = chance.choice(pool[-24:] if chance.random() < 0.5 else pool)
        data = changed(data, chance, target.words, pool)
        outcome.runs += 1
        if checked(target, data, ways):
            pool.append(data)
            outcome.found.append(data)
    outcome.ways, outcome.seconds = len(ways.known), time.monotonic() - began
    return outcome


def checked(target: Target, data: bytes, ways: Ways) -> bool:
    """Run it; whether it took a new way. Broken."""
    began = time.process_time()
    try:
        new = ways.follow(target.run, data)
    except Exception as error:
        raise Broken(target.name, smaller(target, data, type(error)), error) from error
    if time.process_time() - began > target.slow * _TRACED:
        began = time.process_time()
        target.run(data)
        if time.process_time() - began > target.slow:
            raise Broken(target.name, data, f"takes more than {target.slow} s")
    return new


def smaller(target: Target, data: bytes, fault: type[BaseException]) -> bytes:
    """What is left of it when nothing more can be taken away without the fault."""
    deadline = time.monotonic() + 20
    size = max(1, len(data) // 2)
    while time.monotonic() < deadline:
        for at in range(0, len(data), size):
            less = data[:at] + data[at + size :]
            try:
                target.run(less)
            except fault:
                data = less
                break
            except Exception:
                continue
        else:
            if size == 1:
                break
            size //= 2
    return data


def changed(data: bytes, chance: random.Random, words: tuple[bytes, ...], pool: list[bytes]) -> bytes:
    """One to six changes."""
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 6))):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + int(chance.paretovariate(0.7)))
        match chance.randrange(9):
            case 0 if words:
                data = data[:at] + chance.choice(words) + data[at:]
            case 1 if words:
                data = data[:at] + chance.choice(words) + data[end:]
            case 2:
                data = data[:at] + data[end:]
            case 3:
                data = data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]
            case 4:
                data = data[:at] + bytes([(data[at] ^ (1 << chance.randrange(8)))]) + data[at + 1 :] if at < len(data) else data
            case 5:
                data = data[:end] + data[at:end] * chance.randint(1, 4) + data[end:]
            case 6:
                other = chance.choice(pool)
                cut = chance.randrange(len(other) + 1)
                data = data[:at] + other[cut:]
            case 7:
                size = chance.choice((1, 2, 3, 4))
                number = chance.choice((0, 1, -1, len(data), len(data) - at, 127, 128, 255, 256, 1 << 14, (1 << 14) + 1, 1 << 16))
                data = data[:at] + (number % (1 << 8 * size)).to_bytes(size, "big") + data[at + size :]
            case _:
                lines = data.split(b"\n")
                chance.shuffle(lines)
                data = b"\n".join(lines)
    return data[:MOST_BYTES]


# -- the corpus -------------------------------------------------------------------------------------------------------


def read_corpus(folder: Path) -> list[bytes]:
    """Smallest first, as it is tried."""
    if not folder.is_dir():
        return []
    return sorted((path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")), key=lambda data: (len(data), data))


def distilled(target: Target, inputs: Iterable[bytes], most: int = 400) -> list[bytes]:
    """Of these the smallest that together take every way."""
    ways = Ways(target.modules)
    smallest = sorted(dict.fromkeys(inputs), key=lambda data: (len(data), data))
    return [data for data in smallest if checked(target, data, ways)][:most]


def write_corpus(folder: Path, inputs: Iterable[bytes]) -> None:
    """Replace it: a file an input, named by its digest."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {hashlib.sha256(data).hexdigest()[:16]: data for data in inputs}
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink()
    for name, data in names.items():
        (folder / name).write_bytes(data)


def keep_broken(folder: Path, data: bytes) -> Path:
    """An input that broke a promise, as a case of the corpus from now on."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path
