"""Rejection sampling of a chain that the drafter sampled independently, as engines do, and block
verification.

Sources: Leviathan et al. (arXiv 2211.17192), Chen et al. (arXiv 2302.01318); for block
verification, Sun et al. (arXiv 2403.10444). Both follow the target's distribution. Neither returns
AR's sample for the same seed, as strict verification does. At temperature 0 all are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from specvl_demo.core.sampling import Sampler, probabilities
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Scores, Start, Verdict, Verifier
from specvl_demo.core.verification import Strict
from specvl_demo.methods import base
from specvl_demo.methods.base import STRICT, Method, Part, register
from specvl_demo.methods.chain import CHAIN, TUNED
from specvl_demo.methods.declare import Learn
from specvl_demo.methods.small_vlm import SELF, SMALL
from specvl_demo.methods.views import MULTIMODAL, PRUNED
from specvl_demo.records import Chart, Series

_STREAM = 0x5EED
"""Separates the verifier's random stream from the drafter's, which uses the request's seed too."""


class SampledVerifier(Verifier, ABC):
    """Decides how many tokens of a sampled chain stay, then samples one more at its end."""

    lossless = True

    def begin(self, start: Start) -> None:
        """Create one random generator for the lane."""
        self._chance = torch.Generator().manual_seed(start.sampling.seed ^ _STREAM)

    @abstractmethod
    def chances(self, p: Tensor, q: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
        """Return [k + 1] the probability that exactly the first n of k tokens stay, and [k + 1, V]
        the distribution of the next token in that case.

        Args:
            p: [k + 1, V] the target's processed distributions at the root and after every token.
            q: [k, V] the drafter's.
            drafted: [k].
        """

    def verify(self, tree: DraftTree, scores: Scores, sampler: Sampler) -> Verdict:
        """Verify a chain; ValueError for a tree that branches.

        A token that was not sampled from a distribution (a lookup's) counts as certain.
        """
        if sampler.sampling.greedy:
            return Strict().verify(tree, scores, sampler)
        if not tree.shape.is_chain:
            raise ValueError(
                "rejection sampling verifies only chains, but this policy drafted a tree"
            )
        p = probabilities(scores.logits, sampler.sampling).double().cpu()
        drafted = tree.tokens[1:].cpu()
        k, size = len(drafted), p.shape[-1]
        q = torch.nn.functional.one_hot(drafted, size).double()
        for node, row in enumerate((tree.rows or ())[:k]):
            if row >= 0:
                known = sampler.drafted(row).double().cpu()
                q[node] = 0.0
                q[node, : len(known)] = known
        stay, after = self.chances(p, q, drafted)
        n = int(torch.multinomial(stay, 1, generator=self._chance))
        token = int(torch.multinomial(after[n], 1, generator=self._chance))
        rows = torch.arange(k)
        ratio = (p[rows, drafted] / q[rows, drafted]).clamp_max(1.0)
        return Verdict(
            path=list(range(n + 1)),
            tokens=[*drafted[:n].tolist(), token],
            relaxed=[False] * n,
            notes={
                "nodes": list(range(1, k + 1)),
                "ratio": [round(one, 4) for one in ratio.tolist()],
            },
        )


class RejectionVerifier(SampledVerifier):
    """Every token stays with probability min(1, p / q), up to the first that does not."""

    def chances(self, p: Tensor, q: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
        """The next token is drawn from max(p - q, 0) after a rejection, from p after the last."""
        rows = torch.arange(len(drafted))
        ratio = (p[rows, drafted] / q[rows, drafted]).clamp_max(1.0)
        kept = torch.cat((p.new_ones(1), ratio.cumprod(0)))
        stay = kept * torch.cat((1 - ratio, p.new_ones(1)))
        return stay, torch.cat((_rest(p[:-1], q), p[-1:]))


class BlockVerifier(SampledVerifier):
    """Judges tokens together: the longest prefix that passes stays (Algorithm 2).

    With w_i = min(1, w_(i-1) p_i / q_i), a prefix of i tokens passes with probability R_i / (R_i +
    1 - w_i), where R_i = sum max(w_i p - q, 0) after it; the whole chain passes with w_k. It keeps
    at least as many tokens as judging each separately.
    """

    def chances(self, p: Tensor, q: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
        """The next token is drawn from max(w_i p - q, 0) after i tokens, from p after the last."""
        k = len(drafted)
        weight = [p.new_ones(())]
        for i, token in enumerate(drafted.tolist()):
            weight.append((weight[-1] * p[i, token] / q[i, token]).clamp_max(1.0))
        w = torch.stack(weight)
        rest = (w[:k, None] * p[:k] - q).clamp_min(0.0)
        mass = rest.sum(-1)
        passes = torch.cat(((mass / (mass + (1 - w[:k]))).nan_to_num(1.0), w[k:]))
        passes[0] = 1.0  # the empty prefix always passes
        # Exactly n stay: n pass and no longer prefix does.
        fails = (1 - passes).flip(0).cumprod(0).flip(0)
        stay = passes * torch.cat((fails[1:], p.new_ones(1)))
        return stay, torch.cat((_normed(rest, p[:k]), p[k:]))


def _rest(p: Tensor, q: Tensor) -> Tensor:
    return _normed((p - q).clamp_min(0.0), p)


def _normed(rest: Tensor, p: Tensor) -> Tensor:
    """Normalize rows; a row without any mass, which is sampled from only by rounding, becomes p."""
    return torch.where(rest.sum(-1, keepdim=True) > 0, rest, p)


_CHARTS = (
    Chart(
        "ratio",
        "Target against drafter",
        "min(1, p / q) of every drafted token: the probability that it stays if judged separately.",
        "points",
        [Series("notes.ratio", "drafted token", nodes="notes.nodes")],
        "probability",
    ),
)
REJECTION, BLOCK = (
    Part(
        "verifier",
        name,
        title,
        lambda settings, kind=kind: kind(),
        needs=base.CHAIN,
        sampled=True,
        charts=_CHARTS,
    )
    for name, title, kind in (
        ("rejection", "rejection sampling", RejectionVerifier),
        ("block", "block verification", BlockVerifier),
    )
)

register(
    Method(
        "rejection",
        "Rejection sampling",
        "The drafter samples independently; each token stays with probability min(1, p/q).",
        drafter=SMALL,
        views=(MULTIMODAL,),
        policy=CHAIN,
        verifier=REJECTION,
        options=(SELF, PRUNED, "small-lookup", "adaptive-chain", STRICT, BLOCK),
        reference="Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318",
        order=13,
        presets=TUNED,
        learn=Learn(
            does="""How most engines sample: the drafter samples its own token d, and the target
            keeps it with probability min(1, p/q). A rejected one is replaced by a sample from what
            p has in excess of q. The distribution is exactly the target’s, but with the same seed
            the answer differs from plain decoding’s. Other methods here use the target’s own random
            numbers instead and return its very answer.""",
            shines="Sampling: it keeps Σ min(p, q) of the drafts, the most that any verifier can.",
            struggles="Temperature 0, where it is the same as strict verification.",
            look="Race it against Chain at temperature 1: which of them keeps more drafts?",
            formula=r"P ( d \text{ stays} ) = min ( 1 , \frac{p ( d )}{q ( d )} )",
            aloud="""a drafted token stays with a probability of one or p over q, whichever is
            smaller""",
            url="https://arxiv.org/abs/2211.17192",
        ),
    )
)

register(
    Method(
        "block",
        "Block verification",
        "Like rejection sampling, but the tokens of a draft are judged together.",
        drafter=SMALL,
        views=(MULTIMODAL,),
        policy=CHAIN,
        verifier=BLOCK,
        options=(SELF, PRUNED, "small-lookup", STRICT, REJECTION),
        reference="Sun et al., arXiv 2403.10444",
        order=14,
        presets=TUNED,
        learn=Learn(
            does="""Judging token by token wastes drafts: where one token was drafted too rarely and
            the next too often, the two together may be just right. Block verification judges whole
            prefixes and keeps the longest that passes. Its distribution is the target’s, and on
            average it never keeps fewer tokens than rejection sampling.""",
            shines="Long sampled drafts from a drafter that is nearly right.",
            struggles="Short drafts and temperature 0, where it equals rejection sampling.",
            look="τ compared with rejection sampling’s over several seeds.",
            formula=r"w_i = min ( 1 , w_{i − 1} \frac{p_i}{q_i} )",
            aloud="the weight of a prefix is its parent's times p over q, at most one",
            url="https://arxiv.org/abs/2403.10444",
            published=("5–8 % over rejection sampling", "PaLM-2 models, wall clock, text tasks"),
        ),
    )
)
