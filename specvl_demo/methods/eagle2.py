"""EAGLE-2 (Li et al., arXiv 2406.16858): one layer on the target's features, a best-first tree."""

from specvl_demo.methods.base import Method, register
from specvl_demo.methods.heads.checkpoints import FIRST, HeadFormat, n_rows_joined
from specvl_demo.methods.heads.features import FeatureHead, head_part
from specvl_demo.methods.policies import BEST_FIRST, CHAIN, STATIC_TREE

EAGLE2 = head_part(
    HeadFormat(
        "eagle2",
        "an EAGLE-2 head",
        FeatureHead,
        lambda tensors: n_rows_joined(tensors) == 2,
        {**FIRST, "fc.weight": "D 2D"},
    )
)

register(
    Method(
        "eagle2",
        "EAGLE-2",
        "One layer predicts the target’s next features from its last; the likeliest paths form a"
        " tree.",
        drafter=EAGLE2,
        policy=BEST_FIRST,
        reference="Li et al., arXiv 2406.16858",
        options=(CHAIN, STATIC_TREE, "entropy-tree"),
        presets={
            # Depth 6 with the first level, as in the paper.
            "paper": {"nodes": 60, "width": 10, "loops": 5},
            "photo": {"policy": "chain", "gamma": 10, "floor": 0.1},
            "pocket": {"policy": "chain", "gamma": 10, "floor": 0.6},
            "pocket-tree": {"nodes": 12, "width": 3, "loops": 5},
        },
        order=80,
        offered=7,
        url="https://arxiv.org/abs/2406.16858",
    )
)
