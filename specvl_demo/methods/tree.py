"""Static trees: several continuations at once, of fixed shape (EAGLE-1, arXiv 2401.15077)."""

from specvl_demo.methods.base import Method, register
from specvl_demo.methods.declare import AUTO
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
        presets={pair: {"tree_nodes": AUTO} for pair in ("photo", "pocket")},
        order=20,
        url="https://arxiv.org/abs/2401.15077",
    )
)
