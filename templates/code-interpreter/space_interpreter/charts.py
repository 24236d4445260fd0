"""What a figure of matplotlib shows, as data: lines, points, bars, slices, boxes, with their axes.

A box plot is drawn as lines and keeps no figures, so they are kept when it is drawn (`watch`). Axes of several kinds of marks are told as
the first kind of `_KINDS` that they have; several axes are a superchart.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

from space_interpreter.frames import plain

MOST_POINTS = 100_000
_BOXES = "_space_boxes"
_UNIT = re.compile(r"[(\[]([^()\[\]]+)[)\]]\s*$")


def watch() -> None:
    """Keep the figures of box plots from now on."""
    from matplotlib.axes import Axes

    drawn = Axes.bxp
    if getattr(drawn, "watched", False):
        return

    @functools.wraps(drawn)
    def bxp(self: Any, bxpstats: Any, *args: Any, **kwargs: Any) -> Any:
        figures = [dict(each) for each in bxpstats]
        setattr(self, _BOXES, [*getattr(self, _BOXES, []), *figures])
        return drawn(self, figures, *args, **kwargs)

    bxp.watched = True  # type: ignore[attr-defined]
    Axes.bxp = bxp


def of(figure: Any) -> dict[str, Any] | None:
    """The figure as data; None when it shows nothing that has a form here, or more than is sent beside a picture."""
    found = [chart for axes in figure.axes if (chart := _axes(axes)) is not None]
    if not found or _size(found) > MOST_POINTS:
        return None
    if len(found) == 1:
        return found[0]
    return {"type": "superchart", "title": figure.get_suptitle() or None, "elements": found}


def _size(charts: Iterable[dict[str, Any]]) -> int:
    return sum(len(each.get("points", ())) or 1 for chart in charts for each in chart["elements"])


def _axes(axes: Any) -> dict[str, Any] | None:
    for kind, elements, dressed in _KINDS:
        if found := elements(axes):
            return {"type": kind, "title": axes.get_title() or None} | dressed(axes) | {"elements": found}
    return None


# -- kinds of marks ------------------------------------------------------------------------------------------------------


def _slices(axes: Any) -> list[dict[str, Any]]:
    from matplotlib.patches import Wedge

    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
    return [
        {"label": _label(wedge, f"Slice {number}"), "angle": plain(abs(wedge.theta2 - wedge.theta1)), "radius": plain(wedge.r)}
        for number, wedge in enumerate(wedges)
    ]


def _boxes(axes: Any) -> list[dict[str, Any]]:
    return [
        {
            "label": str(box.get("label") or f"Box {number}"),
            "min": plain(box["whislo"]),
            "first_quartile": plain(box["q1"]),
            "median": plain(box["med"]),
            "third_quartile": plain(box["q3"]),
            "max": plain(box["whishi"]),
            "outliers": [plain(each) for each in box.get("fliers", ())],
        }
        for number, box in enumerate(getattr(axes, _BOXES, []))
    ]


def _bars(axes: Any) -> list[dict[str, Any]]:
    from matplotlib.container import BarContainer

    found = []
    for number, bars in enumerate(each for each in axes.containers if isinstance(each, BarContainer)):
        lying = bars.orientation == "horizontal"
        axis, group = axes.yaxis if lying else axes.xaxis, _label(bars, f"Group {number}")
        for bar in bars.patches:
            middle = bar.get_y() + bar.get_height() / 2 if lying else bar.get_x() + bar.get_width() / 2
            value = bar.get_width() if lying else bar.get_height()
            found.append({"label": _tick(axis, middle), "group": group, "value": plain(value)})
    return found


def _points(axes: Any) -> list[dict[str, Any]]:
    from matplotlib.collections import PathCollection

    collections = [each for each in axes.collections if isinstance(each, PathCollection)]
    return [
        {"label": _label(each, f"Scatter {number}"), "points": _pairs(axes, *zip(*each.get_offsets().tolist(), strict=True))}
        for number, each in enumerate(collections)
        if len(each.get_offsets())
    ]


def _lines(axes: Any) -> list[dict[str, Any]]:
    return [
        {"label": _label(line, f"Line {number}"), "points": _pairs(axes, line.get_xdata(orig=False), line.get_ydata(orig=False))}
        for number, line in enumerate(axes.lines)
        if len(line.get_xdata())
    ]


def _pairs(axes: Any, xs: Iterable[Any], ys: Iterable[Any]) -> list[list[Any]]:
    across, up = _reader(axes.xaxis), _reader(axes.yaxis)
    return [[across(x), up(y)] for x, y in zip(xs, ys, strict=True)]


# -- axes ----------------------------------------------------------------------------------------------------------------


def _bare(_: Any) -> dict[str, Any]:
    return {}


def _labelled(axes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        text = axis.get_label_text() or None
        unit = _UNIT.search(text or "")
        found |= {f"{name}_label": text, f"{name}_unit": unit[1] if unit else None}
    return found


def _scaled(axes: Any) -> dict[str, Any]:
    found = _labelled(axes)
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        ticks, read = [float(each) for each in axis.get_majorticklocs()], _reader(axis)
        labels = axis.get_major_formatter().format_ticks(ticks)
        found |= {f"{name}_ticks": [read(each) for each in ticks], f"{name}_tick_labels": labels, f"{name}_scale": _scale(axis)}
    return found


def _scale(axis: Any) -> str:
    converter = type(axis.get_converter()).__name__
    if "Date" in converter or "Time" in converter or "Period" in converter:
        return "datetime"
    return "categorical" if "Category" in converter else str(axis.get_scale())


def _reader(axis: Any) -> Callable[[Any], Any]:
    """What a number of the axis stands for: a time, a name, or itself."""
    scale = _scale(axis)
    if scale == "categorical":
        return lambda value: _category(axis, value)
    if scale == "datetime":
        from matplotlib.dates import num2date

        def read(value: Any) -> Any:
            try:
                return num2date(value).replace(tzinfo=None).isoformat()
            except (ValueError, OverflowError, TypeError):
                return plain(value)

        return read
    return plain


def _category(axis: Any, value: Any) -> Any:
    names = {place: name for name, place in getattr(axis.units, "_mapping", {}).items()}
    return names.get(round(float(value)), plain(value)) if float(value).is_integer() else plain(value)


def _tick(axis: Any, value: float) -> str:
    """The name of a place: what is written at it, or the number."""
    for place, label in zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=False):
        if abs(place - value) < 1e-6 and label.get_text():
            return str(label.get_text())
    read = _reader(axis)(round(float(value), 9))
    return f"{read:g}" if isinstance(read, float) else str(read)


def _label(artist: Any, otherwise: str) -> str:
    label = str(artist.get_label() or "")
    return otherwise if not label or label.startswith("_") else label


_KINDS: tuple[tuple[str, Callable[[Any], list[dict[str, Any]]], Callable[[Any], dict[str, Any]]], ...] = (
    ("pie", _slices, _bare),
    ("box_and_whisker", _boxes, _labelled),
    ("bar", _bars, _labelled),
    ("scatter", _points, _scaled),
    ("line", _lines, _scaled),
)
