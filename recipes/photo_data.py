"""Photographs with captions from disk, and the views in which a tower sees them.

Two layouts of captions are read: Flickr8k's (one line per caption: the file's name, a tab or comma,
the sentence; a `#0` after the name is dropped) and COCO's (JSON with `images` and `annotations`).
The pictures may be in any folder below. A folder `things` may have classes to name, one picture
each: `<sorted id>_<name_of_class>.jpg`.
"""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

SUFFIXES = {".jpg", ".jpeg", ".png"}
FLIP, TEST_CROP = 1, 2
VIEWS = {"train": (0, 1, 3, 4), "things": (0, 1, 3)}
"""Views of the pictures of each set that are trained on (see `view`)."""
HELD_OUT_SHARE = 8
LOOKED_AT = Path(__file__).with_name("looked_at.jsonl")
"""Sentences about pictures of 800 classes, by a model that looked at them, free to use (CC0)."""
DESCRIBED = Path(__file__).with_name("described.jsonl")
"""Descriptions, questions and stories of 3,109 photographs and of 775 of these classes, by a model
that looked at each, with people's captions beside the photographs; free to use (CC0)."""


Place = tuple[str, int, int]
"""A set of pictures, a picture's number in it, and a view of it."""


@dataclass(frozen=True)
class Photo:
    """One photograph: its path and its captions."""

    path: Path
    captions: tuple[str, ...]


@dataclass(frozen=True)
class Thing:
    """One picture of a class; `index` is the class's place in the classifier's order."""

    path: Path
    name: str
    index: int


@dataclass(frozen=True)
class LookedAt:
    """What was written while looking at the picture of a class, a `thing`.

    captions: Two sentences about a scene; none about a lone thing, which keeps its close-up.
    questions: With answers.
    """

    thing: Thing
    captions: tuple[str, ...]
    questions: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Described:
    """What was written at length while looking at one picture.

    description: Three or four sentences about a photograph, one or two about a thing. questions:
    With answers; the last one follows the description ("What colour is it?"). knowledge: Two
    sentences about things of this class. story: Four to six sentences, for some.
    """

    description: str
    questions: tuple[tuple[str, str], ...] = ()
    knowledge: str = ""
    story: str = ""


def clean(caption: str) -> str:
    """Return a caption as a sentence: a capital letter, one full stop, no spaces before them."""
    text = caption.strip().rstrip(" .").replace('"', "").replace(" 's", "'s")
    text = re.sub(r"\s+([,;:!?'])", r"\1", re.sub(r"\s+", " ", text)).strip()
    return text[:1].upper() + text[1:] + "." if text else ""


def _captions(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (file name, caption) pairs of one file, in Flickr8k's layout or in COCO's."""
    if path.suffix == ".json":
        data = json.loads(path.read_text(encoding="utf-8"))
        names = {image["id"]: image["file_name"] for image in data["images"]}
        yield from ((names[note["image_id"]], note["caption"]) for note in data["annotations"])
        return
    with path.open(encoding="utf-8", newline="") as file:
        tabs = "\t" in file.readline()
        file.seek(0)
        rows: Iterable[Sequence[str]] = (
            (line.rstrip("\n").split("\t", 1) for line in file) if tabs else csv.reader(file)
        )
        yield from ((row[0].split("#")[0], row[1]) for row in rows if len(row) > 1)


def read(folder: Path) -> tuple[list[Photo], list[Photo]]:
    """Return photographs to train on and photographs held out, each sorted by name.

    A captions file with `dev` or `val` in its name is held out; without one, every eighth
    photograph is. Raises FileNotFoundError or ValueError if nothing is found, naming what was
    expected.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}: give one with pictures and a captions file")
    pictures = {p.name: p for p in sorted(folder.rglob("*")) if p.suffix.lower() in SUFFIXES}
    groups: dict[bool, dict[str, list[str]]] = {False: {}, True: {}}
    for path in sorted(folder.rglob("*")):
        if path.suffix not in (".tsv", ".txt", ".csv", ".json"):
            continue
        found: dict[str, list[str]] = {}
        for name, caption in _captions(path):
            if name in pictures and len(clean(caption).split()) > 2:
                found.setdefault(name, []).append(clean(caption))
        groups[re.search(r"dev|val", path.name) is not None].update(found)
    train, dev = (
        [Photo(pictures[name], tuple(captions)) for name, captions in sorted(groups[held].items())]
        for held in (False, True)
    )
    if not train:
        raise ValueError(
            f"no captioned pictures in {folder}: they need a captions file next to them, in"
            " Flickr8k's layout (`name.jpg<TAB>sentence`) or COCO's (JSON with images and"
            " annotations)"
        )
    if not dev:
        dev = train[::HELD_OUT_SHARE]
        train = [p for i, p in enumerate(train) if i % HELD_OUT_SHARE]
    return train, dev


