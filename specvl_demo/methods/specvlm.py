"""SpecVLM (Ji et al., arXiv 2508.16201): the static tree, drafted by a pruned picture.

The pruning, guided by the target's attention or even, is the view `pruned` in `views`.
"""

from __future__ import annotations

from specvl_demo.methods.base import Method, register
from specvl_demo.methods.declare import Learn
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
            "pocket": {"drop_image": 0.5, "drop_video": 0.5, "tree_nodes": 8},
        },
        order=30,
        learn=Learn(
            does="""Most tokens of a clip repeat others. The drafter reads only some of them, a
            tenth in the paper: those the target attends to while it reads the question, and evenly
            spaced ones for the rest. It drafts faster and hardly less accurately.""",
            shines="Long clips and large pictures, which make up most of a drafter’s prompt.",
            struggles="""Small pictures: there is little to leave out, and the small thing in
            question may be lost.""",
            look="""The patches that remain, shown over the picture. Where acceptance falls, check
            whether the thing in question is among them.""",
            formula=r"keep = \text{top-attended (share 0.4)} ∪ \text{evenly spaced}",
            aloud="kept tokens are the most attended ones and evenly spaced ones",
            url="https://arxiv.org/abs/2508.16201",
            published=(
                "2.68×",
                "at best; LLaVA-OneVision 72B with 7B, drafter sees a tenth of the clip",
            ),
        ),
    )
)
