"""Does the pocket target look? Free-running greedy answers on held-out scenes, compared exactly with the
truth.

Held-out seeds are never drawn in training. Pictures go through the shipped processor, as a visitor's would.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tqdm import tqdm
from transformers import AutoProcessor, LlavaForConditionalGeneration

from specvl_demo.world import samples, texts, texts_changes
from specvl_demo.world import scenes as world
from specvl_demo.world.held_out_renderer import draw_otherwise
from specvl_demo.world.scenes import COLOURS, KINDS, NUMBERS, PLACES
from specvl_demo.world.texts import Sample, Turn, text_of

HELD_OUT = 3 * 10**12  # training seeds stay far below


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

    counts: dict[str, list[int]]

    def add(self, name: str, right: int | bool, total: int = 1) -> None:
        self.counts[name][0] += int(right)
        self.counts[name][1] += total

    def report(self) -> dict[str, dict[str, float | int]]:
        return {k: {"right": r / n if n else None, "n": n} for k, (r, n) in sorted(self.counts.items())}


def objects_in(answer: str) -> list[tuple[str, str, str, str]]:
    """(size, colour, kind, place) of every sentence that names one object and one place."""
    out = []
    for sentence in answer.lower().split("."):
        things, places = OBJECT.findall(sentence), PLACE.findall(sentence)
        if len(things) == 1 and len(places) == 1:
            out.append((*things[0], places[0]))
    return out


def facts(answer: str) -> tuple:
    """What a sentence about a change says: the event, and its visual words in order."""
    text = answer.lower()
    event = next((name for name, way in EVENTS.items() if re.search(way, text)), None)
    counted = [number for number in NUMBER.findall(text) if number != "no"]  # 'no change' counts nothing
    return event, PLACE.findall(text), COLOUR.findall(text), KIND.findall(text), counted


def _verdict(answer: str, turn: Turn) -> str:
    """After the walk through all places (and frames): of a pair what changed; of a clip who and where, and
    what happens."""
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
            for name, said, is_ in zip(("size", "colour", "shape"), thing, truth[place], strict=True):
                tally.add(prefix + name, said == is_)


def score(turn: Turn, answer: str, tally: Tally) -> None:
    """Compare one answer with the truth of its turn."""
    text = answer.lower()
    if turn.kind == "describe":
        score_describe(answer, turn.truth, tally)
    elif turn.kind == "where":
        place = PLACE.search(text)
        tally.add("where", bool(place) and place[1] == PLACES[turn.truth])
    elif turn.kind == "what":
        thing, t = OBJECT.search(text), turn.truth
        right = thing.groups() == (t.size, t.colour, t.kind) if thing and t else not thing and not t
        tally.add("what", right)
    elif turn.kind == "colour":
        said = COLOUR.search(text)
        tally.add("colour of", bool(said) and said[1] == turn.truth)
    elif turn.kind == "count":
        said = NUMBER.findall(text)
        tally.add("count", bool(said) and NUMBERS.index(said[-1]) == turn.truth)
    elif turn.kind == "chart":
        said = BAR.findall(text)
        truth = [(c, NUMBERS[v]) for c, v in turn.truth]
        tally.add("chart", sum(bar in said for bar in truth), max(len(truth), len(said)))
    elif turn.kind in ("compare", "clip"):
        tally.add(turn.kind, facts(_verdict(answer, turn)) == facts(_verdict(text_of(turn.answer), turn)))


def _one(maker: Callable[[random.Random, world.Scene], Turn | None], countable: bool = False) -> Callable:
    def make(rng: random.Random) -> Sample:
        while True:
            n = rng.randint(1, 5)
            scene = samples.countable_scene(rng, n) if countable else world.random_scene(rng, n)
            turn = maker(rng, scene)
            if turn is not None:
                return Sample((scene,), (turn,))

    return make


def _chart(rng: random.Random) -> Sample:
    chart = world.random_chart(rng, rng.randint(2, 5))
    return Sample((chart,), (texts.read_chart(rng, chart),))


def _clip(rng: random.Random) -> Sample:
    clip = texts_changes.random_clip(rng, rng.random() < 0.5)
    return Sample(clip.frames, (texts_changes.ask_clip(rng, clip),))


KINDS_OF_TURN: dict[str, Callable[[random.Random], Sample]] = {
    "describe": _one(texts.describe),
    "where": _one(texts.ask_where),
    "what": _one(texts.ask_what),
    "colour": _one(texts.ask_colour),
    "count": _one(texts.ask_count, countable=True),
    "chart": _chart,
    "compare": lambda rng: texts_changes.compare(rng, rng.randint(1, 4)),
    "clip": _clip,
}


def held_out(kind: str, i: int) -> tuple[Sample, list[Image.Image]]:
    """Held-out sample number `i` of a kind of question, with its pictures at a size visitors send."""
    rng = random.Random(HELD_OUT + 10**6 * sorted(KINDS_OF_TURN).index(kind) + i)
    sample = KINDS_OF_TURN[kind](rng)
    return sample, [world.draw(p, (288, 288), rng) for p in sample.pictures]


class Answerer:
    """The model and its processor; answers questions in batches, greedily."""

    def __init__(self, folder: Path) -> None:
        self.processor = AutoProcessor.from_pretrained(folder)
        self.processor.tokenizer.padding_side = "left"
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = (
            LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).to(device).eval()
        )

    @torch.inference_mode()
    def answer(
        self, items: list[tuple[str, list[Image.Image]]], batch: int = 40, max_new_tokens: int = 160
    ) -> list[str]:
        """Questions with their pictures -> answers, in order."""
        out: list[str] = []
        for i in tqdm(range(0, len(items), batch), leave=False, mininterval=5):
            some = items[i : i + batch]
            prompts = [self._prompt(question, len(pics)) for question, pics in some]
            images = [p for _, pics in some for p in pics]
            inputs = self.processor(text=prompts, images=images, return_tensors="pt", padding=True).to(
                self.model.device
            )
            inputs.pop("token_type_ids", None)
            ids = self.model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
            out += self.processor.batch_decode(
                ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
            )
        return out

    def _prompt(self, question: str, pictures: int) -> str:
        content = [*[{"type": "image"}] * pictures, {"type": "text", "text": question}]
        return self.processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True
        )


def evaluate(folder: Path, n_scenes: int = 500, n_questions: int = 200, examples: int = 0) -> dict[str, Any]:
    """Shares right by kind of question, on the training renderer's held-out scenes and on the other
    renderer's.
    """
    answerer, tally, shown = Answerer(folder), Tally(defaultdict(lambda: [0, 0])), []
    for kind in KINDS_OF_TURN:
        drawn = [held_out(kind, i) for i in range(n_scenes if kind == "describe" else n_questions)]
        asked = [(text_of(s.turns[0].question), pics) for s, pics in drawn]
        for i, ((sample, _), answer) in enumerate(zip(drawn, answerer.answer(asked), strict=True)):
            turn = sample.turns[0]
            score(turn, answer, tally)
            if i < examples:
                told = {"question": asked[i][0], "answer": answer, "truth": text_of(turn.answer)}
                shown.append({"kind": kind, **told})
    other = []
    for i in range(n_questions):
        rng = random.Random(HELD_OUT + 10**9 + i)
        scene = world.random_scene(rng, rng.randint(1, 5))
        other.append((scene, draw_otherwise(scene, rng)))
    answers = answerer.answer([("Describe the picture.", [picture]) for _, picture in other])
    for (scene, _), answer in zip(other, answers, strict=True):
        score_describe(answer, scene, tally, prefix="other renderer: ")
    about = {"model": folder.name, "scenes": n_scenes, "questions": n_questions}
    return {**about, "results": tally.report(), **({"examples": shown} if examples else {})}


def lines(report: dict[str, Any]) -> Iterator[str]:
    for name, row in report["results"].items():
        yield f"{name:28} {100 * row['right']:6.1f} %  of {row['n']}"
    for one in report.get("examples", ()):
        yield f"\n[{one['kind']}] {one['question']}\n  model {one['answer']}\n  truth {one['truth']}"
