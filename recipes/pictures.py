"""Scenes as the pocket model gets them: drawn, letterboxed, as pixels, with the labels of every
patch.

Item `step` of a data set is always the same batch, so that a resumed run gets the same data as an
uninterrupted one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from recipes import pocket
from recipes.world import scenes as world
from recipes.world import texts
from recipes.world.scenes import Chart, Scene
from recipes.world.texts import GROUPS, Look

GROUP_NAMES = tuple(GROUPS)
SIDE, GRID = pocket.SIDE, pocket.SIDE // pocket.PATCH
FREE = 0.6
"""Share of the varied renderings that are drawn freehand."""
Box = tuple[int, int]


def content_box(rng: random.Random, hard: float = 1.0) -> Box:
    """Return width and height of the picture inside its letterbox: mostly square, sometimes up to
    3:2.
    """
    if rng.random() > 0.22 * hard:
        return SIDE, SIDE
    short = rng.randint(64, SIDE - 4)
    return (SIDE, short) if rng.random() < 0.7 else (short, SIDE)


def letterboxed(
    scene: Scene | Chart, box: Box, rng: random.Random, hard: float = 1.0, free: bool = False
) -> Image.Image:
    """Draw into the box, at several resolutions before resizing, padded with gray to the model's
    square.

    `hard` in [0, 1] scales how often a picture is resized, blurred, noisy or compressed as JPEG;
    `free` draws outlines as different people do.
    """
    k = rng.choice([1, 1, 1, 1.5, 2, 3]) if rng.random() < hard else 1
    image = world.draw(scene, (round(box[0] * k), round(box[1] * k)), rng, free)
    if rng.random() < 0.5 * hard:
        image = world.augmented(image, rng)
    if k != 1:
        ways = [Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.BOX]
        image = image.resize(box, rng.choice(ways))
    return _padded(image)


def plain(scene: Scene | Chart, box: Box) -> Image.Image:
    """Draw cleanly into the box, padded with gray to the model's square."""
    return _padded(world.draw(scene, box))


