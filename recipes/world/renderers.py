"""How one object is drawn: outlines and pen strokes, by one steady hand or by many freer ones.

Given a Pillow canvas, the name of a figure (a shape or a digit), its position, size and colour. The
steady hand varies little and draws visitors' examples and held-out pictures. A free hand bends,
slants and rounds the same figures and knows other forms of them; the vision tower learns from those
too. Knows no scenes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

Points = Sequence[tuple[float, float]]
"""In [-1, 1] around the middle of the figure; y downwards."""

_POINTING = (0, 0, 0.5, 1, 1.5)
"""Directions of arrows, in half turns from the right."""


Hand = Callable[[tuple[float, float]], tuple[float, float]]
"""Maps a point to where a hand that slants, bends and turns puts it."""


class Spot(NamedTuple):
    """Where a figure is drawn: radius `r` pixels around (x, y) of a canvas, in one colour."""

    canvas: ImageDraw.ImageDraw
    x: float
    y: float
    r: float
    fill: tuple[int, int, int]

    def placed(self, points: Points, hand: Hand) -> list[tuple[float, float]]:
        """Return the points on the canvas."""
        return [(self.x + self.r * px, self.y + self.r * py) for px, py in map(hand, points)]

    def polygon(self, points: Points, hand: Hand) -> None:
        self.canvas.polygon(self.placed(points, hand), self.fill)

    def stroke(self, points: Points, hand: Hand, width: int) -> None:
        """A line of one width with round ends."""
        placed = self.placed(points, hand)
        self.canvas.line(placed, self.fill, width, "curve")
        r = width / 2
        for px, py in placed[:: len(placed) - 1]:
            self.canvas.ellipse([px - r, py - r, px + r, py + r], self.fill)


@lru_cache(maxsize=64)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


# ---------------------------------------------------------------- outlines


def _arc(
    cx: float, cy: float, rx: float, ry: float, start: float, stop: float
) -> list[tuple[float, float]]:
    """Points of an ellipse's arc; angles in turns, clockwise from the right."""
    steps = [2 * math.pi * (start + (stop - start) * i / 12) for i in range(13)]
    return [(cx + rx * math.cos(a), cy + ry * math.sin(a)) for a in steps]


def _star(inner: float, outer: float = 1.08) -> list[tuple[float, float]]:
    turns = [(i * math.pi / 5, (outer, inner)[i % 2]) for i in range(10)]
    return [(r * math.sin(a), -r * math.cos(a)) for a, r in turns]


def _moon(bite: float, inner: float) -> list[tuple[float, float]]:
    """A disc of radius 1 without the disc of radius `inner` around (bite, 0)."""
    x = (1 + bite * bite - inner * inner) / (2 * bite)  # where the two circles cross
    outer, cut = math.acos(x), math.acos((x - bite) / inner)
    around = [outer + (2 * math.pi - 2 * outer) * i / 16 for i in range(17)]
    back = [2 * math.pi - cut - (2 * math.pi - 2 * cut) * i / 16 for i in range(17)]
    edge = [(bite + inner * math.cos(a), inner * math.sin(a)) for a in back]
    return [(math.cos(a), math.sin(a)) for a in around] + edge


def _arrow(shaft: float, neck: float, head: float) -> list[tuple[float, float]]:
    half = [(-1, -shaft), (neck, -shaft), (neck, -head)]
    return [*half, (1, 0), *((x, -y) for x, y in reversed(half))]


def _plus(arm: float) -> list[tuple[float, float]]:
    quarter = [(-arm, -arm), (-arm, -1.0), (arm, -1.0)]
    return [
        (x * c - y * s, x * s + y * c)
        for c, s in ((1, 0), (0, 1), (-1, 0), (0, -1))
        for x, y in quarter
    ]


def _heart() -> list[tuple[float, float]]:
    def height(a: float) -> float:
        return 13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a)

    steps = [2 * math.pi * i / 40 for i in range(40)]
    return [(math.sin(a) ** 3, -height(a) / 16.5) for a in steps]


def _lobed_heart(lobe: float, tip: float) -> list[tuple[float, float]]:
    """Two half discs of radius `lobe` side by side, and straight lines down to the tip."""
    return [
        *_arc(-lobe, -0.4, lobe, lobe, 0.45, 1.0),
        *_arc(lobe, -0.4, lobe, lobe, 0.5, 1.05),
        (0.0, tip),
    ]


_OUTLINES: dict[str, list[tuple[float, float]]] = {
    "square": [(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)],
    "triangle": [(0, -1), (1, 0.85), (-1, 0.85)],
    "diamond": [(0, -1.1), (0.75, 0), (0, 1.1), (-0.75, 0)],
    "heart": _heart(),
}

