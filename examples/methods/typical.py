"""Typical acceptance (Medusa, Cai et al., arXiv 2401.10774, §2.3.1): a drafted token may stay if
the target finds it likely enough, given its own certainty.

Not lossless. A plug-in: name this file in SPECVL_METHODS (docs/adding-a-method.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import specvl_demo
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Scores
from specvl_demo.core.verification import Branch, RelaxedVerifier
from specvl_demo.methods import base
from specvl_demo.methods.base import STRICT, Method, Part
from specvl_demo.methods.chain import TUNED
from specvl_demo.methods.declare import Settings, setting
from specvl_demo.methods.policies import CHAIN
from specvl_demo.methods.small_vlm import SELF, SMALL
from specvl_demo.methods.views import MULTIMODAL, PRUNED
from specvl_demo.records import Chart, ChartSeries


@dataclass(frozen=True)
class TypicalSettings(Settings):
    """How likely is likely enough; defaults are the published code's constants."""

    epsilon: float = setting(0.09, "probability that is always enough (ε)", 0.0, 1.0)
    delta: float = setting(0.3, "share of exp(-entropy) that is enough (δ)", 0.0, 1.0)


class TypicalVerifier(RelaxedVerifier):
    """A token stays if p(token) > min(epsilon, delta * exp(-H(p))).

    # choice: with the plain distribution, at temperature 0; Medusa uses the one it samples from.
    """

    def __init__(self, settings: TypicalSettings) -> None:
        self.settings = settings

    def acceptance_signal(self, scores: Scores, tree: DraftTree) -> Tensor:
        """Return how far [T] each token's probability lies above the required one."""
        above = tree.shape.parent_on(scores.logits.device)
        logp = scores.logits.float().log_softmax(-1)
        entropy = -torch.where(logp > -torch.inf, logp.exp() * logp, 0.0).sum(-1)
        enough = (self.settings.delta * (-entropy).exp()).clamp_max(self.settings.epsilon)
        own = logp[above].gather(-1, tree.tokens.to(above.device)[:, None])[:, 0].exp()
        return own - enough[above]

    def may_differ(self, branch: Branch) -> list[bool]:
        """Allow likely enough tokens.

        The target's own choice always passes, since the largest value of p is never below exp(-H).
        """
        return [margin > 0 for margin in branch.signal]

    def branch_notes(self, branch: Branch) -> Mapping[str, Any]:
        """Return how far the branch's tokens lie above the required probability, by node."""
        return {
            "nodes": list(branch.nodes),
            "margin": [round(margin, 4) for margin in branch.signal],
            "enough": 0.0,
        }


TYPICAL = Part(
    "verifier",
    "typical",
    "typical acceptance",
    TypicalVerifier,
    TypicalSettings,
    needs=base.CHAIN,
    lossless=False,
    greedy_only=True,
    charts=(
        Chart(
            "margin",
            "Probability above the required one",
            "How far the target's probability of each drafted token lies above the least that"
            " typical acceptance requires.",
            "points",
            [
                ChartSeries(
                    "notes.margin",
                    "drafted token",
                    nodes="notes.nodes",
                    mark="notes.relaxed_nodes",
                    marked="relaxed",
                ),
                ChartSeries("notes.enough", "enough"),
            ],
            "probability",
        ),
    ),
)

specvl_demo.register(
    Method(
        "typical",
        "Typical acceptance",
        "A drafted token may stay if the target finds it likely enough: not lossless.",
        drafter=SMALL,
        views=(MULTIMODAL,),
        policy=CHAIN,
        verifier=TYPICAL,
        reference="Cai et al., arXiv 2401.10774",
        options=(SELF, PRUNED, STRICT),
        presets={"paper": {}, **TUNED},
        order=71,
        url="https://arxiv.org/abs/2401.10774",
    )
)
