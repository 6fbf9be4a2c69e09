"""SAGE: the paper's numbers, templates by definition, online growth against a slow search."""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specvl_demo.core.sampling import Level, Sampler
from specvl_demo.core.tree import DraftTree, shape_of
from specvl_demo.core.types import Drafter, LevelRequest, Verdict
from specvl_demo.methods.policies import EAGLE_TREE
from specvl_demo.methods.sage import (
    MIN_DEPTH,
    TOP_K,
    DepthFeedback,
    EntropyTree,
    SageSettings,
    TreePlan,
    confidence,
    depth_for,
    min_path_probability,
    plan,
    template,
    why_other,
    width_for,
)
from specvl_demo.options import Sampling
from tests.shared.lanes import recorded

LIMITS = SageSettings()
V = 40


class Toy(Drafter):
    """A drafter whose distribution is a function of the tokens so far; `sharp` makes it sure."""

    def __init__(self, sharp: float = 2.0) -> None:
        self.sharp = sharp
        self.paths: list[tuple[int, ...]] = []

    def after(self, path: tuple[int, ...]) -> Tensor:
        g = torch.Generator().manual_seed(hash(path) % (1 << 31))
        return (torch.randn(V, generator=g) * self.sharp).log_softmax(-1)

    def extend(self, tokens: Tensor, parents: Sequence[int]) -> Tensor:
        if tuple(parents) == (-1,):
            self.paths = []
        self.paths += [
            ((*self.paths[parent], token) if parent >= 0 else (token,))
            for token, parent in zip(tokens.tolist(), parents)
        ]
        return torch.stack([self.after(path) for path in self.paths[-len(tokens) :]])

    def draft_level(self, request: LevelRequest) -> Level:
        """As our own kernels, goes on from the likeliest token after the last node by itself."""
        level = super().draft_level(request)
        if request.levels == 1:
            return level
        below = {"tokens": level.tokens[-1:, 0], "parents": (len(self.paths) - 1,)}
        rest = self.draft_level(replace(request, levels=request.levels - 1, **below))
        return Level(*map(torch.cat, zip(level[:3], rest[:3])))


def token_paths(tree: DraftTree) -> set[tuple[int, ...]]:
    tokens = tree.tokens.tolist()
    return {tuple(tokens[n] for n in tree.shape.path(node)) for node in range(len(tree))}


def ends_at(tree: DraftTree, node: int) -> Verdict:
    path = tree.shape.path(node)
    return Verdict(path, tokens=[0] * len(path), relaxed=[False] * (len(path) - 1))


def test_confidence_is_one_when_sure_and_zero_when_lost():
    assert confidence([0.9] + [0.0] * 9) == 1.0
    assert confidence([0.05] * 10) == pytest.approx(0.0, abs=1e-12)
    assert confidence([0.3, 0.3]) == pytest.approx(0.0, abs=1e-12)
    top = [0.5, 0.2, 0.1]
    shares = [p / 0.8 for p in top]
    assert confidence(top) == pytest.approx(1 + sum(p * math.log(p) for p in shares) / math.log(3))


def test_sage_plans_as_its_paper_counts_for_sure_and_for_lost_targets():
    """α = 1: D 8, W 2, W_1 = 3, θ_1 = .0125; α = 0: D 3, W 10, W_1 = 15 cut to k, θ_1 = .0333."""
    sure, lost = plan(1.0, LIMITS, 8), plan(0.0, LIMITS, 8)
    assert (sure.depth, sure.width) == (8, 2.0)
    assert (lost.depth, lost.width) == (3, 10.0)
    assert sure.n_children(1, 1.0) == 3
    assert lost.n_children(1, 1.0) == 10
    assert min_path_probability(1, 8) == pytest.approx(0.0125)
    assert min_path_probability(1, 3) == pytest.approx(0.1 / 3)
    assert sure.n_children(8, 0.1) == 1
    assert width_for(0.5, LIMITS) == 6.0
    assert depth_for(0.5, 8) == 6  # 5.5, rounded half up


def in_tree(path: tuple[int, ...], top: Sequence[float], want: TreePlan) -> bool:
    """The formal definition (section 3.2): levels within their width, prefixes above threshold."""
    own, product = 1.0, 1.0
    for level, rank in enumerate(path, 1):
        if rank >= want.n_children(level, own):
            return False
        own, product = top[rank], product * top[rank]
        if product <= min_path_probability(level, want.depth) and path[:1] != (0,) * level:
            return False
    return len(path) <= want.depth


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.8])
def test_a_template_is_the_formal_definition(alpha: float):
    limits = SageSettings(max_nodes=512, max_width=4, min_width=1, max_depth=5)
    top, want = [0.55, 0.25, 0.12, 0.05], plan(alpha, limits, 5)
    everything = [p for n in range(1, 6) for p in itertools.product(range(4), repeat=n)]
    assert set(template(top, want)) == {path for path in everything if in_tree(path, top, want)}
    assert template([0.01] * 10, plan(0.0, LIMITS, 8)) == [(0,)], "a round always drafts something"


def test_a_full_tree_keeps_the_most_probable_paths():
    top = [0.6, 0.25, 0.1, 0.05]
    every, few = (template(top, plan(0.4, SageSettings(max_nodes=size), 8)) for size in (512, 9))
    mass = lambda path: math.prod(top[r] for r in path)  # noqa: E731
    assert len(few) == 8
    assert min(map(mass, few)) >= max(mass(path) for path in set(every) - set(few))
    assert all(path[:-1] == () or path[:-1] in few for path in few)


