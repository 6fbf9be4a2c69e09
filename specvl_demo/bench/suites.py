"""What a bench asks: named lists of questions with pictures, the same on every machine.

Given a suite's name, gives its cases. Knows no models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from PIL import Image

from specvl_demo.targets.prompts import Film
from specvl_demo.training.evaluate import held_out
from specvl_demo.training.texts import text_of

POCKET = (("describe", 4), ("clip", 2), ("chart", 2), ("compare", 2), ("count", 1), ("where", 1))


@dataclass(frozen=True)
class Case:
    """One question with what it shows."""

    name: str
    question: str
    shown: tuple[Image.Image | Film, ...] = field(default=(), repr=False)


def pocket() -> list[Case]:
    """Held-out drawn scenes, charts, pairs of pictures and clips: pictures that no training run has seen."""
    cases = []
    for kind, count in POCKET:
        for number in range(count):
            sample, pictures = held_out(kind, number)
            shown = (Film(tuple(pictures)),) if kind == "clip" else tuple(pictures)
            cases.append(Case(f"{kind}-{number}", text_of(sample.turns[0].question).strip(), shown))
    return cases


SUITES: dict[str, Callable[[], list[Case]]] = {"pocket": pocket, "ablations": pocket, "trees": pocket}
"""By name; `ablations` and `trees` ask the same and differ in who answers."""


def find(name: str) -> list[Case]:
    """The cases of a suite; ValueError with the known ones."""
    if name not in SUITES:
        raise ValueError(f"There is no suite {name!r}; known: {', '.join(SUITES)}.")
    return SUITES[name]()
