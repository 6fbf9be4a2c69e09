"""A curve as a small SVG: measured points, and a dashed line where theory expects them.

Given numbers and words, gives text. Readable on light and dark grounds, without scripts or fonts of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDE, HIGH, LEFT, BOTTOM, TOP, RIGHT = 480, 280, 56, 40, 28, 16
INK, LINE, THEORY = "#71717a", "#2563eb", "#d97706"

Points = Sequence[tuple[float, float]]


def curve(title: str, x_title: str, y_title: str, points: Points, theory: Points = ()) -> str:
    """An SVG of one curve. points: measured (x, y); theory: what is expected at some x."""
    both = [*points, *theory]
    most_x, most_y = max(x for x, _ in both) or 1.0, (max(y for _, y in both) or 1.0) * 1.08

    def at(x: float, y: float) -> str:
        across = LEFT + x / most_x * (WIDE - LEFT - RIGHT)
        return f"{across:.1f},{HIGH - BOTTOM - y / most_y * (HIGH - BOTTOM - TOP):.1f}"

    def text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
        return (
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}"{more}>{escape(words)}</text>'
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}"'
        f' font-family="sans-serif" font-size="11" role="img" aria-label="{escape(title, quote=True)}">',
        f'<path d="M{at(0, most_y)} L{at(0, 0)} L{at(most_x, 0)}" fill="none" stroke="{INK}"/>',
        text(LEFT, 16, title, "start", ' font-size="13"'),
        text((LEFT + WIDE - RIGHT) / 2, HIGH - 6, x_title),
        text(14, (TOP + HIGH - BOTTOM) / 2, y_title, "middle", f' transform="rotate(-90 14 {HIGH / 2:.0f})"'),
    ]
    for share in (0.0, 0.5, 1.0):
        x, y = share * most_x, share * most_y
        parts.append(text(float(at(x, 0).split(",")[0]), HIGH - BOTTOM + 14, _short(x)))
        parts.append(text(LEFT - 6, float(at(0, y).split(",")[1]) + 4, _short(y), "end"))
    if theory:
        path = " L".join(at(x, y) for x, y in theory)
        parts.append(f'<path d="M{path}" fill="none" stroke="{THEORY}" stroke-dasharray="5 4"/>')
    path = " L".join(at(x, y) for x, y in points)
    parts.append(f'<path d="M{path}" fill="none" stroke="{LINE}" stroke-width="2"/>')
    for x, y in points:
        across, down = at(x, y).split(",")
        parts.append(f'<circle cx="{across}" cy="{down}" r="3" fill="{LINE}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def line(points: Points) -> tuple[float, float, float]:
    """Slope, intercept and r² of the straight line nearest to some points (least squares)."""
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    across = sum((x - mean_x) ** 2 for x, _ in points)
    if across == 0:
        return 0.0, mean_y, 0.0
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / across
    off = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    whole = sum((y - mean_y) ** 2 for _, y in points)
    return slope, mean_y - slope * mean_x, 1 - off / whole if whole else 1.0


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"
