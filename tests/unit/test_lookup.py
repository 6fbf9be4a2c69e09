"""Drafts without a model, by themselves and before a drafter: what followed in the text before,
what the target found likely before.
"""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from specvl_demo.core.tree import DraftTree, chain, shape_of
from specvl_demo.core.types import Scores, Verdict, Vocabulary
from specvl_demo.methods.hybrid import HybridSettings, LookupFirst
from specvl_demo.methods.recycling import Recycling, RecyclingSettings
from specvl_demo.methods.suffix import Automaton, GreedySettings, GreedyTree, Suffix, SuffixSettings
from tests.fakes import TableDrafter

SIZE, PLACEHOLDER = 12, 9
VOCABULARY = Vocabulary(SIZE, banned=(PLACEHOLDER,))


def count(text: list[int], run: list[int]) -> int:
    return sum(text[i : i + len(run)] == run for i in range(len(text) - len(run) + 1))


def longest(text: list[int]) -> list[int]:
    """The longest ending without a placeholder that occurs elsewhere too."""
    return next(
        (
            text[-n:]
            for n in range(len(text) - 1, 0, -1)
            if PLACEHOLDER not in text[-n:] and count(text, text[-n:]) > 1
        ),
        [],
    )


@pytest.mark.parametrize("letters", [2, 3, 10])
def test_the_automaton_counts_what_a_search_counts(letters: int) -> None:
    """Random texts, with placeholders, after every token."""
    rng = random.Random(letters)
    for _ in range(12):
        text, automaton = [], Automaton(VOCABULARY)
        for _ in range(24):
            text.append(rng.randrange(letters))
            automaton.add(text[-1:])
            state, length = automaton.match()
            run = longest(text)
            assert length == len(run)
            if not run:
                continue
            after = {t: n for t in range(SIZE) if (n := count(text, [*run, t]))}
            after.pop(PLACEHOLDER, None)
            asked, found = automaton.followers(state)
            if after:
                assert (asked, found) == (state, after)
            for token in found:  # one further, where this continuation has gone on itself
                state = automaton.after(asked, token)
                further = {t: n for t in range(SIZE) if (n := count(text, [*run, token, t]))}
                further.pop(PLACEHOLDER, None)
                if after and further:
                    assert automaton.followers(state)[1] == further


def suffix(prompt: list[int], **settings: float) -> Suffix:
    drafter = Suffix(SuffixSettings(**settings))
    ids = torch.tensor(prompt)
    drafter.begin(SimpleNamespace(vocabulary=VOCABULARY, prompt=SimpleNamespace(ids=ids)))
    return drafter


def grown(drafter: object, root: int, room: int = 99, **settings: float) -> DraftTree:
    return GreedyTree(GreedySettings(**settings)).propose(drafter, torch.tensor([root]), room)


def test_a_tree_follows_the_commoner_continuation_first() -> None:
    text = [1, 2, 3, 4, 8, 1, 2, 3, 4, 7, 1, 2, 3, 5, 8, 1, 2, 6, 10, 1, 2]
    tree = grown(suffix(text), 2, size=3)
    # 3 followed three times of four, 6 once; after 3 came 4 twice, 5 once.
    assert tree.tokens.tolist() == [2, 3, 4]
    assert tree.logp.exp().tolist() == pytest.approx([1, 3 / 4, 2 / 3])
    whole = grown(suffix(text), 2)
    assert sorted(whole.tokens.tolist()) == [2, 3, 4, 5, 6, 10]
    assert max(whole.shape.depth) == 2


@pytest.mark.parametrize(
    ("settings", "room", "depth"), [({}, 99, 2), ({"trust": 1.5}, 99, 3), ({}, 1, 1)]
)
def test_a_match_is_trusted_for_its_own_length(
    settings: dict[str, float], room: int, depth: int
) -> None:
    text = [1, 2, 3, 4, 5, 6, 1, 2]  # a match of two tokens
    assert max(grown(suffix(text, **settings), 2, room).shape.depth) == depth


def test_improbable_paths_and_short_matches_are_not_drafted() -> None:
    text = [1, 2, 1, 3, 1, 4, 1]
    assert len(grown(suffix(text), 1, least=0.3)) == 4
    assert len(grown(suffix(text), 1, least=0.4)) == 1
    assert len(grown(suffix(text, matched=2), 1)) == 1


def test_candidates_are_those_the_target_held_likely_last() -> None:
    """Also at refused nodes; banned tokens are never kept; a new token silences the table."""
    drafter = Recycling(RecyclingSettings(keep=2))
    drafter.begin(SimpleNamespace(vocabulary=VOCABULARY))
    assert drafter.extend(torch.tensor([1]), (-1,)) is None
    logits = torch.full((3, SIZE), -5.0)
    logits[0, [3, 4, PLACEHOLDER]] = torch.tensor([2.0, 1.0, 9.0])
    logits[1, [5, 6]] = torch.tensor([1.0, 2.0])
    logits[2, [7, 8]] = torch.tensor([1.0, 2.0])
    tree = DraftTree(torch.tensor([1, 2, 2]), shape_of((-1, 0, 0)))
    drafter.commit(tree, Verdict([0], [3], []), Scores(logits, logits))
    said = drafter.extend(torch.tensor([1, 2, 11]), (-1, 0, 1))
    assert said.exp().sum(-1).tolist() == pytest.approx([1.0] * 3)
    assert [row.isfinite().nonzero().flatten().tolist() for row in said[:2]] == [[3, 4], [7, 8]]
    assert said[0].argmax() == 3 and said[1].argmax() == 8
    assert said[2].isinf().nonzero().flatten().tolist() == [PLACEHOLDER]


def test_a_long_match_is_copied_and_the_drafter_is_asked_elsewhere() -> None:
    """The drafter is not fed in a round of lookup."""
    drafter = TableDrafter(torch.eye(SIZE).roll(1, 1) * 9)  # says the next number
    policy = LookupFirst(HybridSettings(gamma=3, enough=3, copied=2))
    ids = torch.tensor([1, 2, 3, 7, 8, 4, 2, 3])
    policy.begin(SimpleNamespace(vocabulary=VOCABULARY, prompt=SimpleNamespace(ids=ids)))
    tree = policy.propose(drafter, ids[-1:], 99)  # "2 3" has two tokens
    assert tree.tokens.tolist() == [3, 4, 5, 6] and tree.notes == {"matched": 2, "copied": 0}
    assert drafter.fed == [3, 4, 5] and tree.rows == (0, 1, 2, -1)
    policy.update(tree, Verdict([0], [7], []))
    copied = policy.propose(drafter, torch.tensor([7]), 99)
    assert copied.tokens.tolist() == [7, 8, 4] and copied.notes == {"matched": 3, "copied": 2}
    assert drafter.fed == [3, 4, 5] and copied.rows is None and copied.shape == chain(2)
    assert policy.propose(drafter, torch.tensor([7]), 1).tokens.tolist() == [7, 8]
    assert len(policy.propose(drafter, torch.tensor([7]), 0)) == 1
