"""Trees against a walk over parents, and those that policies grow, against drafters whose every
answer is known: tables, and prompt lookup."""

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specvl_demo.core.sampling import Level
from specvl_demo.core.tree import DraftTree, chain, shape_of, shape_of_rank_paths
from specvl_demo.core.types import LevelRequest, Verdict, Vocabulary
from specvl_demo.methods.ngram import NgramDrafter
from specvl_demo.methods.policies import (
    EAGLE_TREE,
    STATIC_TREE,
    BestFirst,
    BestFirstSettings,
    Chain,
    ChainSettings,
    StaticSettings,
    StaticTree,
)
from tests.fakes import TableDrafter


def ancestors_of(parent: tuple[int, ...], node: int) -> list[int]:
    """Nodes from `node` up to the root."""
    found = [node]
    while parent[found[-1]] != -1:
        found.append(parent[found[-1]])
    return found


def test_everything_derived_from_parents_agrees_with_a_walk():
    rng = random.Random(0)
    for _ in range(200):
        parent = (-1, *(rng.randrange(i) for i in range(1, rng.randint(1, 20))))
        shape = shape_of(parent)
        length = rng.randint(0, 9)
        additive = shape.mask(length, torch.float32, torch.device("cpu"))
        assert additive.shape == (len(shape), length + len(shape))
        for node in range(len(parent)):
            up = ancestors_of(parent, node)
            assert shape.depth[node] == len(up) - 1
            assert shape.path(node) == up[::-1]
            assert shape.ancestors[node].nonzero()[:, 0].tolist() == sorted(up)
            assert shape.children[node] == tuple(i for i, p in enumerate(parent) if p == node)
            seen = [*range(length), *(length + i for i in sorted(up))]
            assert (additive[node] == 0).nonzero()[:, 0].tolist() == seen
            n_hidden = length + len(parent) - len(seen)
            assert (additive[node] <= torch.finfo(torch.float32).min).sum() == n_hidden


def test_the_published_static_tree():
    """SpecVLM's mc_sim_7b_63, as listed in its code: its 26 nodes' parents, depth first."""
    shape, ranks = shape_of_rank_paths(EAGLE_TREE)
    parents = "-1 0 1 2 3 4 4 3 3 2 2 1 11 11 1 14 14 0 17 18 17 0 21 21 0 24"
    assert " ".join(map(str, shape.parent)) == parents
    assert ranks[:9] == (0, 0, 0, 0, 0, 0, 1, 1, 2)


V = 30
TABLE = torch.randn(V, V, generator=torch.Generator().manual_seed(0)) * 2
LOGP = TABLE.log_softmax(-1)
ROOT = torch.tensor([4])


def propose(policy: object, room: int = 99) -> tuple[DraftTree, TableDrafter]:
    drafter = TableDrafter(TABLE)
    tree = policy.propose(drafter, ROOT, room)
    assert len(tree) <= policy.max_nodes
    assert len(drafter.fed) <= max(policy.max_fed, policy.max_nodes)
    assert max(tree.shape.depth) <= room
    assert tree.tokens[0] == ROOT
    return tree, drafter


def check(tree: DraftTree, drafter: TableDrafter) -> None:
    """Log-probabilities are the drafter's, siblings differ, rows lead to the node's own token."""
    tokens = tree.tokens.tolist()
    for node, parent in enumerate(tree.shape.parent):
        if node:
            assert tree.logp[node] == pytest.approx(float(LOGP[tokens[parent], tokens[node]]))
        if tree.rows[node] >= 0:
            assert drafter.fed[tree.rows[node]] == tokens[node]
            assert node == 0 or tree.rows[parent] >= 0
        children = [tokens[child] for child in tree.shape.children[node]]
        assert len(set(children)) == len(children)


@pytest.mark.parametrize("room", [1, 2, 5, 99])
def test_a_chain_drafts_the_likeliest_token_each_time(room: int):
    tree, drafter = propose(Chain(ChainSettings(5)), room)
    check(tree, drafter)
    expected = [4]
    for _ in range(min(5, room)):
        expected.append(int(TABLE[expected[-1]].argmax()))
    assert tree.tokens.tolist() == expected
    # The last drafted token is never fed: what follows it is not needed.
    assert drafter.fed == expected[:-1]


