"""SpecVLM (Ji et al., arXiv 2508.16201): the static tree, drafted by a pruned picture.

The pruning, guided by the target's attention or even, is the view `pruned` in `views`.
"""

from specvl_demo.methods.base import Method, register
from specvl_demo.methods.declare import AUTO
from specvl_demo.methods.policies import CHAIN, STATIC_TREE
from specvl_demo.methods.small_vlm import SELF, SMALL
from specvl_demo.methods.views import PRUNED

register(
    Method(
        "specvlm",
        "SpecVLM",
        "The static tree, drafted by a small model that sees only what the target attends to in"
        " the picture.",
        drafter=SMALL,
        views=(PRUNED,),
        policy=STATIC_TREE,
        reference="Ji et al., arXiv 2508.16201",
        defaults={"drop_image": 0.9, "drop_video": 0.9, "guided": True},
        options=(SELF, CHAIN),
        presets={
            "paper": {},
            "photo": {"drop_image": 0.5, "drop_video": 0.5, "tree_nodes": 5},
            "pocket": {"drop_image": 0.5, "drop_video": 0.5, "tree_nodes": AUTO},
        },
        order=30,
        url="https://arxiv.org/abs/2508.16201",
    )
)
