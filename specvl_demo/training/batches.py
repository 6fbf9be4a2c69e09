"""Training batches: drawn pictures, token ids, and for every token and patch what it should know.

Batch number `step` of seed `seed` is always the same batch, so that a resumed run sees what an
uninterrupted one would have. Knows the curriculum; no models.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerFast

from specvl_demo.training import pocket, samples, texts
from specvl_demo.training import scenes as world
from specvl_demo.training.scenes import Chart, Scene
from specvl_demo.training.texts import GROUPS, Piece, Sample, Word

GROUP_NAMES = tuple(GROUPS)
GRID = pocket.SIDE // pocket.PATCH


@dataclass
class Batch:
    """`B` conversations of at most `L` tokens over `P` pictures of `N` patches."""

    ids: Tensor  # [B, L]
    labels: Tensor  # [B, L], -100 outside answers
    visual: Tensor  # [B, L] bool: tokens the picture decides
    looks: Tensor  # [K, 4]: row, position, group, index
    rests: Tensor  # [R, 2 + 9]: row, position, which places are still to be named
    pixels: Tensor  # [P, 3, 96, 96] in [-1, 1]
    patches: Tensor  # [P, N, 6]: index per group, -100 where the group says nothing
    which: Tensor  # [P]: place among the pictures of its conversation, -100 where it is the only one
    changed: Tensor  # [P, N]: 1 where a patch differs from the picture before, -100 in first pictures
    glances: Tensor  # [G, 3, 96, 96]: crowded pictures for the vision tower alone
    glance_patches: Tensor  # [G, N, 6]

    def to(self, device: torch.device) -> Batch:
        return Batch(**{f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)})


# ---------------------------------------------------------------- pictures


def content_box(rng: random.Random, hard: float = 1.0) -> tuple[int, int]:
    """Width and height of the picture inside its letterbox: mostly square, sometimes up to 3:2."""
    if rng.random() > 0.22 * hard:
        return pocket.SIDE, pocket.SIDE
    short = rng.randint(64, pocket.SIDE - 4)
    return (pocket.SIDE, short) if rng.random() < 0.7 else (short, pocket.SIDE)


def letterboxed(
    scene: Scene | Chart, box: tuple[int, int], rng: random.Random, hard: float = 1.0, free: bool = False
) -> Image.Image:
    """Draw into the box, at several resolutions before resizing, padded with gray to the model's square.

    `hard` in [0, 1] scales how often a picture is resized, blurred, noisy or squeezed through JPEG; `free`
    lets another hand draw.
    """
    k = rng.choice([1, 1, 1, 1.5, 2, 3]) if rng.random() < hard else 1
    image = world.draw(scene, (round(box[0] * k), round(box[1] * k)), rng, free)
    if rng.random() < 0.5 * hard:
        image = world.weather(image, rng)
    if k != 1:
        image = image.resize(
            box, rng.choice([Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.BOX])
        )
    if box == (pocket.SIDE, pocket.SIDE):
        return image
    square = Image.new("RGB", (pocket.SIDE, pocket.SIDE), (127, 127, 127))
    square.paste(image, ((pocket.SIDE - box[0]) // 2, (pocket.SIDE - box[1]) // 2))
    return square


def patch_labels(scene: Scene | Chart, box: tuple[int, int]) -> np.ndarray:
    """What every patch should say [N, 6]: of its cell, or of its bar in a chart; nothing in the padding."""
    out = np.full((pocket.N_PATCHES, len(GROUP_NAMES)), -100, np.int64)
    left, top = (pocket.SIDE - box[0]) / 2, (pocket.SIDE - box[1]) / 2
    ground = list(world.GROUNDS).index(scene.ground)
    for i in range(pocket.N_PATCHES):
        x = ((i % GRID + 0.5) * pocket.PATCH - left) / box[0]
        y = ((i // GRID + 0.5) * pocket.PATCH - top) / box[1]
        if not (0 < x < 1 and 0 < y < 1):
            continue
        out[i, GROUP_NAMES.index("ground")] = ground
        if isinstance(scene, Chart):
            _bar_label(out[i], scene, x, y)
            continue
        cell = int(x * 3) + 3 * int(y * 3)
        out[i, GROUP_NAMES.index("place")] = cell
        for group, index in texts.look_of(scene.at(cell)).items():
            out[i, GROUP_NAMES.index(group)] = index
    return out


def _bar_label(row: np.ndarray, chart: Chart, x: float, y: float) -> None:
    # A bar is about 0.65 of its slot wide, and a patch may hold parts of two: it speaks for the larger part.
    slot, half = 0.875 / len(chart.bars), 0.5 / GRID
    left = [0.083 + slot * (i + 0.175) for i in range(len(chart.bars))]
    parts = [min(x + half, a + 0.65 * slot) - max(x - half, a) for a in left]
    most = max(parts)
    if most < 0.2 * slot:
        return
    colour, value = chart.bars[parts.index(most)]
    if y > 0.917 - value * 0.0938 - 0.08:  # the bar or its top reaches into this patch
        row[GROUP_NAMES.index("colour")] = list(world.COLOURS).index(colour)
        row[GROUP_NAMES.index("number")] = value


def changes(frames: tuple[Scene | Chart, ...], box: tuple[int, int]) -> np.ndarray:
    """Which patches differ from the picture before [P, N]; -100 for the first."""
    out = np.full((len(frames), pocket.N_PATCHES), -100, np.int64)
    if len(frames) == 1:
        return out
    clean = [np.asarray(plain(f, box), np.int16) for f in frames]
    for i in range(1, len(frames)):
        diff = np.abs(clean[i] - clean[i - 1]).max(-1)
        tiles = (
            diff.reshape(GRID, pocket.PATCH, GRID, pocket.PATCH)
            .transpose(0, 2, 1, 3)
            .reshape(pocket.N_PATCHES, -1)
        )
        out[i] = (tiles > 60).sum(-1) > 6
    return out


def plain(scene: Scene | Chart, box: tuple[int, int]) -> Image.Image:
    """Draw cleanly into the box, padded with gray to the model's square."""
    square = Image.new("RGB", (pocket.SIDE, pocket.SIDE), (127, 127, 127))
    square.paste(world.draw(scene, box), ((pocket.SIDE - box[0]) // 2, (pocket.SIDE - box[1]) // 2))
    return square


# ---------------------------------------------------------------- tokens


@dataclass
class Encoded:
    ids: list[int]
    labels: list[int]
    visual: list[bool]
    looks: list[tuple[int, int, int]]
    rests: list[tuple[int, ...]]


def encode(tokenizer: PreTrainedTokenizerFast, sample: Sample) -> Encoded:
    """The conversation as the chat template writes it, with labels on answers and marks on visual words."""
    out = Encoded([pocket.BOS], [-100], [False], [], [])
    for i, turn in enumerate(sample.turns):
        images = pocket.picture_ids(tokenizer, len(sample.pictures)) if i == 0 else []
        _plain_ids(out, [pocket.USER, *images])
        _words(out, tokenizer, [" ", *turn.question], answer=False)
        _mark(out, turn.at, len(out.ids))
        _plain_ids(out, [pocket.ASSISTANT])
        _words(out, tokenizer, turn.answer, answer=True)
        out.ids.append(pocket.EOS)
        out.labels.append(pocket.EOS)
        out.visual.append(False)
    return out


def _plain_ids(out: Encoded, ids: list[int]) -> None:
    out.ids += ids
    out.labels += [-100] * len(ids)
    out.visual += [False] * len(ids)


def _words(out: Encoded, tokenizer: PreTrainedTokenizerFast, pieces: list[Piece], answer: bool) -> None:
    encoded = tokenizer(texts.text_of(pieces), add_special_tokens=False, return_offsets_mapping=True)
    ids, spans, start = encoded["input_ids"], encoded["offset_mapping"], len(out.ids)
    out.ids += ids
    out.labels += ids if answer else [-100] * len(ids)
    out.visual += [False] * len(ids)
    at = 0
    for piece in pieces:
        text = piece if isinstance(piece, str) else piece.text
        if isinstance(piece, Word):
            inside = [j for j, (a, b) in enumerate(spans) if a < at + len(text) and b > at]
            for j in inside:
                out.visual[start + j] = answer
            _mark(out, piece, start + inside[-1])
        at += len(text)


def _mark(out: Encoded, word: Word, position: int) -> None:
    out.looks += [(position, GROUP_NAMES.index(g), i) for g, i in word.look.items()]
    if word.rest is not None:
        out.rests.append((position, *(int(p in word.rest) for p in range(9))))


def collate(
    tokenizer: PreTrainedTokenizerFast, samples: list[Sample], rng: random.Random, n_glances: int
) -> Batch:
    """Draw and encode a batch."""
    encoded = [encode(tokenizer, s) for s in samples]
    size, length = len(samples), max(len(e.ids) for e in encoded)
    ids = torch.full((size, length), pocket.PAD)
    labels, visual = torch.full((size, length), -100), torch.zeros(size, length, dtype=torch.bool)
    looks, rests, pixels, patches, which, changed = [], [], [], [], [], []
    for b, (e, s) in enumerate(zip(encoded, samples, strict=True)):
        ids[b, : len(e.ids)] = torch.tensor(e.ids)
        labels[b, : len(e.ids)] = torch.tensor(e.labels)
        visual[b, : len(e.ids)] = torch.tensor(e.visual)
        looks += [(b, *m) for m in e.looks]
        rests += [(b, *m) for m in e.rests]
        box = content_box(rng)
        pixels += [np.asarray(letterboxed(p, box, rng)) for p in s.pictures]
        patches += [patch_labels(p, box) for p in s.pictures]
        which += range(len(s.pictures)) if len(s.pictures) > 1 else [-100]
        changed.append(changes(s.pictures, box))
    return Batch(
        ids,
        labels,
        visual,
        torch.tensor(looks, dtype=torch.long).reshape(-1, 4),
        torch.tensor(rests, dtype=torch.long).reshape(-1, 11),
        to_pixels(pixels),
        torch.from_numpy(np.stack(patches)),
        torch.tensor(which),
        torch.from_numpy(np.concatenate(changed)),
        *glances(rng, n_glances),
    )


def to_pixels(images: list[np.ndarray]) -> Tensor:
    """uint8 pictures [96, 96, 3] to the processor's float range [P, 3, 96, 96]."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 127.5 - 1


# ---------------------------------------------------------------- curriculum


@dataclass(frozen=True)
class Mix:
    """What a batch is drawn from: most objects in a scene, and shares in [0, 1]."""

    most: int
    drilled: float  # of the samples with one picture: drills only
    charts: float  # of the samples with one picture
    several: float  # of the batches: pairs and clips
    drilled_several: float  # of the pairs and clips: drills before the answer


def curriculum(u: float) -> Mix:
    """The mix at progress `u` in [0, 1]: easy look-ups first, then everything."""
    return Mix(
        most=2 + min(4, int(u * 25)),
        drilled=max(0.15, 0.85 - 3.0 * u),
        charts=0.0 if u < 0.06 else 0.2,
        several=0.0 if u < 0.10 else min(0.5, 0.12 + u * 0.9),
        drilled_several=max(0.3, 0.9 - u),
    )


class Conversations(Dataset):
    """Item `step` is batch number `step`; the curriculum goes from progress `begin` to 1 in `total` steps."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        seed: int,
        total: int,
        batch: int,
        n_glances: int,
        begin: float = 0.0,
    ) -> None:
        self.tokenizer, self.seed, self.total = tokenizer, seed, total
        self.batch, self.n_glances, self.begin = batch, n_glances, begin

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, step: int) -> Batch:
        rng = random.Random(self.seed * 10**9 + step)
        mix = curriculum(self.begin + (1 - self.begin) * step / self.total)
        if rng.random() < mix.several:
            draw = [
                samples.several_pictures(rng, min(4, mix.most), 125, mix.drilled_several)
                for _ in range(self.batch * 3 // 4)
            ]
        else:
            draw = [
                samples.one_picture(rng, rng.randint(1, mix.most), 125, mix.drilled, mix.charts)
                for _ in range(self.batch)
            ]
        return collate(self.tokenizer, draw, rng, self.n_glances)


class Glances(Dataset):
    """Item `step` is a batch of pictures and their patch labels, for the vision tower alone."""

    def __init__(self, seed: int, total: int, batch: int) -> None:
        self.seed, self.total, self.batch = seed, total, batch

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        hard = min(1.0, 2.0 * step / self.total)  # first what things look like, then through bad weather
        return glances(random.Random(self.seed * 10**9 + 5 * 10**8 + step), self.batch, hard)


def glances(rng: random.Random, n: int, hard: float = 1.0) -> tuple[Tensor, Tensor]:
    """`n` crowded scenes and a few charts: pixels [n, 3, 96, 96] and patch labels [n, N, 6]."""
    pixels, patches = [], []
    for i in range(n):
        chart = i % 8 == 0
        scene = (
            world.random_chart(rng, rng.randint(2, 5))
            if chart
            else world.random_scene(rng, rng.randint(4, 9), False)
        )
        box = content_box(rng, hard)
        pixels.append(np.asarray(letterboxed(scene, box, rng, hard)))
        patches.append(patch_labels(scene, box))
    return to_pixels(pixels), torch.from_numpy(np.stack(patches))


def stream(data: Dataset, first: int, workers: int) -> Iterator:
    """Items `first`, `first + 1`, … of a dataset, drawn by worker processes ahead of time, in order."""
    loader = DataLoader(
        data,
        batch_size=None,
        sampler=range(first, len(data)),
        num_workers=workers,
        prefetch_factor=4 if workers else None,
    )
    return iter(loader)
