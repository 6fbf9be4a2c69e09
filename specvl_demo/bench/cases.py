"""The questions that a bench asks the drawn-scene pair: shipped ones, the same on every machine.

They are lines of examples/pocket-questions.jsonl, drawn by `examples/make.py questions`. Lines of
the split `evaluate` were never drawn in training; those of `choose` are never evaluated, so that
settings chosen on them can be judged on the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from typing import Any, Literal

from PIL import Image, ImageSequence

from specvl_demo.media import VideoFrames, Visual
from specvl_demo.places import EXAMPLES
from specvl_demo.vlm.prompts import Turn

Use = Literal["choose", "evaluate", "all"]
"""What cases are for: settings are chosen on some and judged on others."""

QUESTIONS = EXAMPLES / "pocket-questions.jsonl"
POCKET = {
    **{"describe": 3, "clip": 2, "chart": 2, "compare": 2, "count": 1, "where": 1},
    "follow-up": 2,
}
"""How many of each kind `pocket` takes."""


@dataclass(frozen=True)
class Case:
    """One question with what it shows, and the conversation before it.

    Attributes:
        reference: An answer to compare with, if the source has one.
        kind: The kind of question.
    """

    name: str
    question: str
    shown: tuple[Visual, ...] = field(default=(), repr=False)
    before: tuple[Turn, ...] = field(default=(), repr=False)
    reference: str | None = None
    kind: str = ""

    @property
    def turns(self) -> list[Turn]:
        """Return the conversation; its last turn is open."""
        return [*self.before, Turn(self.question, self.shown)]


def pocket() -> list[Case]:
    """Return held-out scenes, charts, pairs of pictures, clips and follow-up questions, with short
    and long answers.
    """
    by_kind = _by_kind()
    return [case for kind, count in POCKET.items() for case in by_kind[kind][:count]]


def calibration() -> list[Case]:
    """Return scenes to tune on: the same kinds from other seeds, none of them held out."""
    return list(_shipped("choose"))


def mixed(n: int) -> list[Case]:
    """Return held-out questions of every kind in turn: scenes, charts, pairs, clips, follow-ups,
    text only; at most `n` and at most as many as are shipped.
    """
    return in_turn(_shipped("evaluate"), n)


def in_turn(found: Iterable[Case], n: int) -> list[Case]:
    """Return `n` questions, or all if there are fewer, one of each kind in turn."""
    rounds = zip_longest(*_grouped(found).values())
    return [case for one_of_each in rounds for case in one_of_each if case is not None][:n]


def drawn(use: Use, n: int) -> list[Case]:
    """Return the questions for a pair trained on drawn scenes. n: the limit for `all`."""
    return mixed(n) if use == "all" else pocket() if use == "evaluate" else calibration()


def scenes_alone(n: int) -> list[Case]:
    """Return the first `n` questions that ask to describe one scene."""
    return _by_kind()["describe"][:n]


def clip(n: int, first: int = 0) -> VideoFrames:
    """Return a clip of `n` unrelated held-out scenes; they repeat if fewer are shipped."""
    scenes = [case.shown[0] for case in _by_kind()["describe"]]
    frames = [scenes[i % len(scenes)] for i in range(first, first + n)]
    return VideoFrames(tuple(frame for frame in frames if isinstance(frame, Image.Image)))


def _by_kind() -> dict[str, list[Case]]:
    return _grouped(_shipped("evaluate"))


def _grouped(found: Iterable[Case]) -> dict[str, list[Case]]:
    kinds: dict[str, list[Case]] = {}
    for case in found:
        kinds.setdefault(case.kind, []).append(case)
    return kinds


@cache
def _shipped(split: str) -> tuple[Case, ...]:
    lines = map(json.loads, QUESTIONS.read_text(encoding="utf-8").splitlines())
    return tuple(_case(line) for line in lines if line["split"] == split)


def follow_up(
    name: str,
    question: str,
    shown: Sequence[Visual],
    before: Iterable[tuple[str, str]],
    reference: str | None,
    kind: str,
) -> Case:
    """Return the case of a question after others, with their answers; what is shown belongs to the
    first of all.
    """
    turns = tuple(
        Turn(asked, () if number else tuple(shown), answer)
        for number, (asked, answer) in enumerate(before)
    )
    return Case(name, question, () if turns else tuple(shown), turns, reference, kind)


def _case(line: dict[str, Any]) -> Case:
    before = [(turn["question"], turn["answer"]) for turn in line.get("before", ())]
    shown = list(_opened(line))
    return follow_up(line["id"], line["question"], shown, before, line.get("answer"), line["kind"])


def _opened(line: dict[str, Any]) -> Iterator[Visual]:
    for name in line.get("images", ()):
        yield Image.open(QUESTIONS.parent / name).convert("RGB")
    if name := line.get("video"):
        with Image.open(QUESTIONS.parent / name) as moving:
            frames = ImageSequence.Iterator(moving)
            yield VideoFrames(tuple(frame.convert("RGB") for frame in frames))
