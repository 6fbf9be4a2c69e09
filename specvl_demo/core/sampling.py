"""How the target chooses its token at every node of a tree, greedy or by chance.

Given logits [T, V] and the tree they belong to. One draw per answer position, fixed by the seed
before anything is decoded: a token depends on its position and its distribution alone, not on how
the tree around it looked. So with one seed a lossless method and AR say the same, also when
sampling. A drafter may be given the same draws: its drafts are then still a function of the text so
far and of the draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specvl_demo.core.tree import DraftTree
from specvl_demo.records import MAX_TEMPERATURE, MIN_TEMPERATURE

COUPLED = 0.85
"""How often a token drafted with the target's own draw is taken to be the target's."""


@dataclass(frozen=True)
class Sampling:
    """How the target chooses. temperature 0 is greedy; top_k 0 and top_p 1 mean no limit.

    # choice: nothing between 0 and a thousandth, which no answer could tell from greedy and no
    float holds.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= MAX_TEMPERATURE:
            raise ValueError(
                f"temperature is between 0 (greedy) and {MAX_TEMPERATURE:g}, got {self.temperature}"
            )
        if 0.0 < self.temperature < MIN_TEMPERATURE:
            raise ValueError(
                f"temperature is 0 (greedy) or at least {MIN_TEMPERATURE}, got {self.temperature}"
            )
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p is above 0 and at most 1, got {self.top_p}")
        if self.top_k < 0:
            raise ValueError(f"top_k is 0 (no limit) or a positive number, got {self.top_k}")

    @property
    def greedy(self) -> bool:
        """Whether the target takes its likeliest token."""
        return self.temperature == 0.0


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [..., V] -> the processed distribution [..., V] in float32.

    Temperature, then top-k, then top-p, as in Hugging Face's `generate`. Greedy gives the plain
    softmax.
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
    """One lane's choice of tokens. `n_positions`: the longest answer plus the deepest tree, in
    tokens.

    gumbel: a position's draw is one exponential per token instead of one uniform, and its token the
    argmax of p / E. The law is the same; two distributions that are given the same draw agree more
    often when both are flat.
    """

    def __init__(
        self, sampling: Sampling, n_positions: int, device: torch.device, gumbel: bool = False
    ) -> None:
        self.sampling, self.device, self.gumbel = sampling, device, gumbel
        self._emitted = 0
        self._drafted: list[Tensor] = []
        self._noise: dict[int, Tensor] = {}
        if not sampling.greedy:
            generator = torch.Generator().manual_seed(sampling.seed)
            self._uniform = torch.rand(n_positions, generator=generator, dtype=torch.float64)
            self._draws = self._uniform.to(device)

    def choose(self, logits: Tensor, tree: DraftTree) -> Tensor:
        """The target's token at every node: logits [T, V] -> ids [T].

        By chance: the inverse of the distribution function at the draw of the node's answer
        position. Nodes of one depth share a draw; a walk meets only one of them, chosen by earlier
        draws, so the answer's law is exact.
        """
        if self.sampling.greedy:
            return logits.argmax(-1)
        return self._at(probabilities(logits, self.sampling), tree.shape.depth, tree.shape.depth_on)

    def draft(self, logp: Tensor, depth: int) -> Tensor:
        """What the drafter would say with the target's own draw: its log-probabilities [k, V] ->
        ids [k].

        depth: how far the fed nodes are below the root. To be called once for every
        `Drafter.extend`.
        """
        probs = probabilities(logp, self.sampling)
        self._drafted.append(probs)
        return self._at(probs, [depth] * len(probs), lambda device: depth)

    def told(
        self, logits: Tensor, tokens: Sequence[int], rows: Sequence[int]
    ) -> dict[str, list[float | None]]:
        """For the record, of the emitted tokens: probability p, draft probability q, and the
        overlap sum min(p, q), which bounds how often any draft can be the target's token; without
        Gumbel noise also the uniform, and how much of either distribution stands before the token
        (p_below, q_below). The token is the one for which the uniform lies between p_below and
        p_below + p.

        logits [n, V]: the target's, where they were chosen. rows: the drafter's there, -1 where it
        was not asked. Both distributions are those after temperature and cuts. ValueError where
        `draft` was not called for one of these rows.
        """
        n, ids = len(tokens), torch.tensor(tokens, device=logits.device)
        target, fed = (
            probabilities(logits, self.sampling),
            [i for i, row in enumerate(rows) if row >= 0],
        )
        p, p_below = _places(target, ids)
        told: dict[str, list[float | None]] = {"p": p.tolist(), "p_below": p_below.tolist()}
        told |= {name: [None] * n for name in ("q", "q_below", "overlap")}
        if self._drafted and fed:
            every = torch.cat(self._drafted)
            if max(rows) >= len(every):
                raise ValueError(
                    f"DraftTree.rows names row {max(rows)} of the drafter, but `draws.draft` was"
                    f" called for {len(every)} rows; call it once after every `extend`, also where"
                    " the draft then stops"
                )
            drafted = every[[rows[i] for i in fed]].to(ids.device)
            # The drafter may know fewer ids than the target.
            drafted = F.pad(drafted, (0, target.shape[-1] - drafted.shape[-1]))
            q, q_below = _places(drafted, ids[fed])
            overlap = torch.minimum(target[fed], drafted).sum(-1)
            for i, *there in zip(fed, q.tolist(), q_below.tolist(), overlap.tolist(), strict=True):
                told["q"][i], told["q_below"][i], told["overlap"][i] = there
        if self.gumbel:
            del told["p_below"], told["q_below"]
        else:
            told["uniform"] = self._uniform[self._emitted : self._emitted + n].tolist()
        return told

    def advance(self, n_tokens: int) -> None:
        """The answer has grown by n_tokens."""
        self._emitted += n_tokens
        self._drafted.clear()
        self._noise = {at: noise for at, noise in self._noise.items() if at >= self._emitted}

    def _at(
        self, probs: Tensor, depth: Sequence[int], depth_on: Callable[[torch.device], Tensor | int]
    ) -> Tensor:
        """ids [k] that these distributions [k, V] give at the draws of positions `depth` below the
        root.
        """
        if self.gumbel:
            noise = torch.stack([self._exponentials(self._emitted + d, probs) for d in depth])
            return (probs / noise).argmax(-1)
        mass = probs.double().cumsum(-1)
        draws = self._draws[self._emitted + depth_on(mass.device)].to(mass.device)
        return torch.searchsorted(mass, (draws * mass[:, -1]).unsqueeze(-1), right=True).squeeze(-1)

    def _exponentials(self, at: int, like: Tensor) -> Tensor:
        """[V] standard exponentials of an answer position; of a smaller vocabulary the first
        ones.
        """
        kept = self._noise.get(at)
        if kept is None or len(kept) < like.shape[-1]:
            generator = torch.Generator().manual_seed(
                (self.sampling.seed * 0x9E3779B1 + at) % 2**63
            )
            # From single uniforms, so that the first ones are the same however many are drawn.
            uniform = torch.rand(like.shape[-1], generator=generator, dtype=torch.float64)
            kept = (-torch.log1p(-uniform)).clamp_min(1e-300).to(like.device)
            self._noise[at] = kept
        return kept[: like.shape[-1]]


