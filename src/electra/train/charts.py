"""Line charts as inline SVG, with values under the pointer: no library, no other file.

`chart` returns the HTML of one chart; a page needs `STYLE` and `SCRIPT` once.
"""

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 10, 32
MAX_POINTS = 300
"""Points of a curve; longer ones are thinned out."""
COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#db2777", "#0891b2", "#a16207", "#64748b")
STYLE = Path(__file__).with_name("charts.css").read_text(encoding="utf-8")
SCRIPT = Path(__file__).with_name("charts.js").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A line of a chart."""

    label: str
    steps: Sequence[int]
    values: Sequence[float]
    colour: str
    faint: bool = False
    """Drawn thin, as the noisy curve of training beside the one of held-out text."""
    dash: str = ""


def chart(title: str, curves: Sequence[Curve]) -> str:
    """Return a figure with the curves; those without points are left out."""
    curves = [curve for curve in map(_thin, curves) if curve.steps]
    if not curves:
        return ""
    first, last = min(c.steps[0] for c in curves), max(c.steps[-1] for c in curves)
    x_scale = [first, last] if last > first else [first - 1, first + 1]
    y_ticks = ticks(min(min(c.values) for c in curves), max(max(c.values) for c in curves))
    xs = {step: _x(step, x_scale) for c in curves for step in c.steps}
    parts = [_grid(x_scale, y_ticks)]
    data = []
    for curve in curves:
        ys = [_y(value, y_ticks) for value in curve.values]
        points = [(xs[step], y) for step, y in zip(curve.steps, ys, strict=True)]
        parts.append(_line(curve, points))
        data.append(
            {
                "label": curve.label,
                "colour": curve.colour,
                "points": [
                    [step, number(value), x, y]
                    for step, value, (x, y) in zip(curve.steps, curve.values, points, strict=True)
                ],
            }
        )
    legend = "".join(
        f'<li><svg viewBox="0 0 26 8">{_line(c, [(0, 4), (26, 4)])}</svg>'
        f"{html.escape(c.label)}</li>"
        for c in curves
        if c.label
    )
    # The quotes are escaped as well, so that the attribute cannot end early.
    attribute = html.escape(json.dumps(data, ensure_ascii=False, separators=(",", ":")))
    return (
        f'<figure class="chart"><figcaption>{html.escape(title)}</figcaption>'
        f'<ul class="chart-legend">{legend}</ul>'
        f'<div class="chart-plot"><svg viewBox="0 0 {WIDTH} {HEIGHT}" tabindex="0" role="img" '
        f'aria-label="{html.escape(title)}" data-curves="{attribute}">{"".join(parts)}'
        f'<line class="chart-cursor" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/></svg>'
        f'<div class="chart-values" role="status"></div></div></figure>'
    )


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers, evenly spaced, from at most `low` to at least `high`."""
    if high <= low:
        low, high = low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    spacing = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * (1 - 1e-9))
    first, last = math.floor(low / spacing + 1e-9), math.ceil(high / spacing - 1e-9)
    return [i * spacing for i in range(first, last + 1)]


def number(value: float) -> str:
    """A value with four significant digits, 12,300 or 1.2e-05."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _thin(curve: Curve) -> Curve:
    """Keep the finite points, and at most `MAX_POINTS` of them, the last one included."""
    kept = [(s, v) for s, v in zip(curve.steps, curve.values, strict=True) if math.isfinite(v)]
    stride = -(-len(kept) // MAX_POINTS) or 1
    kept = kept[::-1][::stride][::-1]
    return Curve(
        label=curve.label,
        steps=[step for step, _ in kept],
        values=[value for _, value in kept],
        colour=curve.colour,
        faint=curve.faint,
        dash=curve.dash,
    )


def _x(step: float, scale: Sequence[float]) -> float:
    share = (step - scale[0]) / (scale[-1] - scale[0])
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def _y(value: float, scale: list[float]) -> float:
    share = (value - scale[0]) / (scale[-1] - scale[0])
    return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def _grid(x_scale: Sequence[float], y_ticks: list[float]) -> str:
    lines = []
    for tick in y_ticks:
        y = _y(tick, y_ticks)
        lines.append(
            f'<line class="chart-grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
            f'<text x="{LEFT - 7}" y="{y + 4}" text-anchor="end">{_tick(tick)}</text>'
        )
    for tick in ticks(x_scale[0], x_scale[-1]):
        if x_scale[0] <= tick <= x_scale[-1]:
            x = _x(tick, x_scale)
            anchor = "end" if x > WIDTH - 40 else "middle"
            lines.append(
                f'<text x="{x}" y="{HEIGHT - 8}" text-anchor="{anchor}">{_tick(tick)}</text>'
            )
    return "".join(lines)


def _tick(value: float) -> str:
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == ' k' else size):g}{unit}"
    return f"{float(f'{value:.6g}'):g}"


def _line(curve: Curve, points: Sequence[tuple[float, float]]) -> str:
    if len(points) == 1:
        (x, y), *_ = points
        return f'<circle cx="{x}" cy="{y}" r="4" fill="{curve.colour}"/>'
    path = " ".join(f"{x},{y}" for x, y in points)
    dash = f' stroke-dasharray="{curve.dash}"' if curve.dash else ""
    kind = "chart-line faint" if curve.faint else "chart-line"
    return f'<polyline class="{kind}" points="{path}" stroke="{curve.colour}"{dash}/>'
