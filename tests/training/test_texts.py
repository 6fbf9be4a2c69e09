"""Questions and answers say what the scene holds, and their marks point at the right words."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from specvl_demo.training import pocket, samples, texts
from specvl_demo.training import scenes as world
from specvl_demo.training.batches import GROUP_NAMES, Conversations, encode
from specvl_demo.training.evaluate import KINDS_OF_TURN, Tally, held_out, score
from specvl_demo.training.texts import Sample, Word, text_of


@pytest.fixture(scope="module")
def tokenizer():
    return pocket.train_tokenizer(1500)


@pytest.mark.parametrize("kind", list(KINDS_OF_TURN))
def test_the_reference_answers_are_right_by_the_evaluation_and_shuffled_ones_are_not(kind):
    turns = [held_out(kind, i)[0].turns[0] for i in range(40)]
    right, wrong = (Tally(defaultdict(lambda: [0, 0])) for _ in range(2))
    for turn, other in zip(turns, turns[1:] + turns[:1], strict=True):
        score(turn, text_of(turn.answer), right)
        score(turn, text_of(other.answer), wrong)
    assert all(r == n for r, n in right.counts.values())
    assert any(r < 0.7 * n for r, n in wrong.counts.values())


@pytest.mark.parametrize("seed", range(30))
def test_marks_sit_on_the_tokens_of_their_words(tokenizer, seed):
    rng = random.Random(seed)
    sample = samples.one_picture(rng, rng.randint(1, 6), 120, 0.3, 0.2)
    row = encode(tokenizer, sample)
    words = [p for t in sample.turns for p in [*t.question, t.at, *t.answer] if isinstance(p, Word)]
    marked = [w for w in words for _ in w.look]
    assert len(marked) == len(row.looks)
    for word, (position, group, index) in zip(marked, row.looks, strict=True):
        assert index == word.look[GROUP_NAMES[group]]
        if word.text:
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
    data = Conversations(tokenizer, seed=1, total=100, batch=3, n_glances=2)
    for step in (2, 60):
        a, b = data[step], data[step]
        assert all((getattr(a, k) == getattr(b, k)).all() for k in vars(a))
    assert data[60].patches.shape[1:] == (pocket.N_PATCHES, len(GROUP_NAMES))
