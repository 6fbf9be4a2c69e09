"""Tests whether the pocket target really reads pictures: free-running greedy answers on held-out
scenes, compared exactly with the truth.

Held-out seeds are never drawn in training. Pictures go through the shipped processor, like a
visitor's.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from recipes.answers import greedy_texts
from recipes.world import scenes as world
from recipes.world.held_out_renderer import draw_otherwise
from recipes.world.samples import HELD_OUT, KINDS_OF_TURN, held_out
from recipes.world.scenes import COLOURS, KINDS, NUMBERS, PLACES
from recipes.world.texts import Turn, text_of
from specvl_demo.serving import loader
from specvl_demo.serving.availability import Options
from specvl_demo.serving.custom import custom_pair
from specvl_demo.serving.loader import Loaded
from specvl_demo.vlm import prompts

MOST = 160
"""Maximum length of an answer, in tokens."""


def _any(words: Iterable[str]) -> str:
    return r"\b(" + "|".join(sorted(words, key=len, reverse=True)) + r")\b"


PLACE, COLOUR, KIND = re.compile(_any(PLACES)), re.compile(_any(COLOURS)), re.compile(_any(KINDS))
NUMBER = re.compile(r"(?<!digit )\b" + _any(NUMBERS) + r"\b")
OBJECT = re.compile(rf"(small|large) {_any(COLOURS)} {_any(KINDS)}")
BAR = re.compile(rf"the {_any(COLOURS)} bar (?:reaches|has a value of|stands at) {_any(NUMBERS)}")
EVENTS = {
    "move": r"moved|jumped|moves|travels|slides|glides",
    "gone": r"\bgone\b|disappear|missing|vanish",
    "new": r"is new|appears|shows up",
    "grow": r"grows|larger",
    "shrink": r"shrinks|smaller",
    "same": r"the same\b|no change",
    "change": r"turned|turns|became|becomes|changed to|changes to",
}


@dataclass
class Tally:
    """Right answers out of all, by name."""

    counts: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))

    def add(self, name: str, right: int | bool, total: int = 1) -> None:
        self.counts[name][0] += int(right)
        self.counts[name][1] += total

    def report(self) -> dict[str, dict[str, float | None]]:
        return {
            k: {"right": r / n if n else None, "n": n} for k, (r, n) in sorted(self.counts.items())
        }


def objects_in(answer: str) -> list[tuple[str, str, str, str]]:
    """Return (size, colour, kind, place) of every sentence that names one object and one place."""
    out = []
    for sentence in answer.lower().split("."):
        things, places = OBJECT.findall(sentence), PLACE.findall(sentence)
        if len(things) == 1 and len(places) == 1:
            out.append((*things[0], places[0]))
    return out


def facts(answer: str) -> tuple:
    """Return what a sentence about a change states: the event, and its visual words in order."""
    text = answer.lower()
    event = next((name for name, way in EVENTS.items() if re.search(way, text)), None)
    # 'no change' counts nothing.
    counted = [number for number in NUMBER.findall(text) if number != "no"]
    return event, PLACE.findall(text), COLOUR.findall(text), KIND.findall(text), counted


def _verdict(answer: str, turn: Turn) -> str:
    """Return the part after the walk through all places (and frames): of a pair what changed; of a
    clip who and where, and what happens.
    """
    steps = [s for s in answer.split(".")[1:] if "rame one shows " not in s]
    return ".".join(steps[: 1 if turn.kind == "compare" else 2])


def score_describe(answer: str, scene: world.Scene, tally: Tally, prefix: str = "") -> None:
    truth = {PLACES[t.place]: (t.size, t.colour, t.kind) for t in scene.things}
    found = objects_in(answer)
    tally.add(prefix + "objects", sum((*v, p) in found for p, v in truth.items()), len(truth))
    tally.add(prefix + "scene", sorted(found) == sorted((*v, p) for p, v in truth.items()))
    tally.add(prefix + "ground", scene.ground in answer.split(".")[0])
    for *thing, place in found:
        tally.add(prefix + "place", place in truth)
        if place in truth:
            parts = zip(("size", "colour", "shape"), thing, truth[place], strict=True)
            for name, given, is_ in parts:
                tally.add(prefix + name, given == is_)


def score(turn: Turn, answer: str, tally: Tally) -> None:
    """Compare one answer with the truth of its turn."""
    text = answer.lower()
    if turn.kind == "describe":
        score_describe(answer, turn.truth, tally)
    elif turn.kind == "where":
        tally.add("where", PLACE.findall(text)[:1] == [PLACES[turn.truth]])
    elif turn.kind == "what":
        t = turn.truth
        tally.add("what", OBJECT.findall(text)[:1] == ([(t.size, t.colour, t.kind)] if t else []))
    elif turn.kind == "colour":
        tally.add("colour of", COLOUR.findall(text)[:1] == [turn.truth])
    elif turn.kind == "count":
        tally.add("count", NUMBER.findall(text)[-1:] == [NUMBERS[turn.truth]])
    elif turn.kind == "chart":
        given = BAR.findall(text)
        truth = [(c, NUMBERS[v]) for c, v in turn.truth]
        tally.add("chart", sum(bar in given for bar in truth), max(len(truth), len(given)))
    elif turn.kind in ("compare", "clip"):
        stated, true = (facts(_verdict(one, turn)) for one in (answer, text_of(turn.answer)))
        tally.add(turn.kind, stated == true)


def _answers(loaded: Loaded, questions: list[tuple[str, list[Image.Image]]]) -> Iterator[str]:
    """Yield greedy answers to questions with their pictures, in order."""
    turns = (prompts.Turn(question, tuple(shown)) for question, shown in questions)
    return greedy_texts(
        loaded, (loaded.prompter.prompt([turn], room=MOST).inputs for turn in turns), MOST
    )


def evaluate(folder: Path, n_scenes: int, n_questions: int, examples: int) -> dict[str, Any]:
    """Return shares right by kind of question, on the training renderer's held-out scenes and on
    the other renderer's.
    """
    loaded = loader.load(custom_pair(str(folder)), roles=(), options=Options("float32"))
    tally, shown = Tally(), []
    for kind in KINDS_OF_TURN:
        drawn = [held_out(kind, i) for i in range(n_scenes if kind == "describe" else n_questions)]
        questions = [(text_of(s.turns[0].question), pics) for s, pics in drawn]
        answered = zip(drawn, _answers(loaded, questions), strict=True)
        for i, ((sample, _), answer) in enumerate(answered):
            turn = sample.turns[0]
            score(turn, answer, tally)
            if i < examples:
                row = {"question": questions[i][0], "answer": answer, "truth": text_of(turn.answer)}
                shown.append({"kind": kind, **row})
    other = []
    for i in range(n_questions):
        rng = random.Random(HELD_OUT + 10**9 + i)
        scene = world.random_scene(rng, rng.randint(1, 5))
        other.append((scene, draw_otherwise(scene, rng)))
    answers = _answers(loaded, [("Describe the picture.", [picture]) for _, picture in other])
    for (scene, _), answer in zip(other, answers, strict=True):
        score_describe(answer, scene, tally, prefix="other renderer: ")
    about = {"model": folder.name, "scenes": n_scenes, "questions": n_questions}
    return {**about, "results": tally.report(), **({"examples": shown} if examples else {})}


def lines(report: dict[str, Any]) -> Iterator[str]:
    for name, row in report["results"].items():
        yield f"{name:28} {100 * row['right']:6.1f} %  of {row['n']}"
    for one in report.get("examples", ()):
        yield (
            f"\n[{one['kind']}] {one['question']}\n  model {one['answer']}\n  truth {one['truth']}"
        )
