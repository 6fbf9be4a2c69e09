"""Autoregressive decoding, the baseline: the same loop with a tree of one node and no draft."""

from __future__ import annotations

from torch import Tensor

from specvl_demo.core.sampling import Sampler
from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Drafter, Policy
from specvl_demo.methods.base import STRICT, Method, Part, register
from specvl_demo.methods.declare import Learn, PolicySettings


class OneNode(Policy):
    """Drafts nothing: plain autoregressive decoding."""

    max_nodes = 1

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        return DraftTree(root, chain(0))


NONE = Part("drafter", "none", "no drafter", lambda models, views, mixer, settings: Drafter())
ONE_NODE = Part("policy", "one-node", "no draft", lambda settings: OneNode(), PolicySettings)

AR = register(
    Method(
        "ar",
        "Autoregressive",
        "The target without a drafter, one token per step: the baseline of all other methods.",
        drafter=NONE,
        policy=ONE_NODE,
        verifier=STRICT,
        order=0,
        listed="first",
        learn=Learn(
            does="""The target writes one token, reads it back and writes the next. Each token costs
            a full pass over all its weights. On most machines, moving those weights takes most of
            the time while the arithmetic units wait, so a pass over six tokens costs little more
            than a pass over one. Every other method here makes use of that.""",
            shines="""Text that cannot be guessed, and large batches, which keep every unit busy
            already.""",
            struggles="A single question: most of the machine idles.",
            look="""One node per tree, one token per round, τ = 1. All speedups are measured against
            it, with the same model, loop and kernels.""",
            formula=r"y_t = \text{argmax } p_target \text{( · | } y_{< t} \text{ )}",
            aloud="the next token is the target’s likeliest",
        ),
    )
)
