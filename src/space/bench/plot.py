"""One SVG a section: each series of samples as a strip with its middle half and median; what grew with a population, as lines over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from space.bench.figures import median, quarters

_WIDTH, _ROW, _LEFT, _RIGHT, _TOP = 860, 30, 250, 120, 46
_FONT = 'font-family="sans-serif" font-size="12"'
_POPULATION = "population"
_TALL = 110


def svg(section: str, samples: Mapping[str, Sequence[float]]) -> str:
    """The picture, whole and by itself. Every series has a scale of its own, from 0 to its largest sample, which is written beside it."""
    population = samples.get(_POPULATION, ())
    shown = {name: series for name, series in samples.items() if series and name != _POPULATION}
    grown = {name: series for name, series in shown.items() if population and len(series) == len(population)}
    strips = {name: series for name, series in shown.items() if name not in grown}
    height = _TOP + _ROW * len(strips) + _TALL * len(grown) + 16
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="16" y="26" font-size="16" font-weight="bold">{escape(section)}</text>',
    ]
    y = _TOP
    for name, series in strips.items():
        parts.append(_strip(name, series, y))
        y += _ROW
    for name, series in grown.items():
        parts.append(_line(name, population, series, y))
        y += _TALL
    return "\n".join([*parts, "</svg>"]) + "\n"


def _strip(name: str, series: Sequence[float], y: int) -> str:
    span = _WIDTH - _LEFT - _RIGHT
    largest = max(0.0, *series)
    scale = span / (largest or 1.0)
    low, high = quarters(series)
    middle = median(series)
    dots = "".join(
        f'<circle cx="{_LEFT + max(one, 0.0) * scale:.1f}" cy="{y + 10}" r="2" fill="#356" fill-opacity="0.35"/>' for one in series
    )
    at, box, width = _LEFT + middle * scale, _LEFT + low * scale, max((high - low) * scale, 1)
    return (
        f'<text x="{_LEFT - 10}" y="{y + 14}" text-anchor="end">{escape(name)}</text>'
        f'<line x1="{_LEFT}" x2="{_LEFT + span}" y1="{y + 10}" y2="{y + 10}" stroke="#ddd"/>'
        f'<rect x="{box:.1f}" y="{y + 3}" width="{width:.1f}" height="14" fill="#8bc" fill-opacity="0.6"/>'
        f'{dots}<line x1="{at:.1f}" x2="{at:.1f}" y1="{y}" y2="{y + 20}" stroke="#c30" stroke-width="2"/>'
        f'<text x="{_WIDTH - _RIGHT + 8}" y="{y + 14}">{middle:.4g} of {largest:.4g}</text>'
    )


def _line(name: str, population: Sequence[float], series: Sequence[float], y: int) -> str:
    span, tall = _WIDTH - _LEFT - _RIGHT, _TALL - 36
    across, up = span / (max(population) or 1.0), tall / (max(series) or 1.0)
    points = " ".join(f"{_LEFT + x * across:.1f},{y + tall - value * up:.1f}" for x, value in zip(population, series, strict=True))
    return (
        f'<text x="{_LEFT - 10}" y="{y + tall // 2}" text-anchor="end">{escape(name)}</text>'
        f'<line x1="{_LEFT}" x2="{_LEFT + span}" y1="{y + tall}" y2="{y + tall}" stroke="#999"/>'
        f'<line x1="{_LEFT}" x2="{_LEFT}" y1="{y}" y2="{y + tall}" stroke="#999"/>'
        f'<polyline points="{points}" fill="none" stroke="#c30" stroke-width="2"/>'
        f'<text x="{_LEFT + span}" y="{y + tall + 14}" text-anchor="end">{max(population):.0f}</text>'
        f'<text x="{_WIDTH - _RIGHT + 8}" y="{y + 10}">{series[-1]:.4g} of {max(series):.4g}</text>'
    )
