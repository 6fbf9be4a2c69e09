"""Strict verification: keep exactly what the target would have said itself.

Given a drafted tree and the target's scores of its nodes, gives the accepted path. All drafts are
deterministic given the text so far, so one rule is exact for chains and trees, greedy and sampled: choose the
target's token at every node, then walk from the root to the child that carries it. Knows nothing of drafters
or caches.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specvl_demo.core.tree import DraftTree, TreeShape
from specvl_demo.core.types import Sampler, Scores, Start, Verdict


def walk(shape: TreeShape, tokens: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """Nodes from the root along the first children that carry the token chosen at their parent."""
    path = [0]
    children = shape.children
    while True:
        want = chosen[path[-1]]
        follower = next((child for child in children[path[-1]] if tokens[child] == want), None)
        if follower is None:
            return path
        path.append(follower)


class Strict:
    """Lossless: the emitted tokens are the target's own, for any tree."""

    lossless = True

    def begin(self, start: Start) -> None:
        """Serves every request."""

    def judge(self, tree: DraftTree, scores: Scores, sampler: Sampler) -> Verdict:
        """The longest path of tokens that the target chose at their parents, and its choice at the end."""
        chosen_there = sampler.choose(scores.logits, tree)
        tokens, chosen = torch.stack((tree.tokens.to(chosen_there.device), chosen_there)).tolist()
        path = walk(tree.shape, tokens, chosen)
        return Verdict(
            path=path,
            tokens=[chosen[node] for node in path],
            relaxed=[False] * (len(path) - 1),
            chosen=chosen,
        )
