"""Plots as SVG, written by hand: two kinds are all we need, and a library for them weighs more than the service."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_COLOURS = ("#2563eb", "#9ca3af", "#d97706", "#059669", "#db2777", "#7c3aed")
_STYLE = "text{font:12px sans-serif;fill:#1f2937}.t{font-weight:bold}.s{font-size:11px;fill:#6b7280}"


@dataclass(frozen=True)
class Bars:
    """One panel: a bar for each label, from zero to the median, with a line from the least to the most."""

    title: str
    values: Sequence[tuple[str, Sequence[float]]]


def bar_panels(title: str, panels: Sequence[Bars]) -> str:
    left, width, line, gap = 140, 460, 20, 44
    parts = []
    y = 56
    for panel in panels:
        top = max((max(values) for _, values in panel.values), default=1) or 1
        parts.append(f'<text class="t" x="10" y="{y}">{escape(panel.title)}</text>')
        for index, (label, values) in enumerate(panel.values):
            y += line
            middle = sorted(values)[len(values) // 2]
            scale = width / top
            colour = _COLOURS[0] if index == 0 else _COLOURS[1]
            parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{escape(label)}</text>')
            parts.append(
                f'<rect x="{left}" y="{y - 7}" width="{middle * scale:.1f}" height="14" fill="{colour}"/>'
                f'<path d="M{left + min(values) * scale:.1f} {y}H{left + max(values) * scale:.1f}" stroke="#111827"/>'
                f'<text class="s" x="{left + max(values) * scale + 6:.1f}" y="{y + 4}">{middle:,.0f}</text>'
            )
        y += gap
    return _document(title, left + width + 90, y, parts)


@dataclass(frozen=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """Lines over two logarithmic axes: what grows as its cause does is a straight line at 45 degrees or less."""

    title: str
    x_name: str
    y_name: str
    lines: Sequence[Line]


def line_charts(title: str, charts: Sequence[Chart]) -> str:
    width, height, left, gap = 420, 220, 70, 90
    parts = []
    y = 60
    for chart in charts:
        points = [point for line in chart.lines for point in line.points]
        x_low, x_high = _bounds([x for x, _ in points])
        y_low, y_high = _bounds([value for _, value in points])

        def place(x: float, value: float, top: int = y, xs: tuple[float, float] = (x_low, x_high)) -> str:
            across = (math.log10(x) - xs[0]) / (xs[1] - xs[0]) * width
            down = height - (math.log10(value) - y_low) / (y_high - y_low) * height  # noqa: B023  # used at once
            return f"{left + across:.1f} {top + down:.1f}"

        parts.append(f'<text class="t" x="10" y="{y - 14}">{escape(chart.title)}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{width}" height="{height}" fill="none" stroke="#d1d5db"/>')
        for power in range(math.ceil(x_low), math.floor(x_high) + 1):
            x = left + (power - x_low) / (x_high - x_low) * width
            parts.append(f'<text class="s" x="{x:.0f}" y="{y + height + 16}" text-anchor="middle">{10**power:,}</text>')
        for power in range(math.ceil(y_low), math.floor(y_high) + 1):
            row = y + height - (power - y_low) / (y_high - y_low) * height
            label = f"{10.0**power:,g}"
            parts.append(f'<text class="s" x="{left - 6}" y="{row + 4:.0f}" text-anchor="end">{label}</text>')
        for index, line in enumerate(chart.lines):
            colour = _COLOURS[index % len(_COLOURS)]
            path = "L".join(place(x, value) for x, value in line.points)
            parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
            where = f'x="{left + width + 10}" y="{y + 14 + index * 16}"'
            parts.append(f'<text {where} style="fill:{colour}">{escape(line.name)}</text>')
        names = f"{chart.y_name} over {chart.x_name}"
        parts.append(f'<text class="s" x="{left}" y="{y + height + 34}">{escape(names)}</text>')
        y += height + gap
    return _document(title, left + width + 200, y, parts)


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """Of the logarithm, a whole step apart at least."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return (low, high) if high > low else (low, low + 1)


def _document(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    back = '<rect width="100%" height="100%" fill="#fff"/>'
    name = f'<text class="t" x="10" y="24" style="font-size:15px">{escape(title)}</text>'
    return "\n".join([head, f"<style>{_STYLE}</style>", back, name, *parts, "</svg>", ""])
