"""How the target chooses its token at every node of a tree, greedy or by chance.

Given logits [T, V] and the tree they belong to. One draw per answer position, fixed by the seed before
anything is decoded: a token depends on its position and its distribution alone, not on how the tree around it
looked. So with one seed a lossless method and plain decoding say the same, also when sampling. Knows nothing
of drafters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Sampling


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [..., V] -> the processed distribution [..., V] in float32.

    Temperature, then top-k, then top-p, as in Hugging Face's `generate`. Greedy gives the plain softmax.
    """
    logits = logits.float()
    if sampling.greedy:
        return logits.softmax(-1)
    logits = (logits - logits.amax(-1, keepdim=True)) / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        floor = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < floor, -torch.inf)
    probs = logits.softmax(-1)
    if sampling.top_p < 1.0:
        ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
        outside = ordered.cumsum(-1) - ordered >= sampling.top_p
        probs = torch.zeros_like(probs).scatter(-1, ids, ordered.masked_fill(outside, 0.0))
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


class Sampler:
    """One lane's choice of tokens. `n_positions`: the longest answer plus the deepest tree, in tokens."""

    def __init__(self, sampling: Sampling, n_positions: int, device: torch.device) -> None:
        self.sampling = sampling
        self._emitted = 0
        if not sampling.greedy:
            generator = torch.Generator().manual_seed(sampling.seed)
            self._draws = torch.rand(n_positions, generator=generator, dtype=torch.float64).to(device)

    def choose(self, logits: Tensor, tree: DraftTree) -> Tensor:
        """The target's token at every node: logits [T, V] -> ids [T].

        By chance: the inverse of the distribution function at the draw of the node's answer position. Nodes
        of one depth share a draw; a walk meets only one of them, chosen by earlier draws, so the answer's law
        is exact.
        """
        if self.sampling.greedy:
            return logits.argmax(-1)
        mass = probabilities(logits, self.sampling).double().cumsum(-1)
        draws = self._draws[self._emitted + tree.shape.depth_on(mass.device)]
        return torch.searchsorted(mass, (draws * mass[:, -1]).unsqueeze(-1), right=True).squeeze(-1)

    def advance(self, n_tokens: int) -> None:
        """The answer has grown by n_tokens."""
        self._emitted += n_tokens
