"""Drills say what is in the picture, in one picture of several too."""

from __future__ import annotations

import random

import pytest

from specvl_demo.world import samples, texts_changes
from specvl_demo.world import scenes as world
from specvl_demo.world.scenes import NUMBERS, PLACES
from specvl_demo.world.texts import text_of


@pytest.mark.parametrize("seed", range(40))
def test_a_look_into_one_of_several_pictures_is_that_picture(seed: int) -> None:
    rng = random.Random(seed)
    pictures = texts_changes.compare(rng, 3).pictures
    turn = samples.drill_pictures(rng, pictures, samples.PAIR)
    which, what = text_of(turn.question).rstrip("?").split(", ")
    scene, said = pictures[samples.PAIR.index(which)], text_of(turn.answer).strip()
    if what in PLACES:
        thing = scene.at(PLACES.index(what))
        assert said == ("empty" if thing is None else f"{thing.size} {thing.name}")
    else:
        assert [PLACES[t.place] for t in scene.things if t.name == what] == [said]


@pytest.mark.parametrize("seed", range(20))
def test_changes_name_every_place_that_differs(seed: int) -> None:
    rng = random.Random(seed)
    first, second = texts_changes.compare(rng, 3).pictures
    turn = samples.drill_change(rng, first, second)
    differ = [PLACES[p] for p in range(9) if first.at(p) != second.at(p)]
    said = text_of(turn.answer)
    assert [p for p in PLACES if p in said] == differ or (not differ and said == " nothing")


@pytest.mark.parametrize("seed", range(20))
def test_a_chart_drill_reads_the_bars(seed: int) -> None:
    rng = random.Random(seed)
    chart = world.random_chart(rng, 4)
    turn = samples.drill_chart(rng, chart)
    question, said = text_of(turn.question).rstrip("?"), text_of(turn.answer).strip()
    bars = {c: NUMBERS[v] for c, v in chart.bars}
    if question in bars:
        assert said == bars[question]
    elif question in NUMBERS:
        assert bars[said] == question
    elif question == "bars":
        assert all(f"{c} {v}" in said for c, v in bars.items())
    else:
        assert said == max(chart.bars, key=lambda b: b[1])[0]


def test_every_event_of_a_clip_has_its_drill() -> None:
    seen = set()
    for seed in range(60):
        rng = random.Random(seed)
        clip = texts_changes.random_clip(rng, True)
        answer = text_of(samples.drill_event(rng, clip).answer)
        assert answer.startswith(f" {clip.actor.name}, ")
        if clip.event != "move":
            assert str(clip.detail.get("colour") or clip.detail.get("to") or "frame") in answer
        seen.add(clip.event)
    assert seen == set(texts_changes.CLIP_EVENTS)


def test_drills_stand_before_the_answer_only_where_asked() -> None:
    for drilled, place in ((0.0, 0), (1.0, -1)):
        sample = samples.several_pictures(random.Random(3), 3, 80, drilled)
        kinds = [t.kind for t in sample.turns]
        assert kinds[place] != "drill" and kinds.count("drill") == len(kinds) - 1