def _places(probs: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Where ids [n] stand in distributions [n, V]: their probability [n], and that of all before
    them [n].
    """
    own = probs.gather(-1, ids[:, None])
    return own[:, 0], ((probs.double().cumsum(-1).gather(-1, ids[:, None]) - own)[:, 0]).clamp_min(
        0
    )


def best(logp: Tensor, k: int, draws: Sampler | None, depth: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k tokens to draft after each fed node: (scores, log-probabilities, ids), each [n, k],
    best first.

    Without draws the likeliest, scored by log-probability. With draws the coupled token comes
    first: it is the target's with a probability near Σ min(p, q), the others share what is left in
    proportion to q. # choice: that probability is taken as COUPLED for the scores, which only
    decide what a full tree keeps.
    """
    k = min(k, logp.shape[-1])
    if draws is None:
        top = logp.topk(k, dim=-1)
        return top.values, top.values, top.indices
    coupled = draws.draft(logp, depth)[:, None]
    own = logp.gather(-1, coupled)
    others = logp.scatter(-1, coupled, -torch.inf).topk(max(k - 1, 1), dim=-1)
    rest = torch.log1p(-own.exp().clamp_max(1 - 1e-6)) - math.log1p(-COUPLED)
    scores = torch.cat((torch.full_like(own, math.log(COUPLED)), others.values - rest), -1)
    ids, values = torch.cat((coupled, others.indices), -1), torch.cat((own, others.values), -1)
    return scores[:, :k], values[:, :k], ids[:, :k]
