"""Questions and answers say what the scene holds, and their marks point at the right words."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from specvl_demo.training import pocket
from specvl_demo.training.batches import Conversations, encode
from specvl_demo.training.pictures import GROUP_NAMES
from specvl_demo.training.pocket_eval import Tally, facts, score
from specvl_demo.world import samples, texts, texts_changes
from specvl_demo.world import scenes as world
from specvl_demo.world.samples import KINDS_OF_TURN, held_out
from specvl_demo.world.texts import GROUPS, Sample, Word, text_of
from specvl_demo.world.texts_changes import change_sentence


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
        names = ["nothing" if t is None else f"a {t.size} {t.colour} {t.kind}" for t in (before, after)]
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
    said = tokenizer.decode([i for i, label in zip(row.ids, row.labels, strict=True) if label != -100])
    assert said == "".join(text_of(t.answer) + "<eos>" for t in turns)


def test_the_training_format_is_the_chat_template_s(tokenizer):
    scene = world.random_scene(random.Random(3), 2)
    turn = texts.ask_count(random.Random(1), scene)
    processor = pocket.make_processor(tokenizer)
    user = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text_of(turn.question)}]}
    reply = {"role": "assistant", "content": text_of(turn.answer)}
    prompt = processor.apply_chat_template([user, reply])
    ids = processor(text=prompt, images=[world.draw(scene)], return_tensors="pt")["input_ids"][0].tolist()
    assert ids == encode(tokenizer, Sample((scene,), (turn,))).ids


def test_a_batch_is_always_the_same_batch(tokenizer):
    data = Conversations(tokenizer, seed=1, total=100, batch=3, n_crowded=2)
    for step in (2, 60):
        a, b = data[step], data[step]
        assert all((getattr(a, k) == getattr(b, k)).all() for k in vars(a))
    assert data[60].patches.shape[1:] == (pocket.N_PATCHES, len(GROUP_NAMES))
