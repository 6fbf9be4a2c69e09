"""The pocket world: scenes, bar charts and clips, as data and as pictures.

A scene is a ground and objects, each with kind, colour, size and one of nine places; `draw` turns
it into a picture of any size. With a random generator `draw` also varies what a renderer would vary
(hue, edges, texture); without one it is clean. Knows pictures only: no tokens, no models.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from recipes.world import renderers

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 40, 40),
    "green": (40, 160, 60),
    "blue": (45, 90, 220),
    "yellow": (245, 210, 30),
    "purple": (130, 50, 170),
    "orange": (240, 125, 20),
    "pink": (245, 130, 190),
    "cyan": (40, 200, 210),
}
GROUNDS: dict[str, tuple[int, int, int]] = {
    "white": (250, 250, 250),
    "gray": (190, 190, 190),
    "beige": (240, 225, 195),
    "navy": (20, 25, 60),
    "black": (12, 12, 12),
}
SHAPES = (
    *("circle", "square", "triangle", "star", "cross"),
    *("diamond", "ring", "heart", "moon", "arrow"),
)
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
DIGITS = ("zero", *NUMBERS[1:])
KINDS = SHAPES + tuple(f"digit {d}" for d in DIGITS)
SIZES = ("small", "large")
PLACES = (
    *("top left", "top middle", "top right"),
    *("middle left", "center", "middle right"),
    *("bottom left", "bottom middle", "bottom right"),
)
RADIUS = {"small": (0.060, 0.085), "large": (0.120, 0.150)}  # of the shorter side
MAX_BAR = 9


@dataclass(frozen=True)
class Thing:
    """One object. `dx, dy` shift it inside its cell and `radius` overrides its size (shares of the
    shorter side).
    """

    kind: str
    colour: str
    size: str
    place: int
    dx: float = 0.0
    dy: float = 0.0
    radius: float | None = None

    @property
    def name(self) -> str:
        return f"{self.colour} {self.kind}"


@dataclass(frozen=True)
class Scene:
    """Objects in reading order on a ground."""

    things: tuple[Thing, ...]
    ground: str = "white"

    def at(self, place: int) -> Thing | None:
        """The object at one of the nine places (0 = top left), or None."""
        return next((t for t in self.things if t.place == place), None)


@dataclass(frozen=True)
class Chart:
    """A bar chart: (colour, value 1..9) from left to right."""

    bars: tuple[tuple[str, int], ...]
    ground: str = "white"


@dataclass(frozen=True)
class Clip:
    """Frames in order, what happens in them, and to which object."""

    frames: tuple[Scene, ...]
    event: str
    actor: Thing
    detail: dict[str, Any] = field(default_factory=dict)


def arranged(things: Iterable[Thing]) -> tuple[Thing, ...]:
    """Objects in reading order."""
    return tuple(sorted(things, key=lambda t: t.place))


def random_thing(rng: random.Random, place: int, spread: float = 1.0, **fixed: str) -> Thing:
    """One object at `place`; `spread` scales how far it may sit from the middle of its cell."""
    size = fixed.get("size") or rng.choice(SIZES)
    room = 0.045 if size == "small" else 0.02
    kind = fixed.get("kind")
    if not kind:
        kind = rng.choice(SHAPES) if rng.random() < 0.72 else "digit " + rng.choice(DIGITS)
    dx, dy = (rng.uniform(-room, room) * spread for _ in range(2))
    colour = fixed.get("colour") or rng.choice(list(COLOURS))
    return Thing(kind, colour, size, place, dx, dy, rng.uniform(*RADIUS[size]))


def random_scene(rng: random.Random, n: int, distinct: bool = True) -> Scene:
    """`n` objects at different places; `distinct` forbids two of the same colour and kind."""
    spread = 2.0 if rng.random() < 0.12 else 1.0
    things: list[Thing] = []
    for place in sorted(rng.sample(range(9), n)):
        thing = random_thing(rng, place, spread)
        while distinct and any(t.name == thing.name for t in things):
            thing = random_thing(rng, place, spread)
        things.append(thing)
    return Scene(tuple(things), rng.choice(list(GROUNDS)))


def random_chart(rng: random.Random, n: int) -> Chart:
    """A chart of `n` bars of different colours."""
    bars = tuple((colour, rng.randint(1, MAX_BAR)) for colour in rng.sample(list(COLOURS), n))
    return Chart(bars, rng.choice(["white", "gray", "beige", "black"]))


# ---------------------------------------------------------------- drawing pictures


def _shade(
    colour: tuple[int, int, int], rng: random.Random | None, amount: float
) -> tuple[int, int, int]:
    if not rng:
        return colour
    light = rng.gauss(0, amount)
    r, g, b = (int(min(255, max(0, c + light + rng.gauss(0, amount * 0.7)))) for c in colour)
    return r, g, b


def _texture(rng: random.Random, w: int, h: int) -> np.ndarray:
    """A faint pattern [h, w, 1] to add to a ground."""
    y, x = np.mgrid[0:h, 0:w].astype(np.float32)
    period, kind = rng.uniform(6, 22), rng.randrange(4)
    if kind == 0:
        a = rng.uniform(0, math.pi)
        p = np.sin((x * math.cos(a) + y * math.sin(a)) * 2 * math.pi / period)
    elif kind == 1:
        p = np.sign(np.sin(x * 2 * math.pi / period) * np.sin(y * 2 * math.pi / period))
    elif kind == 2:
        p = (x / w - 0.5) * rng.choice([-2, 2]) + (y / h - 0.5) * rng.choice([-2, 2])
    else:
        p = np.random.default_rng(rng.getrandbits(32)).standard_normal((h, w)).astype(np.float32)
    return (p * rng.uniform(2, 9))[..., None]


def _figure(kind: str) -> str:
    """The name of an outline: a shape, or the digit itself."""
    return str(DIGITS.index(kind.split()[1])) if kind.startswith("digit") else kind


def draw(
    scene: Scene | Chart,
    size: tuple[int, int] = (384, 384),
    rng: random.Random | None = None,
    free: bool = False,
) -> Image.Image:
    """Draw at `size` (width, height) in pixels. With `rng` colours, outlines and ground vary a
    little; with `free` outlines vary as different people draw them.
    """
    w, h = size
    k = 2  # drawn at twice the size and averaged down: smooth edges
    ground = _shade(GROUNDS[scene.ground], rng, 3)
    image = Image.new("RGB", (w * k, h * k), ground)
    if rng and rng.random() < 0.35:
        plain = np.full((h, w, 3), ground, np.float32) + _texture(rng, w, h)
        image = Image.fromarray(plain.clip(0, 255).astype(np.uint8))
        image = image.resize((w * k, h * k), Image.Resampling.BILINEAR)
    canvas = ImageDraw.Draw(image)
    if isinstance(scene, Chart):
        _draw_chart(canvas, scene, w * k, h * k, ground, rng)
    else:
        short = min(w, h) * k
        for t in scene.things:
            x = (t.place % 3 + 0.5) * w * k / 3 + t.dx * short
            y = (t.place // 3 + 0.5) * h * k / 3 + t.dy * short
            radius = t.radius or sum(RADIUS[t.size]) / 2
            fill = _shade(COLOURS[t.colour], rng, 9)
            spot = renderers.Spot(canvas, x, y, radius * short, fill)
            renderers.draw(spot, _figure(t.kind), rng, free)
    return image.resize((w, h), Image.Resampling.BOX)


def _draw_chart(
    canvas: ImageDraw.ImageDraw,
    chart: Chart,
    w: int,
    h: int,
    ground: tuple,
    rng: random.Random | None,
) -> None:
    base, unit, line = 0.917 * h, 0.0938 * h, tuple(int(0.75 * g + 30) for g in ground)
    for y in (base - v * unit for v in range(1, MAX_BAR + 1)):
        canvas.line([(0.0625 * w, y), (0.958 * w, y)], line, max(1, h // 192))
    step = 0.875 * w / len(chart.bars)
    width = step * (rng.uniform(0.5, 0.78) if rng else 0.65)
    for i, (colour, value) in enumerate(chart.bars):
        x = 0.083 * w + step * i + (step - width) / 2
        canvas.rectangle([x, base - value * unit, x + width, base], _shade(COLOURS[colour], rng, 9))
    axis = [(0.0625 * w, 0.04 * h), (0.0625 * w, base), (0.958 * w, base)]
    canvas.line(axis, (120, 120, 120), max(2, h // 96))


def augmented(image: Image.Image, rng: random.Random) -> Image.Image:
    """What cameras, codecs and resizers do: a slant, blur, brightness, noise, JPEG. Used on half of
    the training pictures.
    """
    if rng.random() < 0.5:
        image = _slanted(image, rng)
    if rng.random() < 0.4:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.2, 0.9) * min(image.size) / 96))
    if rng.random() < 0.4:
        a = np.asarray(image, np.float32)
        light = rng.uniform(0.88, 1.1)
        gain = light * np.array([rng.uniform(0.95, 1.05) for _ in range(3)], np.float32)
        noise = np.random.default_rng(rng.getrandbits(32)).standard_normal(a.shape)
        a = a * gain + noise.astype(np.float32) * rng.uniform(0, 5)
        image = Image.fromarray(a.clip(0, 255).astype(np.uint8))
    if rng.random() < 0.35:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=rng.randint(40, 92))
        image = Image.open(buffer).convert("RGB")
    return image


def _slanted(image: Image.Image, rng: random.Random) -> Image.Image:
    """The picture as seen from a little aside: every corner moves inwards a little."""
    w, h = image.size
    x0, y0, x1, y1, x2, y2, x3, y3 = (rng.uniform(0, 0.036) for _ in range(8))
    corners = (x0 * w, y0 * h, x1 * w, h - y1 * h, w - x2 * w, h - y2 * h, w - x3 * w, y3 * h)
    return image.transform(image.size, Image.Transform.QUAD, corners, Image.Resampling.BILINEAR)
