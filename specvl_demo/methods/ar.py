"""Autoregressive decoding, the baseline: the same loop with a tree of one node and no draft."""

from __future__ import annotations

from torch import Tensor

from specvl_demo.core.sampling import Sampler
from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Drafter, Policy
from specvl_demo.methods.base import STRICT, Method, Part, register
from specvl_demo.methods.declare import PolicySettings


class OneNode(Policy):
    """Drafts nothing: plain autoregressive decoding."""

    max_nodes = 1

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        return DraftTree(root, chain(0))


NONE = Part("drafter", "none", "no drafter", lambda models, views, mixer, settings: Drafter())
ONE_NODE = Part("policy", "one-node", "no draft", lambda settings: OneNode(), PolicySettings)

register(
    Method(
        "ar",
        "Autoregressive",
        "The target without a drafter, one token per step: the baseline of all other methods.",
        drafter=NONE,
        policy=ONE_NODE,
        verifier=STRICT,
        order=0,
        listed="first",
    )
)
