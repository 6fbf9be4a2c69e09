"""The pocket world: what is drawn is what is described and asked, and marks point at the right
words.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from recipes import pocket
from recipes.batches import Conversations, encode
from recipes.pictures import GROUP_NAMES
from recipes.pocket_eval import Tally, facts, score
from recipes.world import samples, texts, texts_changes
from recipes.world import scenes as world
from recipes.world.held_out_renderer import draw_otherwise
from recipes.world.samples import KINDS_OF_TURN, held_out
from recipes.world.scenes import COLOURS, GROUNDS, KINDS, NUMBERS, PLACES, Chart, Scene, Thing
from recipes.world.texts import GROUPS, Sample, Word, text_of
from recipes.world.texts_changes import change_sentence


def _pixel_at(picture, place: int) -> np.ndarray:
    w, h = picture.size
    y, x = int((place // 3 + 0.5) * h / 3), int((place % 3 + 0.5) * w / 3)
    return np.asarray(picture)[y, x].astype(int)


@pytest.mark.parametrize("place", range(9))
def test_an_object_stands_at_its_place_in_its_colour(place):
    scene = Scene((Thing("square", "green", "large", place),), "white")
    picture = world.draw(scene, (300, 240))
    assert np.abs(_pixel_at(picture, place) - COLOURS["green"]).max() <= 3
    others = [p for p in range(9) if p != place]
    assert all(np.abs(_pixel_at(picture, p) - GROUNDS["white"]).max() <= 3 for p in others)


def test_every_kind_is_drawn_and_differs_from_every_other():
    scenes = {kind: Scene((Thing(kind, "red", "large", 4),)) for kind in KINDS}
    pictures = {k: np.asarray(world.draw(scene, (120, 120))) for k, scene in scenes.items()}
    for i, a in enumerate(KINDS):
        for b in KINDS[i + 1 :]:
            differ = (np.abs(pictures[a].astype(int) - pictures[b]).max(-1) > 60).sum()
            assert differ > 20, f"{a} looks like {b}"


def test_a_clean_drawing_is_always_the_same_and_a_varied_one_is_not():
    scene = world.random_scene(random.Random(0), 4)
    assert np.array_equal(world.draw(scene), world.draw(scene))
    varied = [np.asarray(world.draw(scene, (96, 96), random.Random(s))) for s in (1, 2)]
    assert not np.array_equal(*varied)


@pytest.mark.parametrize("kind", KINDS)
def test_a_free_hand_draws_the_same_thing_there_in_many_ways(kind):
    """Bent and leaning it may be, but in its colour and about as large."""
    scene, n = Scene((Thing(kind, "red", "large", 4),), "white"), 12
    masks = []
    for seed in range(n):
        picture = world.draw(scene, (120, 120), random.Random(seed), free=True)
        red, green, _ = np.moveaxis(np.asarray(picture, int), -1, 0)
        drawn = (red - green) > 90
        rows, cols = np.nonzero(drawn)
        assert 30 < drawn.sum() < 40 * 40 and np.ptp(rows) > 15
        # A moon is thick on one side.
        assert abs(rows.mean() - 60) < 9 and abs(cols.mean() - 60) < 14
        masks.append(drawn)
    assert len({mask.tobytes() for mask in masks}) == n
    # Without a random generator there is no freedom.
    steady, free = (world.draw(scene, (120, 120), None, free) for free in (False, True))
    assert np.array_equal(steady, free)


def test_bars_are_as_high_as_their_values():
    picture = np.asarray(world.draw(Chart((("red", 3), ("blue", 9))), (200, 200))).astype(int)
    heights = [(np.abs(picture - COLOURS[c]).max(-1) < 12).any(1).sum() for c in ("red", "blue")]
    assert heights[1] / heights[0] == pytest.approx(3, rel=0.06)


@pytest.mark.parametrize("seed", range(5))
def test_the_other_renderer_puts_things_at_the_same_places(seed):
    rng = random.Random(seed)
    colour = rng.choice(list(COLOURS))
    place = rng.randrange(9)
    scene = Scene((Thing("circle", colour, "large", place),), "black")
    picture = draw_otherwise(scene, rng)
    assert np.abs(_pixel_at(picture, place) - COLOURS[colour]).max() < 60
    assert len(PLACES) == 9


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


@pytest.fixture(scope="module")
def tokenizer():
    return pocket.train_tokenizer(1500)


@pytest.mark.parametrize("kind", list(KINDS_OF_TURN))
def test_the_reference_answers_are_right_by_the_evaluation_and_shuffled_ones_are_not(kind):
    turns = [held_out(kind, i)[0].turns[0] for i in range(40)]
    right, wrong = Tally(), Tally()
    for turn, other in zip(turns, turns[1:] + turns[:1], strict=True):
        score(turn, text_of(turn.answer), right)
        score(turn, text_of(other.answer), wrong)
    assert all(r == n for r, n in right.counts.values())
    assert any(r < 0.7 * n for r, n in wrong.counts.values())


def test_the_evaluation_reads_what_is_said_and_not_how():
    rng, scene = random.Random(1), world.random_scene(random.Random(2), 3)
    old = scene.things[0]
    second = replace(scene, things=scene.things[1:])
    gone = {text_of(change_sentence(rng, "gone", scene, second, old, None)) for _ in range(60)}
    assert any("disappeared" in way for way in gone)  # which holds a colour's letters
    same = {text_of(change_sentence(rng, "same", scene, scene, old, old)) for _ in range(60)}
    assert any("no change" in way for way in same)  # which is no number
    for ways in (gone, same):
        assert len(ways) > 1
        assert len({str(facts(way)) for way in ways}) == 1


@pytest.mark.parametrize("seed", range(40))
def test_a_pair_is_compared_place_by_place(seed):
    """What is said of every place is what both pictures show there, and how it differs."""
    sample = texts_changes.compare(random.Random(seed), 3)
    first, second = sample.pictures
    walk = text_of(sample.turns[0].answer).split(".")[0].split(": ", 1)[1].split("; ")
    places = [p for p in range(9) if first.at(p) or second.at(p)]
    assert len(walk) == len(places)
    for said, p in zip(walk, places, strict=True):
        before, after = first.at(p), second.at(p)
        shown, verdict = said.removeprefix(world.PLACES[p] + " ").split(": ")
        names = ["nothing" if t is None else f"a {t.size} {t.name}" for t in (before, after)]
        assert shown == ", then ".join(names)
        assert (verdict == "same") == (before == after)
        assert (verdict == "gone") == (after is None)
        assert (verdict == "new") == (before is None)


@pytest.mark.parametrize("seed", range(30))
def test_marks_sit_on_the_tokens_of_their_words(tokenizer, seed):
    rng = random.Random(seed)
    sample = samples.one_picture(rng, rng.randint(1, 6), 120, 0.3, 0.2)
    row = encode(tokenizer, sample)
    marks = [p for t in sample.turns for p in [*t.question, t, *t.answer] if not isinstance(p, str)]
    marked = [mark for mark in marks for _ in mark.look]
    assert len(marked) == len(row.attended)
    for word, (position, group, index) in zip(marked, row.attended, strict=True):
        name = GROUP_NAMES[group]
        assert GROUPS[name][index] == word.look[name]
        if isinstance(word, Word):
            assert tokenizer.decode([row.ids[position]]).strip() in word.text


def test_labels_are_the_answers_and_nothing_else(tokenizer):
    scene = world.random_scene(random.Random(3), 3)
    turns = (texts.describe(random.Random(4), scene), texts.ask_ground(random.Random(5), scene))
    row = encode(tokenizer, Sample((scene,), turns))
    taught = [i for i, label in zip(row.ids, row.labels, strict=True) if label != -100]
    said = tokenizer.decode(taught)
    assert said == "".join(text_of(t.answer) + "<eos>" for t in turns)


def test_the_training_format_is_the_chat_template_s(tokenizer):
    scene = world.random_scene(random.Random(3), 2)
    turn = texts.ask_count(random.Random(1), scene)
    processor = pocket.make_processor(tokenizer)
    asked = [{"type": "image"}, {"type": "text", "text": text_of(turn.question)}]
    user = {"role": "user", "content": asked}
    reply = {"role": "assistant", "content": text_of(turn.answer)}
    prompt = processor.apply_chat_template([user, reply])
    inputs = processor(text=prompt, images=[world.draw(scene)], return_tensors="pt")
    (ids,) = inputs["input_ids"].tolist()
    assert ids == encode(tokenizer, Sample((scene,), (turn,))).ids


def test_a_batch_is_always_the_same_batch(tokenizer):
    data = Conversations(tokenizer, seed=1, total=100, batch=3, n_crowded=2)
    for step in (2, 60):
        a, b = data[step], data[step]
        assert all((getattr(a, k) == getattr(b, k)).all() for k in vars(a))
    assert data[60].patches.shape[1:] == (pocket.N_PATCHES, len(GROUP_NAMES))
