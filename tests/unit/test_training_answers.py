"""Conversations in the target's own words: what a batch says is what the target says alone."""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path

from specvl_demo import fingerprints, registry
from specvl_demo.methods.ar import OneNode
from specvl_demo.training import answers
from tests import pocketlike
from tests.conftest import tiny_prompt
from tests.unit.test_heads import decode

MOST = 12


def test_answers_of_a_batch_are_those_of_the_engine(target: object) -> None:
    """Prompts of several lengths, with one picture and without: padding changes nothing that is said."""
    prompts = [tiny_prompt(1, words, seed) for seed, words in enumerate((3, 9, 6))] + [tiny_prompt(0)]
    found = answers.replies(target, [prompt.inputs for prompt in prompts], MOST)
    for prompt, said in zip(prompts, found, strict=True):
        alone, _ = decode(target, None, OneNode(), prompt, max_new_tokens=MOST)
        assert said == list(takewhile(lambda token: token not in target.vocabulary.banned, alone))
    assert len({tuple(ids) for ids in found}) > 1


def test_a_file_of_answers_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    """Seeds in order, an answer to every turn, the same in batches and alone; a second call adds what is
    missing and changes nothing."""
    folder = pocketlike.save_pair(tmp_path) / "target"
    loaded = registry.load(registry.custom(str(folder)), roles=())
    words, weights = pocketlike.tokenizer(), fingerprints.of_folder(folder)
    files = [tmp_path / "together.jsonl", tmp_path / "alone.jsonl"]
    for file, batch, calls in ((files[0], 2, (3, 5, 5)), (files[1], 1, (5,))):
        for n in calls:
            target = loaded.models.target
            answers.regenerate(target, words, weights, file, n, seed=7, batch=batch, most=5)
    together, alone = ([json.loads(line) for line in file.open()] for file in files)
    assert together == alone and [row["seed"] for row in together] == [7 * 10**9 + i for i in range(5)]
    assert len({len(row["answers"]) for row in together}) > 1
    for row in together:
        assert len(row["answers"]) == len(answers.drawn(row["seed"]).sample.turns)
