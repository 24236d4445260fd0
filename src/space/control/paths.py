"""What a path leads to, by a look-up: with a pattern to try for each of them, every new route would slow all requests down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")
_Shape = tuple[int, ...]  # where parameters are


class Paths(Generic[T]):
    """Paths as `/v1/things/{id}`: a parameter is one whole segment, never empty. What is spelled out goes before a parameter."""

    def __init__(self, targets: Mapping[str, T]) -> None:
        self._targets: dict[tuple[str | None, ...], tuple[T, dict[str, int]]] = {}
        shapes: dict[int, set[_Shape]] = {}
        for path, target in targets.items():
            segments = path.split("/")
            names = {segment[1:-1]: at for at, segment in enumerate(segments) if segment[:1] == "{" and segment[-1:] == "}"}
            shape = tuple(names.values())
            if not all(name.isidentifier() for name in names) or any("{" in text for at, text in enumerate(segments) if at not in shape):
                raise ValueError(f"not a path of whole segments: {path!r}")
            self._targets[_masked(segments, shape)] = (target, names)
            shapes.setdefault(len(segments), set()).add(shape)
        self._shapes = {length: sorted(found, key=lambda shape: (len(shape), shape)) for length, found in shapes.items()}

    def find(self, path: str, *, decode: Callable[[str], str] = str) -> tuple[T, dict[str, str]] | None:
        """What is there, and the parameters; None where nothing is. decode: of a parameter, where the path is as it was sent."""
        segments = path.split("/")
        for shape in self._shapes.get(len(segments), ()):
            found = self._targets.get(_masked(segments, shape))
            if found is not None and all(segments[at] for at in shape):
                target, names = found
                return target, {name: decode(segments[at]) for name, at in names.items()}
        return None


def _masked(segments: list[str], shape: _Shape) -> tuple[str | None, ...]:
    masked: list[str | None] = [*segments]
    for at in shape:
        masked[at] = None
    return tuple(masked)