# Digits as a pen writes them: lines through points.
_PEN: tuple[list[list[tuple[float, float]]], ...] = (
    [_arc(0, 0, 0.6, 1, 0, 1)],
    [[(-0.35, -0.6), (0.1, -1), (0.1, 1)]],
    [[*_arc(0, -0.42, 0.58, 0.58, 0.5, 1.08), (-0.62, 1), (0.62, 1)]],
    [[*_arc(0, -0.5, 0.52, 0.5, 0.55, 1.25), *_arc(0, 0.48, 0.6, 0.52, 0.75, 1.45)]],
    [[(0.28, 1), (0.28, -1), (-0.65, 0.4), (0.65, 0.4)]],
    [[(0.5, -1), (-0.42, -1), (-0.5, -0.08), *_arc(0, 0.36, 0.6, 0.64, 0.64, 1.42)]],
    [[(0.42, -0.95), *_arc(0.3, 0.3, 0.9, 1.1, 0.7, 0.5)[4:], *_arc(0, 0.42, 0.6, 0.58, 0.5, 1.5)]],
    [[(-0.6, -1), (0.6, -1), (-0.2, 1)]],
    [_arc(0, -0.5, 0.48, 0.48, 0, 1), _arc(0, 0.48, 0.6, 0.52, 0, 1)],
    [[(-0.42, 0.95), *_arc(-0.3, -0.3, 0.9, 1.1, 0.2, 0.0)[4:], *_arc(0, -0.42, 0.6, 0.58, 0, 1)]],
)


def draw(spot: Spot, figure: str, rng: random.Random | None = None, free: bool = False) -> None:
    """Draw a shape or a digit; without `rng` always the same."""
    if rng and free:
        return _freely(spot, figure, rng)
    canvas, x, y, r, fill = spot
    pick = rng.uniform if rng else lambda a, b: (a + b) / 2
    tilt = pick(-0.16, 0.16)
    if figure == "arrow" and rng:
        tilt += rng.choice(_POINTING) * math.pi
    flip = -1 if figure == "moon" and rng and rng.random() < 0.3 else 1
    # People differ: a little wider, a little lower.
    sx, sy = flip * pick(0.85, 1.1), pick(0.85, 1.1)
    c, s = math.cos(tilt), math.sin(tilt)

    def hand(p: tuple[float, float]) -> tuple[float, float]:
        px, py = p
        return sx * px * c - sy * py * s, sx * px * s + sy * py * c

    if figure == "circle":
        canvas.ellipse([x - r, y - r, x + r, y + r], fill)
    elif figure == "ring":
        width = max(2, round(pick(0.27, 0.42) * r))
        canvas.ellipse([x - r, y - r, x + r, y + r], outline=fill, width=width)
    elif figure == "cross":
        arm = pick(0.26, 0.38)
        spot.polygon([(-arm, -1), (arm, -1), (arm, 1), (-arm, 1)], hand)
        spot.polygon([(-1, -arm), (1, -arm), (1, arm), (-1, arm)], hand)
    elif figure == "star":
        spot.polygon(_star(pick(0.36, 0.52)), hand)
    elif figure == "moon":
        spot.polygon(_moon(pick(0.40, 0.55), pick(0.74, 0.86)), hand)
    elif figure == "arrow":
        spot.polygon(_arrow(pick(0.2, 0.36), pick(0.0, 0.3), pick(0.68, 0.95)), hand)
    elif figure in _OUTLINES:
        spot.polygon(_OUTLINES[figure], hand)
    elif rng and rng.random() < 0.5:
        width = max(2, round(pick(0.2, 0.5) * r))
        for line in _PEN[int(figure)]:
            spot.stroke(line, hand, width)
    else:
        bold = max(0, round(pick(0.0, 0.16) * r))
        font = _font(max(6, round(2.5 * r)))
        canvas.text((x, y), figure, fill, font, "mm", stroke_width=bold, stroke_fill=fill)


# ---------------------------------------------------------------- outlines of other styles


def _other_outline(figure: str, pick: Callable[[float, float], float]) -> list[tuple[float, float]]:
    """Return the outline of a filled shape in one of the forms that people use."""
    if figure == "square":
        w, h = pick(0.72, 0.95), pick(0.72, 0.95)
        return [(-w, -h), (w, -h), (w, h), (-w, h)]
    if figure == "triangle":
        top, base, half = pick(-1.1, -0.8), pick(0.4, 0.95), pick(0.75, 1.05)
        return [(0, top), (half, base), (-half, base)]
    if figure == "diamond":
        w, h = pick(0.6, 1.05), pick(0.95, 1.15)
        return [(0, -h), (w, 0), (0, h), (-w, 0)]
    if figure == "heart":
        return _heart() if pick(0, 1) < 0.4 else _lobed_heart(pick(0.42, 0.56), pick(0.85, 1.05))
    if figure == "star":
        return _star(pick(0.3, 0.58), pick(0.95, 1.15))
    if figure == "cross":
        return _plus(pick(0.18, 0.42))
    if figure == "moon":
        bite = pick(0.3, 0.7)
        return _moon(bite, pick(max(0.72, 1.06 - bite), 0.97))
    return _arrow(pick(0.12, 0.42), pick(-0.2, 0.5), pick(0.5, 1.0))


