"""A second renderer of the same scenes: OpenCV, other fonts, shifted hues, blur, JPEG, odd sizes.

Never used in training; it shows whether the pocket target reads shapes and colours, or only one
renderer's pixels.
"""

from __future__ import annotations

import math
import random

import cv2
import numpy as np
from PIL import Image

from recipes.world.scenes import COLOURS, DIGITS, GROUNDS, RADIUS, Scene, Thing


def _hue_shifted(colour: tuple[int, int, int], rng: random.Random) -> tuple[int, int, int]:
    hsv = cv2.cvtColor(np.array([[colour]], np.uint8), cv2.COLOR_RGB2HSV)[0, 0].astype(int)
    hsv[0] = (hsv[0] + rng.randint(-3, 3)) % 180
    hsv[1] = np.clip(hsv[1] + rng.randint(-20, 15), 0, 255)
    hsv[2] = np.clip(hsv[2] + rng.randint(-20, 15), 0, 255)
    r, g, b = cv2.cvtColor(np.array([[hsv]], np.uint8), cv2.COLOR_HSV2RGB)[0, 0]
    return int(r), int(g), int(b)


def _outline(kind: str) -> list[tuple[float, float]]:
    if kind == "square":
        return [(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)]
    if kind == "triangle":
        return [(math.sin(a), -math.cos(a)) for a in (0, 2 * math.pi / 3, 4 * math.pi / 3)]
    if kind == "diamond":
        return [(0, -1), (0.7, 0), (0, 1), (-0.7, 0)]
    if kind == "star":
        turns = [(i, (1, 0.42)[i % 2]) for i in range(10)]
        return [(r * math.sin(i * math.pi / 5), -r * math.cos(i * math.pi / 5)) for i, r in turns]
    if kind == "cross":
        a = 0.3
        right = [(-a, -1), (a, -1), (a, -a), (1, -a), (1, a), (a, a)]
        return right + [(-x, -y) for x, y in right]
    arrow = [(-1, -0.25), (0.2, -0.25), (0.2, -0.75)]
    return [*arrow, (1, 0), *((x, -y) for x, y in reversed(arrow))]


def _draw(
    image: np.ndarray, t: Thing, x: float, y: float, r: float, colour: tuple[int, int, int]
) -> None:
    centre = (round(x), round(y))
    if t.kind == "circle":
        cv2.circle(image, centre, round(r), colour, -1, cv2.LINE_AA)
    elif t.kind == "ring":
        cv2.circle(image, centre, round(0.82 * r), colour, max(1, round(0.34 * r)), cv2.LINE_AA)
    elif t.kind == "moon":
        mask = np.zeros(image.shape[:2], np.uint8)
        cv2.circle(mask, centre, round(r), 255, -1, cv2.LINE_AA)
        cv2.circle(mask, (round(x + 0.5 * r), round(y)), round(0.82 * r), 0, -1, cv2.LINE_AA)
        share = mask[..., None].astype(np.float32) / 255
        image[:] = (image * (1 - share) + np.array(colour) * share).astype(np.uint8)
    elif t.kind == "heart":
        a = np.linspace(0, 2 * math.pi, 60)
        px = 16 * np.sin(a) ** 3 / 17
        py = -(13 * np.cos(a) - 5 * np.cos(2 * a) - 2 * np.cos(3 * a) - np.cos(4 * a)) / 17
        points = np.stack([x + r * px, y + r * py], -1).round().astype(np.int32)
        cv2.fillPoly(image, [points], colour, cv2.LINE_AA)
    elif t.kind.startswith("digit"):
        text, thick = str(DIGITS.index(t.kind.split()[1])), max(1, round(0.28 * r))
        scale = 1.9 * r / cv2.getTextSize("8", cv2.FONT_HERSHEY_SIMPLEX, 1.0, 1)[0][1]
        font = cv2.FONT_HERSHEY_SIMPLEX
        (w, h), _ = cv2.getTextSize(text, font, scale, thick)
        corner = round(x - w / 2), round(y + h / 2)
        cv2.putText(image, text, corner, font, scale, colour, thick, cv2.LINE_AA)
    else:
        points = np.array([(x + r * px, y + r * py) for px, py in _outline(t.kind)])
        cv2.fillPoly(image, [points.round().astype(np.int32)], colour, cv2.LINE_AA)


def draw_otherwise(scene: Scene, rng: random.Random) -> Image.Image:
    """Draw the scene with OpenCV at a random size (up to 4:3), blurred, rescaled and compressed as
    JPEG.
    """
    w = rng.choice([160, 224, 256, 320, 400])
    h = w if rng.random() < 0.6 else round(w * rng.uniform(0.75, 1.0))
    image = np.full((h, w, 3), _hue_shifted(GROUNDS[scene.ground], rng), np.uint8)
    for t in scene.things:
        x = (t.place % 3 + 0.5) * w / 3 + t.dx * min(w, h)
        y = (t.place // 3 + 0.5) * h / 3 + t.dy * min(w, h)
        radius = (t.radius or sum(RADIUS[t.size]) / 2) * min(w, h)
        _draw(image, t, x, y, radius, _hue_shifted(COLOURS[t.colour], rng))
    image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.3, 0.9) * w / 160)
    k = rng.uniform(0.7, 1.4)
    way = cv2.INTER_AREA if k < 1 else cv2.INTER_LINEAR
    image = cv2.resize(image, (round(w * k), round(h * k)), interpolation=way)
    quality = [cv2.IMWRITE_JPEG_QUALITY, rng.randint(60, 92)]
    _, code = cv2.imencode(".jpg", image[..., ::-1], quality)
    decoded = cv2.imdecode(code, cv2.IMREAD_COLOR)
    assert decoded is not None  # it was encoded just above
    return Image.fromarray(decoded[..., ::-1].copy())