def read_things(folder: Path) -> list[Thing]:
    """Return the classes of `folder/things` in the classifier's order, which may be none."""
    paths = sorted(p for p in (folder / "things").glob("*") if p.suffix.lower() in SUFFIXES)
    return [Thing(p, p.stem.split("_", 1)[1].replace("_", " "), i) for i, p in enumerate(paths)]


def read_looked_at(things: Sequence[Thing], path: Path = LOOKED_AT) -> list[LookedAt]:
    """Return what was written about these pictures, in the order of the classes."""
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    written = {line["file"]: line for line in lines}
    texts = []
    for thing in things:
        if (line := written.get(thing.path.name)) is None:
            continue
        captions = tuple(line["captions"])
        if len(captions) not in (0, 2):
            raise ValueError(
                f"{path.name}: {thing.path.name} has {len(captions)} captions; a scene needs two"
            )
        questions = tuple((question, answer) for question, answer in line["questions"])
        texts.append(LookedAt(thing, captions, questions))
    return texts


def read_described(names: Iterable[str], path: Path = DESCRIBED) -> dict[str, Described]:
    """Return what was written at length about these pictures, by the name of the file."""
    described = {}
    for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        name = line.pop("file")
        questions = tuple((question, answer) for question, answer in line.pop("questions"))
        described[name] = Described(questions=questions, **line)
    return {name: described[name] for name in names if name in described}


def view(image: Image.Image, number: int, seed: str, size: int) -> Tensor:
    """Return one view of a picture, as pixels [3, size, size] for the tower.

    0 is what the image processor makes: the shorter side scaled to `size`, and its middle; 1 is the
    same mirrored; others are random crops, half of them mirrored, with slightly different light.
    """
    rng = random.Random(f"{seed}/{number}")
    image = image.convert("RGB")
    width, height = image.size
    if number > FLIP:
        share, shape = rng.uniform(0.7, 1.0), rng.uniform(0.88, 1.13)
        side = min(width, height) * share
        w, h = min(width, side * shape), min(height, side / shape)
        left, top = rng.uniform(0, width - w), rng.uniform(0, height - h)
        image = image.resize((size, size), Image.Resampling.BICUBIC, (left, top, left + w, top + h))
        for change in (ImageEnhance.Brightness, ImageEnhance.Contrast):
            image = change(image).enhance(rng.uniform(0.85, 1.15))
    elif image.size != (size, size):
        scale = size / min(width, height)
        scaled = round(width * scale), round(height * scale)
        image = image.resize(scaled, Image.Resampling.BICUBIC)
        left, top = (image.width - size) // 2, (image.height - size) // 2
        image = image.crop((left, top, left + size, top + size))
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float()
    if number == FLIP or (number > TEST_CROP and rng.random() < 0.5):
        pixels = pixels.flip(2)
    return (pixels - 127) / 128


def pixels_of(paths: Mapping[str, Sequence[Path]], places: Iterable[Place], size: int) -> Tensor:
    """Return pixels [N, 3, size, size] of pictures, each in one of its views."""
    shown = ((paths[name][index], number) for name, index, number in places)
    return torch.stack([view(Image.open(path), number, path.name, size) for path, number in shown])
