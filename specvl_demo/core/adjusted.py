"""Bias, penalties and a minimum length on trees: every node's logits depend on its own path.

Given a sampler that adjusts, changes the target's scores of a tree and what a drafter returns: a
draft that is processed as the target is stays accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specvl_demo.core.sampling import Sampler
from specvl_demo.core.transfer import to_device
from specvl_demo.core.tree import DraftTree, shape_of
from specvl_demo.core.types import Drafter, Scores


def adjust_scores(scores: Scores, tree: DraftTree, sampler: Sampler) -> Scores:
    """Return the target's scores of a tree, adjusted."""
    logits, recomputed = scores.logits, scores.recompute
    # The root was written before: it is part of the answer, or the prompt's last token.
    tokens = tree.tokens[1:].to(logits.device)
    above = to_device(tree.shape.ancestors, logits.device)[:, 1:]
    sampler.level = logits[0].float().logsumexp(-1)

    adjusted = replace(scores, logits=sampler.adjusted(logits, tokens, above))
    if recomputed is None:
        return adjusted

    def recompute(path: Sequence[int]) -> Tensor:
        rows = above[path[-1] : path[-1] + 1]
        return sampler.adjusted(recomputed(path)[None], tokens, rows)[0]

    return replace(adjusted, recompute=recompute)


class AdjustedDrafter(Drafter):
    """A drafter in one round, whose log-probabilities are adjusted as the target's logits."""

    def __init__(self, drafter: Drafter, sampler: Sampler) -> None:
        self._drafter, self._sampler = drafter, sampler
        self._tokens: list[Tensor] = []
        self._parents: list[int] = []

    def extend(self, tokens: Tensor, parents: Sequence[int]) -> Tensor | None:
        log_probs = self._drafter.extend(tokens, parents)
        if log_probs is None:
            return None
        device = log_probs.device
        sampler = self._sampler
        self._tokens.append(tokens.to(device))
        self._parents += parents
        # The root was written before.
        drafted = torch.cat(self._tokens)[1:]
        above = shape_of(tuple(self._parents)).ancestors[-len(parents) :, 1:]
        adjustable = log_probs + sampler.level.to(device)
        logits = sampler.adjusted(adjustable, drafted, to_device(above, device))
        # A row of which nothing is left stays one.
        return logits - logits.logsumexp(-1, keepdim=True).clamp_min(torch.finfo().min)
