"""Draws questions for drafters, to train on and to measure with: about photographs of things, about
people and dogs, about two of them, and about no picture.

    python -m recipes.drafter_questions DATA OUT [--things 1500] [--people 4400] [--two 300]
        [--plain 600] [--seed 1]

DATA has the folders things/, train/ and dev/. OUT gets train.jsonl with crops of its photographs,
some mirrored, for `recipes drafter --prompts`. It also gets choose.jsonl, to choose drafters and
settings on, and held-things.jsonl, held-people.jsonl and held-plain.jsonl, to measure with: all in
the format of `bench --data`, with photographs and prompts that train.jsonl does not have.
A third of the training questions are to be answered at a temperature of 0.7 or 1.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from PIL import Image, ImageOps

from recipes.photo_writer import PHRASES, plain_prompts

HELD_THINGS, HELD_PEOPLE, HELD_PLAIN, CHOOSE = 40, 16, 20, 10
KINDS = {"describe": 0.42, "short": 0.18, "story": 0.28, "next": 0.12}
OPEN = ("describe", "story")
TEMPERATURES = [0.0] * 4 + [0.7, 1.0]


class Questions:
    """Draws questions about crops of photographs, which are written to a folder."""

    def __init__(self, out: Path, seed: int) -> None:
        self.out, self.rng, self.count = out, random.Random(seed), 0

    def cropped(self, file: Path) -> str:
        """Save a crop of at least two thirds of each side, mirrored or not; return its name."""
        with Image.open(file) as opened:
            picture = opened.convert("RGB")
        width, height = (int(self.rng.uniform(0.67, 1) * side) for side in picture.size)
        left = self.rng.randint(0, picture.width - width)
        top = self.rng.randint(0, picture.height - height)
        picture = picture.crop((left, top, left + width, top + height))
        if self.rng.random() < 0.5:
            picture = ImageOps.mirror(picture)
        self.count += 1
        name = f"{self.count:05}.jpg"
        picture.save(self.out / name, quality=80)
        return name

    def about(self, *files: Path, kinds: Iterable[str] = tuple(KINDS)) -> dict[str, Any]:
        """Return a question of one of these kinds about photographs."""
        (kind,) = self.rng.choices(list(kinds), [KINDS.get(kind, 1) for kind in kinds])
        prompt = self.rng.choice(PHRASES["questions"][kind])
        return {"kind": kind, "prompt": prompt, "images": [self.cropped(file) for file in files]}

    def write(self, name: str, lines: Iterable[dict[str, Any]]) -> None:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self.out / f"{name}.jsonl").write_text(text)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument("data", type=Path)
    options.add_argument("out", type=Path)
    for kind, n in (("things", 1500), ("people", 4400), ("two", 300), ("plain", 600)):
        options.add_argument(f"--{kind}", type=int, default=n)
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    draw = Questions(args.out, args.seed)
    rng = draw.rng
    things, people, dev = (
        rng.sample(files, len(files))
        for files in (sorted((args.data / d).glob("*.jpg")) for d in ("things", "train", "dev"))
    )
    plain = [{"kind": "text", "prompt": prompt} for prompt in plain_prompts()]

    draw.write("held-things", map(draw.about, things[:HELD_THINGS]))
    draw.write("held-people", (draw.about(file, kinds=OPEN) for file in dev[:HELD_PEOPLE]))
    draw.write("held-plain", plain[:HELD_PLAIN])
    things, plain = things[HELD_THINGS:], plain[HELD_PLAIN:]
    chosen = things[:CHOOSE] + people[:CHOOSE]
    draw.write("choose", (draw.about(file, kinds=OPEN) for file in chosen))
    things, people = things[CHOOSE:], people[CHOOSE:]
    lines = [*map(draw.about, islice(cycle(things), args.things))]
    lines += map(draw.about, islice(cycle(people), args.people))
    two = (rng.sample(rng.choice((things, people)), 2) for _ in range(args.two))
    lines += (draw.about(*files, kinds=["difference"]) for files in two)
    lines += islice(cycle(plain), args.plain)
    rng.shuffle(lines)
    draw.write("train", (line | {"temperature": rng.choice(TEMPERATURES)} for line in lines))


if __name__ == "__main__":
    main()