def _other_strokes(digit: int, rng: random.Random) -> list[list[tuple[float, float]]]:
    """Return a digit's pen strokes in one of the forms that people write."""
    u, coin = rng.uniform, rng.random() < 0.5
    if digit == 0:
        return [_arc(0, 0, u(0.42, 0.75), 1, 0, 1)]
    if digit == 1:
        x, flag = u(-0.05, 0.2), [(u(-0.6, -0.2), u(-0.75, -0.35))] if rng.random() < 0.8 else []
        foot: list[list[tuple[float, float]]] = []
        if rng.random() < 0.35:
            foot = [[(x - u(0.25, 0.5), 1), (x + u(0.25, 0.5), 1)]]
        return [[*flag, (x, -1), (x, 1)], *foot]
    if digit == 2:
        w, base = u(0.48, 0.66), u(0.5, 0.7)
        return [[*_arc(0, -0.42, w, 0.58, u(0.48, 0.56), u(1.02, 1.12)), (-base, 1), (base, 1)]]
    if digit == 3:
        low = _arc(0, 0.42, u(0.5, 0.65), 0.58, u(0.68, 0.78), u(1.38, 1.48))
        if coin:
            return [[(-0.5, -1), (0.5, -1), (u(-0.15, 0.1), -0.2), *low]]
        return [[*_arc(0, -0.5, u(0.42, 0.56), 0.5, u(0.52, 0.6), 1.25), *low]]
    if digit == 4:
        x, bar = u(0.15, 0.4), u(0.2, 0.55)
        if coin:
            return [[(x, 1), (x, -1), (u(-0.75, -0.5), bar), (u(0.5, 0.75), bar)]]
        return [
            [(u(-0.4, -0.1), -1), (-0.6, bar), (u(0.5, 0.75), bar)],
            [(x, u(-0.6, -0.1)), (x, 1)],
        ]
    if digit == 5:
        left = u(-0.5, -0.35)
        bowl = _arc(-0.02, 0.36, u(0.52, 0.66), 0.64, u(0.6, 0.68), u(1.36, 1.46))
        return [[(u(0.4, 0.6), -1), (left, -1), (left - u(0, 0.1), u(-0.15, 0.05)), *bowl]]
    if digit in (6, 9):
        w, top = u(0.48, 0.64), u(0.36, 0.46)
        loop = _arc(0, top, w, 1 - top, 0.5, 1.5)
        if coin:
            line = [[(u(0.1, 0.4), -1), (-0.9 * w, top - 0.25), *loop]]
        else:
            stem = _arc(0.3, 0.3, 0.3 + w, 1.25, u(0.68, 0.72), 0.5)
            line = [[(u(0.3, 0.5), u(-0.98, -0.8)), *stem, *loop]]
        return line if digit == 6 else [[(-a, -b) for a, b in one] for one in line]
    if digit == 7:
        across = [[(-0.4, 0.05), (0.45, 0.05)]] if rng.random() < 0.2 else []
        knee = [(u(0.0, 0.2), -0.1)] if coin else []
        return [[(u(-0.65, -0.5), -1), (u(0.5, 0.65), -1), *knee, (u(-0.35, 0.0), 1)], *across]
    waist, upper, lower = u(-0.15, 0.05), u(0.38, 0.55), u(0.5, 0.65)
    return [
        _arc(0, (waist - 1) / 2, upper, (1 + waist) / 2, 0, 1),
        _arc(0, (waist + 1) / 2, lower, (1 - waist) / 2, 0, 1),
    ]


