"""Static trees: several continuations at once, of fixed shape (EAGLE-1, arXiv 2401.15077)."""

from __future__ import annotations

from specvl_demo.methods.base import Method, register
from specvl_demo.methods.declare import Learn
from specvl_demo.methods.policies import STATIC_TREE
from specvl_demo.methods.small_vlm import SMALL
from specvl_demo.methods.views import MULTIMODAL

register(
    Method(
        "tree",
        "Static tree",
        "A small model drafts several continuations at once, in a tree of fixed shape.",
        drafter=SMALL,
        views=(MULTIMODAL,),
        policy=STATIC_TREE,
        reference="Li et al., arXiv 2401.15077 (the tree of EAGLE-1)",
        presets={"photo": {"tree_nodes": 11}, "pocket": {"tree_nodes": 8}},
        order=20,
        learn=Learn(
            does="""A single line of guesses ends at its first mistake. A tree keeps second and
            third choices open: all branches are checked in the same pass, each seeing only its own
            ancestors. The shape is fixed and was found once on other texts.""",
            shines="GPUs, on which more nodes in a pass cost almost nothing.",
            struggles="CPUs, on which every node costs time and a chain may win.",
            look="Which branch is accepted: mostly the first, sometimes the second.",
            formula=r"S = \frac{τ ( T )}{ρ_draft + ρ_verify ( T )}",
            aloud="speedup of a tree with T nodes",
            url="https://arxiv.org/abs/2401.15077",
        ),
    )
)
