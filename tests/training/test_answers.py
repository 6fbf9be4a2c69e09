"""Conversations in the target's own words: what a batch says is what the target says alone."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import torch

from specvl_demo.core.policies import OneNode
from specvl_demo.core.types import Prompt
from specvl_demo.training import answers
from specvl_demo.training.converse import Script, converse
from specvl_demo.training.features import extended
from tests import pocketlike
from tests.conftest import EOS, tiny_prompt
from tests.drafters.test_heads import decode

MOST = 6
LATER = ([20, 21, 22], [23, 24])


def alone(target: object, prompt: Prompt, turns: int) -> list[list[int]]:
    """Turn after turn, each as a request of its own that holds everything said before."""
    ids, found = prompt.ids.tolist(), []
    for turn in range(turns):
        now = torch.tensor(ids)
        inputs = extended(prompt.inputs, ids[len(prompt) :])
        said, _ = decode(target, None, OneNode(), Prompt(now, now == 3, inputs), max_new_tokens=MOST)
        found.append(list(takewhile(lambda token: token != EOS, said)))
        ids = [*ids, *found[-1], EOS, *(LATER[turn] if turn < len(LATER) else [])]
    return found


def test_a_batch_of_conversations_says_what_each_says_alone(target: object) -> None:
    """Prompts of several lengths, one to three turns, answers of several lengths, all in one batch."""
    prompts = [tiny_prompt(1 + i % 2, words=4 + 3 * i, seed=i) for i in range(4)]
    turns = [1, 3, 2, 3]
    scripts = [
        Script(target.encode(p).context("script"), [p.ids[-1:].tolist(), *LATER[: n - 1]])
        for p, n in zip(prompts, turns, strict=True)
    ]
    together = converse(target.vlm, scripts, MOST)
    for prompt, n, found in zip(prompts, turns, together, strict=True):
        wanted = alone(target, prompt, n)
        if not any(3 in answer for answer in wanted):
            assert found == wanted


def test_a_file_of_answers_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    """Seeds in order, an answer to every turn; a second call adds what is missing and changes nothing."""
    pocketlike.save_pair(tmp_path)
    out = tmp_path / "answers.jsonl"
    for n in (3, 5, 5):
        answers.regenerate(tmp_path / "target", out, n, seed=7, batch=2, max_new_tokens=5)
        first = out.read_text().splitlines()[:3]
    rows = answers.read(out)
    assert [seed for seed, _ in rows] == [7 * 10**9 + i for i in range(5)]
    assert out.read_text().splitlines()[:3] == first
    for seed, said in rows:
        assert len(said) == len(answers.drawn(seed).sample.turns)
