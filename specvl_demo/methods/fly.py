"""FLy (Li et al., arXiv 2511.22972): a token may differ if the target is unsure and agrees again at
once.

Not lossless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Scores
from specvl_demo.core.verification import Branch, RelaxedVerifier
from specvl_demo.methods import base
from specvl_demo.methods.base import STRICT, Method, Part, register
from specvl_demo.methods.declare import Settings, setting
from specvl_demo.methods.policies import CHAIN
from specvl_demo.methods.small_vlm import SELF, SMALL
from specvl_demo.methods.views import MULTIMODAL, PRUNED
from specvl_demo.records import Chart, ChartSeries


@dataclass(frozen=True)
class FlySettings(Settings):
    """When a mismatch may stay."""

    gate: float = setting(
        0.3,
        "target entropy (nats) below which a mismatch is rejected",
        0.0,
        2.0,
        title="entropy gate (nats)",
    )
    window: int = setting(
        6,
        "tokens that must agree again, including the mismatch; 0: none",
        0,
        64,
        title="agreement window W",
    )


class EntropyVerifier(RelaxedVerifier):
    """A mismatch may stay if the target is unsure and agrees again at once."""

    def __init__(self, settings: FlySettings) -> None:
        self.settings = settings

    def acceptance_signal(self, scores: Scores, tree: DraftTree) -> Tensor:
        """Return the entropy [T] of the distribution that judged each token, that is, its parent's.

        # choice: the published code's −Σ p ln p over the three largest p, not renormalised.
        """
        top = scores.logits.float().softmax(-1).topk(min(3, scores.logits.shape[-1]), dim=-1).values
        entropy = -torch.xlogy(top, top).sum(-1)
        return entropy[tree.shape.parent_on(entropy.device)]

    def may_differ(self, branch: Branch) -> list[bool]:
        """Allow mismatches where the target is unsure and the window agrees."""
        return [
            unsure >= self.settings.gate and self._agrees_again(branch.matches, i)
            for i, unsure in enumerate(branch.signal)
        ]

    def _agrees_again(self, exact: Sequence[bool], i: int) -> bool:
        if not self.settings.window:
            return True
        # choice: as published, a mismatch among the last W is rejected, even the one whose window
        # just fits.
        end = i + self.settings.window
        return end < len(exact) and all(exact[i + 1 : end])

    def branch_notes(self, branch: Branch) -> Mapping[str, Any]:
        """Return the entropy of the branch's tokens, by node."""
        return {
            "nodes": list(branch.nodes),
            "entropy": [round(value, 4) for value in branch.signal],
            "gate": self.settings.gate,
        }


ENTROPY_GATE = Part(
    "verifier",
    "entropy-gate",
    "entropy gate with deferred window",
    EntropyVerifier,
    FlySettings,
    needs=base.CHAIN,
    lossless=False,
    greedy_only=True,
    charts=(
        Chart(
            "entropy",
            "Entropy of the target",
            "How undecided the target is at each drafted token; mismatches pass only where it is"
            " undecided.",
            "points",
            [
                ChartSeries(
                    "notes.entropy",
                    "drafted token",
                    nodes="notes.nodes",
                    mark="notes.relaxed_nodes",
                    marked="relaxed",
                ),
                ChartSeries("notes.gate", "gate"),
            ],
            "nats",
        ),
    ),
    notes={"entropy": "target’s entropy"},
)

register(
    Method(
        "fly",
        "FLy",
        "A token may differ if the target is undecided and agrees again at once: not lossless.",
        drafter=SMALL,
        views=(MULTIMODAL,),
        policy=CHAIN,
        verifier=ENTROPY_GATE,
        reference="Li et al., arXiv 2511.22972",
        defaults={"gamma": 15},
        options=(SELF, PRUNED, STRICT),
        presets={
            # The published code speeds its drafter up by lookup; the drafts are the same.
            "paper": {},
            "lvspec-paper": {"gamma": 10, "window": 4, "gate": 0.2},
            "gate-only": {"gamma": 10, "window": 0, "gate": 0.2},
            "photo": {"gamma": 5, "window": 2},
            "pocket": {"gamma": 12, "window": 4},
        },
        preset_titles={"gate-only": "entropy gate only"},
        order=70,
        url="https://arxiv.org/abs/2511.22972",
    )
)