@pytest.mark.parametrize("floor", [0.01, 0.1, 0.3, 0.9])
def test_a_chain_stops_where_its_probability_falls_below_the_floor(floor: float):
    tree, drafter = propose(Chain(ChainSettings(9, floor)))
    check(tree, drafter)
    whole, _ = propose(Chain(ChainSettings(9)))
    after = whole.logp[1:].cumsum(0).exp()
    # The first token below it is the last that is drafted.
    n = int((after >= floor).sum()) + 1
    assert 1 <= n <= 9 and tree.tokens.tolist() == whole.tokens[: n + 1].tolist()


@pytest.mark.parametrize("room", [1, 2, 3, 4, 5, 9])
def test_a_ranked_tree_holds_the_tokens_of_its_ranks(room: int):
    tree, drafter = propose(StaticTree(), room)
    check(tree, drafter)
    tokens = tree.tokens.tolist()
    found = set()
    for node in range(1, len(tree)):
        path = tree.shape.path(node)
        order = [TABLE[tokens[a]].argsort(descending=True).tolist() for a in path[:-1]]
        found.add(tuple(order[i].index(tokens[b]) for i, b in enumerate(path[1:])))
    assert found == {path for path in EAGLE_TREE if len(path) <= room}
    # Only inner nodes are fed, one forward a level.
    inner = [node for node in range(len(tree)) if tree.shape.children[node]]
    assert sorted(drafter.fed) == sorted(tokens[node] for node in inner)


@pytest.mark.parametrize("size", [2, 6, 12, 26])
def test_a_smaller_static_tree_keeps_so_many_of_the_nodes(size: int):
    tree, drafter = propose(STATIC_TREE.build(StaticSettings(size)))
    check(tree, drafter)
    assert len(tree) == size


def brute_best_first(nodes: int, width: int, loops: int) -> list[tuple[int, ...]]:
    """EAGLE-2 by the book, in plain Python: token paths of the tree without its root."""
    scored = {}

    def expand(path: tuple[int, ...], score: float) -> None:
        logp = LOGP[path[-1] if path else 4]
        for token in logp.topk(width).indices.tolist():
            scored[(*path, token)] = score + float(logp[token])

    expand((), 0.0)
    frontier = list(scored)
    for _ in range(loops):
        born = []
        for path in frontier:
            before = set(scored)
            expand(path, scored[path])
            born += [p for p in scored if p not in before]
        frontier = sorted(born, key=lambda p: -scored[p])[:width]
    return sorted(scored, key=lambda p: -scored[p])[: nodes - 1]


@pytest.mark.parametrize("room", [1, 2, 99])
@pytest.mark.parametrize(
    ("nodes", "width", "loops"),
    # The last has fewer candidates than nodes, and keeps them all.
    [(2, 1, 0), (8, 3, 2), (20, 4, 3), (60, 10, 5), (5, 10, 0), (60, 3, 2)],
)
def test_best_first_is_eagle_2_by_the_book(nodes: int, width: int, loops: int, room: int):
    tree, drafter = propose(BestFirst(BestFirstSettings(nodes, width, loops)), room)
    check(tree, drafter)
    tokens = tree.tokens.tolist()
    found = {tuple(tokens[i] for i in tree.shape.path(node)[1:]) for node in range(1, len(tree))}
    assert found == set(brute_best_first(nodes, width, min(loops, room - 1)))
    sums = tree.shape.ancestors.float() @ tree.logp
    assert tree.likely == pytest.approx(sums.exp().tolist())
    assert tree.shape.depth == tuple(sorted(tree.shape.depth))


