"""Prompt lookup and the scripted drafter."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specvl_demo.core.engine import Lane, Request, Shared
from specvl_demo.core.policies import Chain
from specvl_demo.core.text import Lexicon
from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Verdict, Vocabulary
from specvl_demo.drafters.ngram import NGram
from specvl_demo.drafters.scripted import Scripted
from tests.conftest import spell
from tests.fakes import TableTarget, parts, table_prompt

SIZE, PLACEHOLDER = 50, 9


def lookup(prompt: list[int], gamma: int = 4, **settings: int) -> tuple[NGram, list[int]]:
    drafter = NGram(**settings)
    start = SimpleNamespace(
        vocabulary=Vocabulary(SIZE, banned=(PLACEHOLDER,)), prompt=SimpleNamespace(ids=torch.tensor(prompt))
    )
    drafter.begin(start)
    return drafter, drafts(drafter, prompt[-1], gamma)


def drafts(drafter: NGram, root: int, gamma: int = 4) -> list[int]:
    return Chain(gamma).grow(drafter, torch.tensor([root]), 99).tokens[1:].tolist()


def emit(drafter: NGram, tokens: list[int]) -> None:
    n = len(tokens)
    drafter.commit(
        DraftTree(torch.zeros(n, dtype=torch.long), chain(n - 1)),
        Verdict(list(range(n)), tokens, [False] * (n - 1), tokens),
        None,
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2, 3], [4, 5, 1, 2]),  # the longest ending
        ([1, 2, 7, 5, 1, 2, 8, 6, 1, 2], [8, 6, 1, 2]),  # the latest of two occurrences
        ([4, 1, 6, 3, 1], [6, 3, 1]),  # one token is enough, up to where the text ends
        ([1, 2, 3, 4], []),  # nothing repeats
        ([1, 2, PLACEHOLDER, PLACEHOLDER, 1, 2], []),  # never a placeholder
        ([1, 2, 8, PLACEHOLDER, 1, 2], [8]),  # up to a placeholder
        ([PLACEHOLDER, 4, PLACEHOLDER, 5, PLACEHOLDER, 7], []),  # nor by one
        ([6, 6, 6], [6]),
    ],
)
def test_what_followed_last_time_follows_again(prompt: list[int], expected: list[int]) -> None:
    assert lookup(prompt)[1] == expected


def test_the_answer_is_searched_too() -> None:
    drafter, first = lookup([1, 2, 3])
    assert first == []
    emit(drafter, [7, 8])
    assert drafts(drafter, 8) == []
    emit(drafter, [1, 2])
    assert drafts(drafter, 2) == [3, 7, 8, 1]


def test_a_shortest_ending_can_be_asked_for() -> None:
    assert lookup([4, 1, 6, 3, 1], shortest=2)[1] == []
    with pytest.raises(ValueError, match="shortest"):
        NGram(longest=1, shortest=2)


@pytest.mark.parametrize("accept", [(0,), (1,), (3,), (0, 2, 5)])
def test_a_script_accepts_what_it_is_told(accept: tuple[int, ...]) -> None:
    cycle = torch.eye(8).roll(1, dims=1) * 9.0
    answer = [(i + 1) % 8 for i in range(60)]
    target = TableTarget(cycle)
    request = Request("r", table_prompt(), target, Lexicon(spell), max_new_tokens=40)
    lane = Lane("l", parts(Scripted(answer, accept), Chain(5)), Shared(request))
    lane.begin()
    rounds, said = [], []
    while not lane.done:
        rounds.append(lane.step())
        said += [token.id for token in rounds[-1].tokens]
    assert said == answer[:40]
    told = [accept[i % len(accept)] for i in range(len(rounds))]
    assert [r.n_accepted for r in rounds[:-2]] == told[:-2]


def test_a_script_refuses_negative_luck() -> None:
    with pytest.raises(ValueError, match="accept"):
        Scripted([1], (-1,))