def best_first_by_hand(toy: Toy, root: int, want: TreePlan, room: int) -> set[tuple[int, ...]]:
    """One node at a time: the most probable candidate is asked about, its children are added."""
    waiting = [(-1.0, (root,), 1.0)]
    tree = set()
    while waiting and len(tree) < want.max_nodes:
        negative, path, own = heapq.heappop(waiting)
        tree.add(path)
        level = len(path)
        if level > min(want.depth, room):
            continue
        best = toy.after(path).topk(TOP_K)
        for rank in range(want.n_children(level, own)):
            p = float(best.values[rank].exp())
            if -negative * p > min_path_probability(level, want.depth) or (
                level == 1 and rank == 0
            ):
                heapq.heappush(waiting, (negative * p, (*path, int(best.indices[rank])), p))
    return tree


@pytest.mark.parametrize("sharp", [0.5, 2.0, 4.0])
@pytest.mark.parametrize("max_nodes", [6, 12, 64])
@pytest.mark.parametrize("room", [0, 2, 20])
def test_online_growth_is_best_first(sharp: float, max_nodes: int, room: int):
    limits = SageSettings(max_nodes=max_nodes)
    for seed in range(3):
        toy = Toy(sharp)
        policy = EntropyTree(replace(limits, growth="online"))
        tree = policy.propose(toy, torch.tensor([seed]), room)
        want = plan(0.5, limits, 8)
        assert token_paths(tree) == best_first_by_hand(toy, seed, want, room)
        assert len(tree) <= max_nodes
        assert len(toy.paths) <= policy.max_fed, "buffers are made for so many fed nodes"


def check_rows(tree: DraftTree, toy: Toy) -> None:
    """Rows name the very nodes that were fed, and every node's log-probability is the drafter's."""
    tokens = tree.tokens.tolist()
    for node in range(len(tree)):
        path = tuple(tokens[n] for n in tree.shape.path(node))
        if tree.rows[node] >= 0:
            assert toy.paths[tree.rows[node]] == path
        else:
            assert not tree.shape.children[node]
        if node:
            assert float(tree.logp[node]) == pytest.approx(
                float(toy.after(path[:-1])[path[-1]]), abs=1e-5
            )


@pytest.mark.parametrize("draws", [None, Sampler(Sampling(1.0), torch.device("cpu"))])
@pytest.mark.parametrize("growth", ["template", "online"])
def test_confidence_lags_one_round(growth: str, draws: Sampler | None):
    toy = Toy(3.0)
    policy = EntropyTree(SageSettings(growth=growth))
    expected = 0.5
    for i in range(6):
        tree = policy.propose(toy, torch.tensor([i]), 20, draws)
        check_rows(tree, toy)
        assert tree.notes["alpha"] == pytest.approx(expected, abs=1e-4)
        assert tree.notes["static"] == (i == 0 and growth == "template")
        assert tree.notes["n_nodes"] == len(tree)
        leaf = max(range(len(tree)), key=lambda n: tree.shape.depth[n])
        policy.update(tree, ends_at(tree, leaf))
        expected = confidence(toy.after((i,)).exp().topk(10).values.tolist())


def test_the_first_tree_is_the_static_one():
    tree = EntropyTree(SageSettings()).propose(Toy(), torch.tensor([1]), 20)
    assert len(tree) == 1 + len(EAGLE_TREE)
    assert tree.notes["alpha"] == 0.5
    small = EntropyTree(SageSettings(max_nodes=10)).propose(Toy(), torch.tensor([1]), 20)
    assert len(small) == 10


def test_history_moves_the_depth_within_its_band():
    feedback = DepthFeedback(LIMITS)
    for _ in range(10):
        feedback.update(0)
    assert feedback.cap == MIN_DEPTH
    for _ in range(9):
        feedback.update(5)
    assert feedback.cap == 6, "the mean of ten passes 3 at the seventh five: three steps up"
    still = DepthFeedback(LIMITS)
    still.cap = 5
    for accepted in (2, 3, 2, 3):
        still.update(accepted)
    assert still.cap == 5


def test_a_tree_that_is_not_the_one_asked_for_says_why():
    """In the recorded races, where the notes of a round hold the sentences."""

    def sentences(name: str) -> list[str]:
        sage, n, texts = recorded(name)[-1], 0, []
        limit = sage.begin.settings["max_nodes"]
        for r in sage.rounds:
            notes = r.notes
            tree_plan = TreePlan(notes["depth"], notes["width"], limit)
            sizes = Counter(shape_of(tuple(r.tree.parent)).depth[1:])
            assert why_other(tree_plan, sizes, sage.begin.max_new_tokens - n - 1) == notes["why"]
            n += len(r.tokens)
            for key in ("depth", "width"):
                same = notes[f"drafted_{key}"] == notes[key]
                assert same == (f"drafted_{key}" not in notes["why"])
            texts.append("; ".join(notes["why"].values()))
        return texts

    few, wide = "other guesses were too unlikely", "the first level may be half as wide again"
    assert sentences("tree") == [few, wide, few, f"{few}; {few}", f"{few}; {wide}"]
    assert sentences("scene")[1] == "the tree is full"
    assert sentences("swap")[2] == "the tree is full; rounded down"
