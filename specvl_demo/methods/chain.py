"""Chain drafting: a small model drafts a few tokens in a row (Leviathan et al., arXiv 2211.17192).

Also defines `custom`, which starts as a chain and allows any other parts.
"""

from __future__ import annotations

from specvl_demo.methods.base import Method, register
from specvl_demo.methods.declare import Learn, Value
from specvl_demo.methods.policies import CHAIN
from specvl_demo.methods.small_vlm import SMALL
from specvl_demo.methods.views import MULTIMODAL

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
        listed="first",
        offered=2,
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
