"""Prompt lookup."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Verdict, Vocabulary
from specvl_demo.methods.chain import Chain, ChainSettings
from specvl_demo.methods.ngram import NGram, NGramSettings

SIZE, PLACEHOLDER = 50, 9


def lookup(prompt: list[int], gamma: int = 4, **settings: int) -> tuple[NGram, list[int]]:
    drafter = NGram(NGramSettings(**settings))
    start = SimpleNamespace(
        vocabulary=Vocabulary(SIZE, banned=(PLACEHOLDER,)), prompt=SimpleNamespace(ids=torch.tensor(prompt))
    )
    drafter.begin(start)
    return drafter, drafts(drafter, prompt[-1], gamma)


def drafts(drafter: NGram, root: int, gamma: int = 4) -> list[int]:
    return Chain(ChainSettings(gamma)).propose(drafter, torch.tensor([root]), 99).tokens[1:].tolist()


def emit(drafter: NGram, tokens: list[int]) -> None:
    n = len(tokens)
    drafter.commit(
        DraftTree(torch.zeros(n, dtype=torch.long), chain(n - 1)),
        Verdict(list(range(n)), tokens, [False] * (n - 1)),
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
        NGramSettings(longest=1, shortest=2)
