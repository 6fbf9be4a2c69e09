"""Trees against a walk over parents, node by node."""

from __future__ import annotations

import random

import pytest
import torch

from specvl_demo.core.tree import TreeShape, chain, ranked, shape_of
from specvl_demo.methods.tree import EAGLE_TREE


def random_parents(rng: random.Random, size: int) -> tuple[int, ...]:
    return (-1, *(rng.randrange(i) for i in range(1, size)))


def ancestors_of(parent: tuple[int, ...], node: int) -> list[int]:
    """Nodes from `node` up to the root."""
    found = [node]
    while parent[found[-1]] != -1:
        found.append(parent[found[-1]])
    return found


def test_everything_derived_from_parents_agrees_with_a_walk() -> None:
    rng = random.Random(0)
    for _ in range(200):
        parent = random_parents(rng, rng.randint(1, 20))
        shape = shape_of(parent)
        length = rng.randint(0, 9)
        additive = shape.additive(length, torch.float32, torch.device("cpu"))
        assert additive.shape == (len(shape), length + len(shape))
        for node in range(len(parent)):
            up = ancestors_of(parent, node)
            assert shape.depth[node] == len(up) - 1
            assert shape.path(node) == up[::-1]
            assert shape.ancestors[node].nonzero()[:, 0].tolist() == sorted(up)
            assert shape.children[node] == tuple(i for i, p in enumerate(parent) if p == node)
            seen = [*range(length), *(length + i for i in sorted(up))]
            assert (additive[node] == 0).nonzero()[:, 0].tolist() == seen
            assert (additive[node] <= torch.finfo(torch.float32).min).sum() == length + len(parent) - len(
                seen
            )


def test_a_mask_grows_with_the_cache() -> None:
    shape = shape_of((-1, 0, 0))
    for length in (3, 300, 5, 1000, 0, 200_000, 7):
        mask = shape.additive(length, torch.float32, torch.device("cpu"))
        assert mask.shape == (3, length + 3)
        assert (mask == 0).sum(-1).tolist() == [length + 1, length + 2, length + 2]


def test_chains_are_shared_and_triangular() -> None:
    assert chain(4) is chain(4)
    assert chain(0).parent == (-1,)
    assert chain(3).is_chain and not shape_of((-1, 0, 0)).is_chain
    assert torch.equal(chain(3).ancestors, torch.ones(4, 4).tril().bool())


@pytest.mark.parametrize("parent", [(), (0,), (-1, 1), (-1, 0, 3), (-1, -1)])
def test_a_parent_comes_before_its_child(parent: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        TreeShape(parent)


def test_the_published_static_tree() -> None:
    """SpecVLM's mc_sim_7b_63, as listed in its code: parents and depths of its 26 nodes."""
    shape, ranks = ranked(EAGLE_TREE)
    assert shape.parent == (
        *(-1, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 4),
        *(5, 5, 5, 6, 6, 7, 7, 8, 13, 13, 13, 21, 21),
    )
    assert [shape.depth.count(d) for d in range(6)] == [1, 4, 8, 8, 3, 2]
    assert ranks[:9] == (0, 0, 1, 2, 3, 0, 1, 2, 0)


def test_a_rank_path_needs_its_prefix() -> None:
    with pytest.raises(ValueError, match="shorter path"):
        ranked([(0,), (1, 0)])
