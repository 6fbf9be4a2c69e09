"""Whole conversations: pictures with as many turns as fit, drawn at random; and held-out questions.

Given shares of drills and charts, returns samples. A drill is a short look-up in one fixed form,
used only in training: it asks for one thing and its answer is little else, so that what a long
answer teaches once is taught ten times with the same visual tokens. Knows which questions a picture
can answer, but no tokens and no models.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from PIL import Image

from recipes.world import scenes as world
from recipes.world import texts, texts_changes
from recipes.world.scenes import NUMBERS, Chart, Clip, Scene
from recipes.world.texts import (
    Look,
    Piece,
    Sample,
    Turn,
    Word,
    joined,
    look_of,
    matches,
    number,
    phrase,
    place,
    text_of,
    unique,
)

PAIR, FRAMES = ("first", "second"), ("frame one", "frame two", "frame three", "frame four")
HELD_OUT = 3 * 10**12
"""Where held-out seeds begin; training seeds are far below."""


def countable_scene(rng: random.Random, n: int) -> Scene:
    """A scene in which attributes repeat, so that counting is not always 'one'."""
    scene = world.random_scene(rng, n, distinct=False)
    model, attribute = rng.choice(scene.things), rng.choice(["colour", "kind"])
    share = rng.uniform(0.2, 0.8)
    same = {attribute: getattr(model, attribute)}
    things = tuple(replace(t, **same) if rng.random() < share else t for t in scene.things)
    return replace(scene, things=things)


def question(rng: random.Random, scene: Scene) -> Turn:
    """One question of a random kind that this scene can answer."""
    makers, weights = zip(*texts.QUESTIONS, strict=True)
    while True:
        turn = rng.choices(makers, weights)[0](rng, scene)
        if turn is not None:
            return turn


def length(turn: Turn) -> int:
    """Return about how many tokens a turn takes: nearly one per word."""
    return len((text_of(turn.question) + " " + text_of(turn.answer)).split()) + 8


def one_picture(rng: random.Random, n: int, room: int, drilled: float, charts: float) -> Sample:
    """A picture of at most `n` objects and as many turns as fit in about `room` tokens."""
    turns: list[Turn] = []
    if rng.random() < charts:
        chart = world.random_chart(rng, rng.randint(2, 5))
        if rng.random() < drilled:
            return Sample((chart,), _filled(lambda: drill_chart(rng, chart), room))
        turns = [texts.read_chart(rng, chart)] if rng.random() < 0.7 else []
        while sum(map(length, turns)) < room - 18 and len(turns) < 6:
            turns.append(texts.ask_chart(rng, chart))
        return Sample((chart,), tuple(turns))
    scene = countable_scene(rng, n) if rng.random() < 0.5 else world.random_scene(rng, n)
    if rng.random() < drilled:
        return Sample((scene,), _filled(lambda: drill_scene(rng, scene), room))
    if rng.random() < 0.5:
        turns.append(texts.describe(rng, scene))
    while sum(map(length, turns)) < room - 25:
        turns.append(question(rng, scene))
    return Sample((scene,), tuple(turns))


def several_pictures(rng: random.Random, n: int, room: int = 0, drilled: float = 0.0) -> Sample:
    """Return a pair to compare, a pair to describe, or a clip; after the answer, drills while there
    is room.

    A share `drilled` of the samples begins with drills, so that the answer comes after its parts
    were looked up.
    """
    roll = rng.random()
    first = rng.random() < drilled
    if roll < 0.64:
        sample = texts_changes.compare(rng, rng.randint(1, n))
        scenes = cast(tuple[Scene, Scene], sample.pictures)

        def drill() -> Turn:
            if rng.random() < 0.4:
                return drill_change(rng, *scenes)
            return drill_pictures(rng, scenes, PAIR)

    elif roll < 0.68:
        return texts_changes.describe_both(rng, 2)
    else:
        clip = texts_changes.random_clip(rng, rng.random() < 0.5)
        sample = Sample(clip.frames, (texts_changes.ask_clip(rng, clip),))

        def drill() -> Turn:
            if rng.random() < 0.4:
                return drill_event(rng, clip)
            return drill_pictures(rng, clip.frames, FRAMES)

    more = _filled(drill, room - length(sample.turns[0])) if room else ()
    return replace(sample, turns=(*more, *sample.turns) if first else (*sample.turns, *more))


def _filled(make: Callable[[], Turn], room: int) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    while sum(map(length, turns)) < room:
        turns.append(make())
    return tuple(turns)


# ---------------------------------------------------------------- drills


def _drill(
    question: list[Piece], answer: list[Piece], look: Look, rest: tuple[int, ...] | None = None
) -> Turn:
    return Turn("drill", question, [" ", *answer], look=look, rest=rest)


def drill_scene(rng: random.Random, scene: Scene) -> Turn:
    """What is there, where is it, which colour, how many, all of them."""
    roll = rng.random()
    if roll < 0.36:
        return _at_place(rng, scene, (scene,), [])
    if roll < 0.56:
        turn = _find(rng, scene, [])
        if turn is not None:
            return turn
    if roll < 0.66:
        t = unique(scene, rng, "kind")
        if t is not None:
            word = Word(t.kind, look_of(t, "place", "colour", "size"))
            return _drill(["colour of the ", word, "?"], [Word(t.colour)], look_of(t, "colour"))
    _, value, hits = matches(rng, scene)
    places, n = tuple(t.place for t in hits), len(hits)
    look = {"number": NUMBERS[n]}
    target = Word(value, look, places)
    if roll < 0.8:
        return _drill(["number of ", target, "?"], [number(n)], look, places)
    items: list[list[Piece]] = [[place(p, scene, places[i + 1 :])] for i, p in enumerate(places)]
    return _drill(["all ", target, "?"], joined(items or [[Word("nothing")]]), look, places)


def _at_place(
    rng: random.Random, scene: Scene, pictures: Sequence[Scene], lead: list[Piece]
) -> Turn:
    """'top left?' of one picture; mostly places that are taken in some picture."""
    taken = sorted({t.place for s in pictures for t in s.things})
    p = rng.choice(taken) if taken and rng.random() < 0.88 else rng.randrange(9)
    return _drill([*lead, place(p, scene), "?"], _named(scene, p), look_of(scene.at(p)))


def _named(scene: Scene, p: int) -> list[Piece]:
    """What is at a place, without an article: 'large red star' or 'empty'."""
    t = scene.at(p)
    return [Word("empty")] if t is None else phrase(t, article=False)


def _find(rng: random.Random, scene: Scene, lead: list[Piece]) -> Turn | None:
    """'red star?' of one picture: its place."""
    t = unique(scene, rng, "colour", "kind")
    if t is None:
        return None
    look = look_of(t, "place")
    return _drill([*lead, t.colour, " ", Word(t.kind, look), "?"], [place(t.place, scene)], look)


def drill_chart(rng: random.Random, chart: Chart) -> Turn:
    """The value of a colour, the colour of a value, the bars in order, the highest."""
    values = [v for _, v in chart.bars]
    colour, value = rng.choice(chart.bars)
    roll = rng.random()
    if roll < 0.5:
        look = {"number": NUMBERS[value]}
        return _drill([Word(colour, look), "?"], [number(value)], look)
    if roll < 0.65 and values.count(value) == 1:
        look = {"colour": colour}
        return _drill([Word(NUMBERS[value], look), "?"], [Word(colour)], look)
    if roll < 0.75 and values.count(max(values)) == 1:
        best = chart.bars[values.index(max(values))][0]
        high = {"number": NUMBERS[max(values)]}
        return _drill(["highest?"], [Word(best, high)], {**high, "colour": best})
    bars: list[list[Piece]] = [
        [Word(c, {"number": NUMBERS[v]}), " ", number(v)] for c, v in chart.bars
    ]
    look = {"number": NUMBERS[len(bars)], "colour": chart.bars[0][0]}
    return _drill(["bars?"], joined(bars), look)


def drill_pictures(rng: random.Random, pictures: Sequence[Scene], names: Sequence[str]) -> Turn:
    """One look-up in one of several pictures, named 'first', 'frame two' and so on."""
    i = rng.randrange(len(pictures))
    lead: list[Piece] = [names[i], ", "]
    if rng.random() < 0.3:
        turn = _find(rng, pictures[i], lead)
        if turn is not None:
            return turn
    return _at_place(rng, pictures[i], pictures, lead)


def drill_change(rng: random.Random, first: Scene, second: Scene) -> Turn:
    """'changed?' of a pair: every place that differs, with what was and what is there."""
    places = tuple(p for p in range(9) if first.at(p) != second.at(p))
    if not places:
        return _drill(["changed?"], [Word("nothing")], {}, places)
    look = look_of(first.at(places[0]), "kind", "colour")
    walk = [(p, place(p, first, places[i + 1 :])) for i, p in enumerate(places)]
    if rng.random() < 0.4:
        return _drill(["changed?"], joined([[word] for _, word in walk]), look, places)
    answer: list[Piece] = []
    for p, word in walk:
        answer += [". "] if answer else []
        answer += [word, ", ", *_named(first, p), " to ", *_named(second, p)]
    return _drill(["changes?"], answer, look, places)


def drill_event(rng: random.Random, clip: Clip) -> Turn:
    """'event?' of a clip: who, and what happens to it, in the fewest words."""
    a, d, start = clip.actor, clip.detail, clip.frames[0]
    who = phrase(a, article=False, size=False)
    if clip.event == "move":
        what: list[Piece] = [place(a.place, start), " to ", place(d["to"], clip.frames[-1])]
    elif clip.event == "grow":
        what = [Word(d["to"])]
    else:
        words = {"colour": d.get("colour", ""), "gone": "gone", "appear": "new"}[clip.event]
        what = [Word(words), " in frame ", number(d["frame"] + 1)]
    look = look_of(a, "kind", "colour", "place")
    return _drill(["event?"], [*who, ", ", *what], look, (a.place,))


# ---------------------------------------------------------------- held-out questions


def _one(maker: Callable[[random.Random, Scene], Turn | None], countable: bool = False) -> Callable:
    def make(rng: random.Random) -> Sample:
        while True:
            n = rng.randint(1, 5)
            scene = countable_scene(rng, n) if countable else world.random_scene(rng, n)
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
    """Return held-out sample number `i` of a kind of question, with its pictures at a size that
    visitors send.
    """
    return numbered(HELD_OUT, kind, i)


def numbered(seed: int, kind: str, i: int) -> tuple[Sample, list[Image.Image]]:
    """Return sample number `i` of a kind of question among those that begin at a seed."""
    rng = random.Random(seed + 10**6 * sorted(KINDS_OF_TURN).index(kind) + i)
    sample = KINDS_OF_TURN[kind](rng)
    return sample, [world.draw(p, (288, 288), rng) for p in sample.pictures]