def _padded(image: Image.Image) -> Image.Image:
    square = Image.new("RGB", (SIDE, SIDE), (127, 127, 127))
    square.paste(image, ((SIDE - image.width) // 2, (SIDE - image.height) // 2))
    return square


def patch_labels(scene: Scene | Chart, box: Box) -> np.ndarray:
    """Return the labels of every patch [N, 6]: of its cell, or of its bar in a chart; none in the
    padding.
    """
    out = np.full((pocket.N_PATCHES, len(GROUP_NAMES)), -100, np.int64)
    left, top = (SIDE - box[0]) / 2, (SIDE - box[1]) / 2
    for i in range(pocket.N_PATCHES):
        x = ((i % GRID + 0.5) * pocket.PATCH - left) / box[0]
        y = ((i // GRID + 0.5) * pocket.PATCH - top) / box[1]
        if not (0 < x < 1 and 0 < y < 1):
            continue
        cell = int(x * 3) + 3 * int(y * 3)
        if isinstance(scene, Chart):
            seen = _bar_at(scene, x, y)
        else:
            seen = {"place": world.PLACES[cell], **texts.look_of(scene.at(cell))}
        for group, word in {"ground": scene.ground, **seen}.items():
            out[i, GROUP_NAMES.index(group)] = GROUPS[group].index(word)
    return out


def _bar_at(chart: Chart, x: float, y: float) -> Look:
    # A bar is about 0.65 of its slot wide, and a patch may include parts of two: it is labelled by
    # the larger part.
    slot, half = 0.875 / len(chart.bars), 0.5 / GRID
    left = [0.083 + slot * (i + 0.175) for i in range(len(chart.bars))]
    parts = [min(x + half, a + 0.65 * slot) - max(x - half, a) for a in left]
    most = max(parts)
    if most < 0.2 * slot:
        return {}
    colour, value = chart.bars[parts.index(most)]
    reaches = y > 0.917 - value * 0.0938 - 0.08  # the bar or its top, into this patch
    return {"colour": colour, "number": world.NUMBERS[value]} if reaches else {}


def changes(frames: Sequence[Scene | Chart], box: Box) -> np.ndarray:
    """Return which patches differ from the picture before [P, N]; -100 for the first."""
    out = np.full((len(frames), pocket.N_PATCHES), -100, np.int64)
    clean = [np.asarray(plain(f, box), np.int16) for f in frames] if len(frames) > 1 else []
    for i in range(1, len(clean)):
        diff = np.abs(clean[i] - clean[i - 1]).max(-1)
        tiles = diff.reshape(GRID, pocket.PATCH, GRID, pocket.PATCH).transpose(0, 2, 1, 3)
        out[i] = (tiles.reshape(pocket.N_PATCHES, -1) > 60).sum(-1) > 6
    return out


def to_pixels(images: Sequence[np.ndarray | Image.Image]) -> Tensor:
    """Convert uint8 pictures [96, 96, 3] to the processor's float range [P, 3, 96, 96]."""
    stacked = np.stack([np.asarray(image) for image in images])
    return torch.from_numpy(stacked).permute(0, 3, 1, 2).float() / 127.5 - 1


def crowded(rng: random.Random, n: int, hard: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return `n` crowded scenes and a few charts: pixels [n, 3, 96, 96] and patch labels
    [n, N, 6].
    """
    pixels, patches = [], []
    for i in range(n):
        scene: Scene | Chart
        if i % 8 == 0:
            scene = world.random_chart(rng, rng.randint(2, 5))
        else:
            scene = world.random_scene(rng, rng.randint(4, 9), False)
        box = content_box(rng, hard)
        pixels.append(letterboxed(scene, box, rng, hard))
        patches.append(patch_labels(scene, box))
    return to_pixels(pixels), torch.from_numpy(np.stack(patches))


@dataclass
class VisionOnly:
    """Item `step` is a batch of pictures and their patch labels, only for the vision tower."""

    seed: int
    total: int
    batch: int

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        # First what things look like, then through augmentation.
        hard = min(1.0, 2.0 * step / self.total)
        return crowded(random.Random(self.seed * 10**9 + 5 * 10**8 + step), self.batch, hard)


@dataclass
class Renderings:
    """Item `step` is a batch of scenes seen twice: pixels varied and pixels cleanly drawn [B, 3,
    96, 96], and the patch labels [B, N, 6] of both."""

    seed: int
    total: int
    batch: int

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        rng = random.Random(self.seed * 10**9 + 7 * 10**8 + step)
        varied, clean, patches = [], [], []
        for i in range(self.batch):
            scene = _crowd(rng) if i % 8 else world.random_chart(rng, rng.randint(1, 5))
            # Visitors' pictures are seldom square, so they are letterboxed here twice as often as
            # in conversations.
            box = content_box(rng, hard=2.0)
            varied.append(letterboxed(scene, box, rng, free=rng.random() < FREE))
            # A chart's bars differ in width between drawings, so it is its own clean view.
            clean.append(varied[-1] if isinstance(scene, Chart) else plain(scene, box))
            patches.append(patch_labels(scene, box))
        return to_pixels(varied), to_pixels(clean), torch.from_numpy(np.stack(patches))


def _crowd(rng: random.Random) -> Scene:
    """Return one to nine objects; half of them digits, and more of them small than elsewhere, since
    these are hard.
    """
    scene = world.random_scene(rng, rng.randint(1, 9), False)
    things = []
    for t in scene.things:
        kind = rng.choice(world.KINDS) if rng.random() < 0.7 else t.kind
        size = "small" if rng.random() < 0.25 else t.size
        things.append(world.random_thing(rng, t.place, kind=kind, size=size, colour=t.colour))
    return Scene(tuple(things), scene.ground)


def stream(data: Any, first: int, workers: int) -> Iterator:
    """Yield items `first` to `data.total` of a dataset, drawn by worker processes ahead of time, in
    order.
    """
    loader = DataLoader(
        data,
        batch_size=None,
        sampler=range(first, data.total),
        num_workers=workers,
        prefetch_factor=4 if workers else None,
    )
    return iter(loader)
