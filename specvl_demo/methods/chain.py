"""Chain drafting: a small model drafts a few tokens in a row (Leviathan et al., arXiv 2211.17192).

Also defines `custom`, which starts as a chain and allows any other parts.
"""

from __future__ import annotations

from specvl_demo.methods.base import Method, register
from specvl_demo.methods.declare import Value
from specvl_demo.methods.policies import CHAIN
from specvl_demo.methods.small_vlm import SMALL
from specvl_demo.methods.views import MULTIMODAL

TUNED: dict[str, dict[str, Value]] = {
    "photo": {"gamma": 10, "floor": 0.05},
    "pocket": {"gamma": 12, "floor": 0.6},
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
        listed="first",
        offered=2,
        url="https://arxiv.org/abs/2404.08856",
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
    )
)