def _freely(spot: Spot, figure: str, rng: random.Random) -> None:
    """Draw the figure in any of its forms, bent by its own hand."""
    r, u, hand = spot.r, rng.uniform, _bend(figure, rng)
    if figure == "circle":
        spot.polygon(_arc(0, 0, 1, 1, 0, 0.5) + _arc(0, 0, 1, 1, 0.5, 1), hand)
    elif figure == "ring":
        width = max(2, round(u(0.18, 0.5) * r))
        spot.stroke(_arc(0, 0, 0.8, 0.8, 0, 0.5) + _arc(0, 0, 0.8, 0.8, 0.5, 1), hand, width)
    elif not figure.isdigit():
        outline = _other_outline(figure, u)
        soft = u(0.0, 0.22) if rng.random() < 0.4 else 0.0
        spot.polygon(_dense(_rounded(outline, soft) if soft else outline, closed=True), hand)
    elif rng.random() < 0.7:
        strokes = [_dense(line) for line in _other_strokes(int(figure), rng)]
        if rng.random() < 0.6:
            width = max(1, round(u(0.14, 0.54) * r))
            for line in strokes:
                spot.stroke(line, hand, width)
        else:
            for line in strokes:
                broad, thin, angle = u(0.25, 0.65) * r, u(0.06, 0.2) * r, u(-0.9, 0.5)
                _with_a_nib(spot, spot.placed(line, hand), broad, thin, angle)
    else:
        _typed(spot, figure, rng)


def _bend(figure: str, rng: random.Random) -> Hand:
    """Return a hand: how wide, slanted, tapering, wavy and turned it draws."""
    u = rng.uniform
    tilt, sx, sy = u(-0.2, 0.2), u(0.8, 1.12), u(0.85, 1.12)
    if figure == "arrow":
        tilt += rng.choice(_POINTING) * math.pi
    if figure == "moon":
        sx *= -1 if rng.random() < 0.4 else 1
        tilt += u(-0.5, 0.5)
    lean, taper = u(-0.2, 0.2), u(-0.12, 0.12)
    wave, fx, fy, ax, ay = u(0, 0.07), u(1, 3), u(1, 3), u(0, 6.3), u(0, 6.3)
    c, s = math.cos(tilt), math.sin(tilt)

    def moved(p: tuple[float, float]) -> tuple[float, float]:
        px, py = p
        px, py = px + wave * math.sin(fx * py + ax), py + wave * math.sin(fy * px + ay)
        px, py = sx * px * (1 + taper * py) + lean * py, sy * py
        return px * c - py * s, px * s + py * c

    return moved


def _dense(points: Points, closed: bool = False) -> list[tuple[float, float]]:
    """Return the same lines through more points, so that they can be bent."""
    ends = [*points[1:], points[0]] if closed else points[1:]
    out = [
        (a + (c - a) * i / 4, b + (d - b) * i / 4)
        for (a, b), (c, d) in zip(points, ends, strict=False)
        for i in range(4)
    ]
    return out if closed else [*out, points[-1]]


def _rounded(points: Points, share: float) -> list[tuple[float, float]]:
    """Cut corners twice, by this share of the adjacent edges."""
    for cut in (share, 0.25):
        points = [
            (a + (c - a) * t, b + (d - b) * t)
            for (a, b), (c, d) in zip(points, [*points[1:], points[0]], strict=True)
            for t in (cut, 1 - cut)
        ]
    return list(points)


def _with_a_nib(spot: Spot, points: Points, broad: float, thin: float, angle: float) -> None:
    """Draw a line with a broad nib held at an angle: thick across the nib, thin along it."""
    c, s = math.cos(angle), math.sin(angle)
    sides = ((1, 1), (1, -1), (-1, -1), (-1, 1), (1, 1))
    corners = [
        (i * broad / 2 * c - j * thin / 2 * s, i * broad / 2 * s + j * thin / 2 * c)
        for i, j in sides
    ]
    for (px, py), (qx, qy) in zip(points, points[1:], strict=False):
        for (ux, uy), (vx, vy) in zip(corners, corners[1:], strict=False):
            swept = [(px + ux, py + uy), (px + vx, py + vy), (qx + vx, qy + vy), (qx + ux, qy + uy)]
            spot.canvas.polygon(swept, spot.fill)


def _typed(spot: Spot, digit: str, rng: random.Random) -> None:
    """Draw the font's digit, wider or narrower, slanted and turned."""
    canvas, x, y, r, fill = spot
    u, side = rng.uniform, max(8, round(4 * r))
    mask = Image.new("L", (side, side))
    font, bold = _font(max(6, round(2.5 * r))), max(0, round(u(0.0, 0.18) * r))
    ImageDraw.Draw(mask).text((side / 2, side / 2), digit, 255, font, "mm", stroke_width=bold)
    wide, high, lean, tilt = u(0.7, 1.15), u(0.85, 1.1), u(-0.25, 0.25), u(-0.16, 0.16)
    c, s = math.cos(tilt), math.sin(tilt)
    a, b, d, e = c / wide - lean * s, s / wide + lean * c, -s / high, c / high
    half = side / 2
    data = (a, b, half - a * half - b * half, d, e, half - d * half - e * half)
    mask = mask.transform(mask.size, Image.Transform.AFFINE, data, Image.Resampling.BILINEAR)
    canvas.bitmap((x - half, y - half), mask, fill)  # type: ignore[arg-type]  # takes floats
