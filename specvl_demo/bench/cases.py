"""What a bench asks: named lists of questions with pictures, the same on every machine.

`held_out` scenes are never drawn in training; `calibration` scenes are never held out, so that what
is tuned on them can be judged on the others.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from PIL import Image

from recipes.world import texts
from recipes.world.samples import KINDS_OF_TURN, held_out, numbered
from recipes.world.scenes import Scene
from recipes.world.texts import Sample, text_of
from specvl_demo.media import VideoFrames, Visual
from specvl_demo.vlm.prompts import Turn

POCKET = (("describe", 3), ("clip", 2), ("chart", 2), ("compare", 2), ("count", 1), ("where", 1))
FOLLOWED_UP = 2
"""Cases of a conversation: a scene described, then one more question about it."""
CALIBRATION = (
    ("describe", 3),
    ("clip", 1),
    ("chart", 1),
    ("compare", 1),
    ("count", 1),
    ("where", 1),
)
CALIBRATION_SEED = 8 * 10**11
"""Far above what training draws, far below what is held out."""
TEXTS = (
    "What is a star?",
    "Which colours do you know?",
    "Describe a small red circle.",
    "Count to five.",
    "What can you see in a picture?",
    "Tell me about bar charts.",
)
"""Questions without a picture: nothing the pocket target was taught, which is why they make it
ramble.
"""


@dataclass(frozen=True)
class Case:
    """One question with what it shows, and what was said before it.

    reference: an answer to compare with, where the source gives one; kind: what sort of question it
    is.
    """

    name: str
    question: str
    shown: tuple[Visual, ...] = field(default=(), repr=False)
    before: tuple[Turn, ...] = field(default=(), repr=False)
    reference: str | None = None
    kind: str = ""

    @property
    def turns(self) -> list[Turn]:
        """The conversation; its last turn is open."""
        return [*self.before, Turn(self.question, self.shown)]


def pocket() -> list[Case]:
    """Held-out scenes, charts, pairs of pictures, clips and follow-up questions; short and long
    answers.
    """
    cases = [_held_out(kind, number) for kind, count in POCKET for number in range(count)]
    return cases + [_follow_up(number) for number in range(FOLLOWED_UP)]


def calibration() -> list[Case]:
    """Scenes to tune on: the same kinds from other seeds, none of them held out."""
    return [
        _case(kind, number, *numbered(CALIBRATION_SEED, kind, number))
        for kind, count in CALIBRATION
        for number in range(count)
    ]


def mixed(n: int) -> list[Case]:
    """`n` held-out questions of every kind in turn: scenes, charts, pairs, clips, follow-ups, text
    alone.
    """
    kinds = [*KINDS_OF_TURN, "follow-up", "text"]
    return [_any(kinds[i % len(kinds)], i // len(kinds)) for i in range(n)]


def scenes_alone(n: int) -> list[Case]:
    return [_held_out("describe", number) for number in range(n)]


def clip(n: int, first: int = 0) -> VideoFrames:
    """A clip of `n` held-out scenes that have nothing to do with each other."""
    return VideoFrames(
        tuple(held_out("describe", number)[1][0] for number in range(first, first + n))
    )


def _any(kind: str, number: int) -> Case:
    if kind == "text":
        return Case(f"text-{number}", TEXTS[number % len(TEXTS)], kind="text")
    return _follow_up(number) if kind == "follow-up" else _held_out(kind, number)


def _held_out(kind: str, number: int) -> Case:
    return _case(kind, number, *held_out(kind, number))


def _case(kind: str, number: int, sample: Sample, pictures: list[Image.Image]) -> Case:
    shown = (VideoFrames(tuple(pictures)),) if kind == "clip" else tuple(pictures)
    turn = sample.turns[0]
    question, reference = text_of(turn.question).strip(), text_of(turn.answer).strip()
    return Case(f"{kind}-{number}", question, shown, reference=reference, kind=kind)


def _follow_up(number: int) -> Case:
    """A scene and its true description, then where one of its things is.

    The truth stands for the first answer, so that every machine and every target is asked the same.
    """
    first = _held_out("where", 1000 + number)
    sample, _ = held_out("where", 1000 + number)
    rng = random.Random(number)
    scene = sample.pictures[0]
    assert isinstance(scene, Scene), "a question where something is shows a scene"
    told = text_of(texts.describe(rng, scene).answer).strip()
    before = Turn("Describe the picture.", first.shown, told)
    return Case(f"follow-up-{number}", first.question, (), (before,), first.reference, "follow-up")
