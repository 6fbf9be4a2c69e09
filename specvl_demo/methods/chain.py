"""Chain drafting: a small model drafts a few tokens in a row (Leviathan et al., arXiv 2211.17192).

Also defines `custom`, which starts as a chain and allows any other parts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from specvl_demo.core import highest
from specvl_demo.core.sampling import Sampler
from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Drafter, Policy
from specvl_demo.methods import base
from specvl_demo.methods.base import Method, Part, register
from specvl_demo.methods.declare import Learn, PolicySettings, Value, setting
from specvl_demo.methods.small_vlm import SMALL
from specvl_demo.methods.views import MULTIMODAL


@dataclass(frozen=True)
class DepthSettings(PolicySettings):
    """The depth of a draft."""

    gamma: int = setting(5, "tokens drafted in a row", 1, 64, title="draft length γ")


@dataclass(frozen=True)
class ChainSettings(DepthSettings):
    """The maximum length of a chain, and when to stop earlier.

    # choice: `floor` bounds the product of the drafter's probabilities, the value of a path in
    EAGLE-2 (arXiv 2406.16858, §4.1); DISCO (arXiv 2405.04304) learns when to stop instead. The
    token that falls below the floor is still verified: it is drafted already, and may be right.
    """

    floor: float = setting(
        0.0, "stop drafting when the probability of the whole chain falls below this", 0.0, 1.0
    )


class Chain(Policy):
    """Drafts up to `gamma` tokens in a row: the likeliest, or sampled with the target's draws."""

    def __init__(self, settings: ChainSettings) -> None:
        self.gamma = settings.gamma
        self.floor = math.log(settings.floor) if settings.floor else None
        self.max_nodes = self.gamma + 1

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        """Draft a chain, shorter if there is less room or the drafter is unsure or silent."""
        most = min(self.gamma, room)
        floor = -math.inf if self.floor is None else self.floor
        if draws is None and most and (made := drafter.in_a_row(root, most, floor)) is not None:
            return _chain(root, *made)
        tokens, logps = [root], []
        total = 0.0
        for i in range(most):
            log_probs = drafter.extend(tokens[-1], (i - 1,))
            if log_probs is None:
                break
            token = highest.argmax(log_probs) if draws is None else draws.draft(log_probs, i)
            logp = log_probs.gather(-1, token[:, None])[:, 0]
            tokens.append(token)
            logps.append(logp)
            if self.floor is not None:
                # Read only if it decides: on a GPU each read waits for the drafter.
                total += logp.item()
                if total < self.floor:
                    break
        if not logps:
            return DraftTree(root, chain(0))
        return _chain(root, torch.cat(tokens[1:]), torch.cat(logps))


def _chain(root: Tensor, tokens: Tensor, logp: Tensor) -> DraftTree:
    """Return the root and n drafted tokens [n] after it, all but the last of which were fed."""
    n = len(tokens)
    return DraftTree(
        torch.cat((root.to(tokens.device), tokens)),
        chain(n),
        logp=F.pad(logp, (1, 0)),
        rows=(*range(n), -1),
    )


CHAIN = Part(
    "policy",
    "chain",
    "a chain",
    Chain,
    ChainSettings,
    needs=base.CHAIN,
    label=lambda settings: f"chain of {'up to ' if settings.floor else ''}{settings.gamma}",
)
TUNED: dict[str, dict[str, Value]] = {
    "photo": {"gamma": 10, "floor": 0.05},
    "pocket": {"gamma": 10},
}
"""Presets of a chain that the small models of the shipped pairs draft from the whole prompt."""

register(
    Method(
        "chain",
        "Chain",
        "A small model drafts a few tokens in a row; the target checks them in one step.",
        drafter=SMALL,
        views=(MULTIMODAL,),
        policy=CHAIN,
        options=(),
        reference="Leviathan et al., arXiv 2211.17192; Gagrani et al., arXiv 2404.08856",
        presets=TUNED,
        order=10,
        learn=Learn(
            does="""A small model guesses the next few tokens in a row. The target reads them all in
            one pass and computes at each position what it would have written. Guesses are kept up
            to the first that differs, which the target’s own token replaces. The answer is exactly
            the target’s, at every temperature.""",
            shines="Predictable text: long accepted runs for the price of one pass.",
            struggles="""Text in which the picture decides each word: every guess after the first
            wrong one is lost.""",
            look="""γ nodes in a line. Long runs are kept where the text is predictable, short ones
            where the picture decides. If γ is too large, it pays for guesses that are lost with the
            first wrong one; with a floor, drafting stops once the drafter itself doubts its
            chain.""",
            formula=r"S = \frac{τ}{ρ_draft + ρ_verify} ≤ τ",
            aloud="speedup equals tau divided by the cost of drafting and verifying, at most tau",
            url="https://arxiv.org/abs/2404.08856",
        ),
    )
)

register(
    Method(
        "custom",
        "Custom",
        "Any drafter, views, tree policy and verifier that fit together.",
        drafter=SMALL,
        views=(MULTIMODAL,),
        policy=CHAIN,
        options=None,
        order=1000,
        learn=Learn(
            does="""A method is a drafter, the views through which it sees the prompt, the shape of
            its drafts, and a verifier. Any combination that makes sense runs: a mixture of views in
            an entropy tree, a fixed tree with relaxed verification. Parts that do not fit together
            are refused with the reason.""",
            look="""Which part makes the difference: change one menu at a time and race the two
            versions against each other.""",
        ),
    )
)
