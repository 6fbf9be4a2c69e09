"""Autoregressive decoding, the baseline: the same loop with a tree of one node and nothing
drafted.
"""

from __future__ import annotations

from torch import Tensor

from specvl_demo.core.sampling import Sampler
from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Drafter, NoDrafter, Policy
from specvl_demo.methods.base import STRICT, Method, Part, register
from specvl_demo.methods.declare import Learn, PolicySettings


class OneNode(Policy):
    """Drafts nothing: plain autoregressive decoding."""

    max_nodes = 1

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        """The root alone; the drafter is not asked."""
        return DraftTree(root, chain(0))


NONE = Part("drafter", "none", "no drafter", lambda models, views, mixer, settings: NoDrafter())
ONE_NODE = Part("policy", "one-node", "no draft", lambda settings: OneNode(), PolicySettings)

AR = register(
    Method(
        "ar",
        "Autoregressive",
        "The target alone, one token a step: what every other method is measured against.",
        drafter=NONE,
        policy=ONE_NODE,
        verifier=STRICT,
        order=0,
        learn=Learn(
            does=(
                "The target writes one token, reads it back, writes the next. Each token costs a"
                " full pass over all its weights, and on most machines moving those weights is what"
                " takes the time: the arithmetic units wait. A pass over six tokens costs little"
                " more than a pass over one. Every other method here makes use of that."
            ),
            shines=(
                "Where nothing can be guessed, and where every unit is busy already: large batches."
            ),
            struggles="Alone with one question: most of the machine idles.",
            look=(
                "One node per tree, one token per round, τ = 1. Its speed is the measure for all"
                " others: same model, same loop, same kernels."
            ),
            formula=r"y_t = \text{argmax } p_target \text{( · | } y_{< t} \text{ )}",
            aloud="the next token is the target’s likeliest",
        ),
    )
)