class Certain(TableDrafter):
    """Counts on, of which it is sure, by itself as far as it is asked to."""

    def __init__(self) -> None:
        super().__init__(80.0 * torch.eye(4).roll(1, 1) + 40.0 * torch.eye(4).roll(2, 1))
        self.levels: list[int] = []

    def draft_level(self, request: LevelRequest) -> Level:
        self.levels.append(request.levels)
        levels = [super().draft_level(request)]
        for _ in range(1, request.levels):
            row = len(self.fed) - 1
            next_one = replace(request, tokens=levels[-1].tokens[-1, :1], parents=(row,))
            levels.append(super().draft_level(next_one))
        return Level(*map(torch.cat, list(zip(*levels))[:3]))


@pytest.mark.parametrize(
    ("limits", "worth", "levels", "fed", "tokens"),
    [
        ((6, 1, 8), None, "5", "0 1 2 3 0", "0 1 2 3 0 1"),
        ((9, 1, 2), None, "3", "0 1 2", "0 1 2 3"),
        ((6, 2, 8), None, "1 1 1 1 1", "0 2 1 3 2 3 0", "0 1 2 3 0 1"),
        ((3, 2, 8), None, "1 1", "0 1", "0 1 2"),
        ((9, 2, 8), 1, "1 1", "0 1", "0 1"),
    ],
    ids=["nodes", "loops", "siblings", "few nodes", "worth"],
)
def test_nothing_is_fed_whose_children_cannot_be_in_the_tree(
    limits: Any, worth: int | None, levels: str, fed: str, tokens: str
):
    """All scores on the way tie, so only the order of candidates decides. levels: Of each call."""
    policy, drafter = BestFirst(BestFirstSettings(*limits)), Certain()
    policy.worth = worth and SimpleNamespace(count=lambda likely: worth)
    tree = policy.propose(drafter, torch.tensor([0]), 99)
    for numbers, expected in (drafter.levels, levels), (drafter.fed, fed), (tree.tokens, tokens):
        assert list(numbers) == numbers_in(expected)


def numbers_in(text: str) -> list[int]:
    return [int(word) for word in text.split()]


SIZE, PLACEHOLDER = 50, 9


def lookup(prompt: list[int]) -> tuple[NgramDrafter, list[int]]:
    drafter = NgramDrafter()
    start = SimpleNamespace(
        vocabulary=Vocabulary(SIZE, banned=(PLACEHOLDER,)),
        prompt=SimpleNamespace(ids=torch.tensor(prompt)),
    )
    drafter.begin(start)
    return drafter, drafts(drafter, prompt[-1])


def drafts(drafter: NgramDrafter, root: int) -> list[int]:
    tree = Chain(ChainSettings(4)).propose(drafter, torch.tensor([root]), 99)
    return tree.tokens[1:].tolist()


def emit(drafter: NgramDrafter, tokens: list[int]) -> None:
    n = len(tokens)
    drafter.commit(
        DraftTree(torch.zeros(n, dtype=torch.long), chain(n - 1)),
        Verdict(list(range(n)), tokens, [False] * (n - 1)),
        None,
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("1 2 3 4 5 1 2 3", "4 5 1 2"),  # the longest ending
        ("1 2 7 5 1 2 8 6 1 2", "8 6 1 2"),  # the latest of two occurrences
        ("4 1 6 3 1", "6 3 1"),  # one token is enough, up to where the text ends
        ("1 2 3 4", ""),  # nothing repeats
        (f"1 2 {PLACEHOLDER} {PLACEHOLDER} 1 2", ""),  # never a placeholder
        (f"1 2 8 {PLACEHOLDER} 1 2", "8"),  # up to a placeholder
        (f"{PLACEHOLDER} 7 4 7 5 {PLACEHOLDER} 7", "5"),  # nor by one
        (f"1 2 {SIZE} 1 2", ""),  # nor what is beyond the vocabulary
        ("6 6 6", "6"),
    ],
)
def test_what_followed_last_time_follows_again(prompt: str, expected: str):
    assert lookup(numbers_in(prompt))[1] == numbers_in(expected)


def test_the_answer_is_searched_too():
    drafter, first = lookup([1, 2, 3])
    assert first == []
    emit(drafter, [7, 8])
    assert drafts(drafter, 8) == []
    emit(drafter, [1, 2])
    assert drafts(drafter, 2) == [3, 7, 8, 1]
