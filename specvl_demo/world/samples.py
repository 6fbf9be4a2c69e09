"""Whole conversations: pictures with as many turns as fit, drawn at random.

Given shares of drills and charts; gives samples. Knows which questions a picture can answer; no tokens, no
models.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from specvl_demo.world import drills, texts, texts_changes
from specvl_demo.world import scenes as world
from specvl_demo.world.scenes import Scene
from specvl_demo.world.texts import Sample, Turn, text_of

PAIR, FRAMES = ("first", "second"), ("frame one", "frame two", "frame three", "frame four")


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
    """About how many tokens a turn takes: nearly one a word."""
    return len((text_of(turn.question) + " " + text_of(turn.answer)).split()) + 8


def one_picture(rng: random.Random, n: int, room: int, drilled: float, charts: float) -> Sample:
    """A picture of at most `n` objects and as many turns as fit in about `room` tokens."""
    turns: list[Turn] = []
    if rng.random() < charts:
        chart = world.random_chart(rng, rng.randint(2, 5))
        if rng.random() < drilled:
            return Sample((chart,), _filled(lambda: drills.drill_chart(rng, chart), room))
        turns = [texts.read_chart(rng, chart)] if rng.random() < 0.7 else []
        used = sum(map(length, turns))
        while used < room - 18 and len(turns) < 6:
            turns.append(texts.ask_chart(rng, chart))
            used += length(turns[-1])
        return Sample((chart,), tuple(turns))
    scene = countable_scene(rng, n) if rng.random() < 0.5 else world.random_scene(rng, n)
    if rng.random() < drilled:
        return Sample((scene,), _filled(lambda: drills.drill_scene(rng, scene), room))
    if rng.random() < 0.5:
        turns.append(texts.describe(rng, scene))
    while sum(map(length, turns)) < room - 25:
        turns.append(question(rng, scene))
    return Sample((scene,), tuple(turns))


def several_pictures(rng: random.Random, n: int, room: int = 0, drilled: float = 0.0) -> Sample:
    """A pair to compare, a pair to describe, or a clip; after the answer, drills while there is room. A share
    `drilled` of the samples begins with drills, so that the answer comes after its parts were looked up.
    """
    roll = rng.random()
    first = rng.random() < drilled

    def with_drills(sample: Sample, make: Callable[[], Turn]) -> Sample:
        more = _filled(make, room - length(sample.turns[0])) if room else ()
        return Sample(sample.pictures, (*more, *sample.turns) if first else (*sample.turns, *more))

    if roll < 0.64:
        pair = texts_changes.compare(rng, rng.randint(1, n))

        def of_pair() -> Turn:
            if rng.random() < 0.4:
                return drills.drill_change(rng, *pair.pictures)
            return drills.drill_pictures(rng, pair.pictures, PAIR)

        return with_drills(pair, of_pair)
    if roll < 0.68:
        return texts_changes.describe_both(rng, 2)
    clip = texts_changes.random_clip(rng, rng.random() < 0.5)

    def of_clip() -> Turn:
        if rng.random() < 0.4:
            return drills.drill_event(rng, clip)
        return drills.drill_pictures(rng, clip.frames, FRAMES)

    return with_drills(Sample(clip.frames, (texts_changes.ask_clip(rng, clip),)), of_clip)


def _filled(make: Callable[[], Turn], room: int) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    while sum(map(length, turns)) < room:
        turns.append(make())
    return tuple(turns)
