"""HiViS (Xie et al., arXiv 2509.23928): a one-layer head that sees no visual positions."""

from __future__ import annotations

from specvl_demo.core.types import LaneStart
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.methods.base import Method, register
from specvl_demo.methods.declare import Lesson
from specvl_demo.methods.heads.checkpoints import FIRST, Head, HeadFormat, n_rows_joined
from specvl_demo.methods.heads.features import FeatureHead, HeadPrompt, head_part
from specvl_demo.methods.policies import BEST_FIRST, CHAIN, STATIC_TREE
from specvl_demo.vlm.layouts import visual_runs


class HiViSHead(FeatureHead):
    """A HiViS head: visual rows are hidden, step embeddings encode depth below the root.

    With step embeddings r [R, D], a row drafted d levels below the root is fed r[min(d, R - 1)];
    rows of known features, the root's among them, r[0] (arXiv 2509.23928, eq. 4).
    """

    view = "text only"

    def __init__(self, head: Head, decoder: LanguageBackend) -> None:
        super().__init__(head, decoder)
        # The step's part of the projection does not depend on the input: one row per step.
        weight = head.tensors["fc.weight"][:, 2 * self.width :]
        self._bias = self._bias + head.tensors["residual"] @ weight.t()
        self.n_steps: int = self._bias.shape[0]
        self._published = not head.specvl

    def read_prompt(self, start: LaneStart) -> HeadPrompt:
        """Use text only: visual rows are dropped before tokens and features are paired.

        # choice: several pictures or clips are all hidden (the published code supports one).
        Positions are compact. Published heads of models with three-axis positions also drop the
        tokens that frame a picture and one more after it, and count positions with the gaps.
        """
        encoded = start.encoded
        with_gaps = self._published and encoded.positions.ndim > 1
        hidden = encoded.visual.clone()
        for first, stop in visual_runs(encoded.visual) if with_gaps else ():
            hidden[max(0, first - 1) : stop + 2] = True
        return self.read_without(start, hidden, with_gaps)


HIVIS = head_part(
    HeadFormat(
        "hivis",
        "a HiViS head",
        HiViSHead,
        lambda tensors: n_rows_joined(tensors) == 3 and "residual" in tensors,
        {**FIRST, "fc.weight": "D 3D", "residual": "N D"},
    )
)

register(
    Method(
        "hivis",
        "HiViS",
        "A head that sees no picture: what it needs to know is in the target’s features of the"
        " text.",
        drafter=HIVIS,
        policy=BEST_FIRST,
        reference="Xie et al., arXiv 2509.23928",
        options=(CHAIN, STATIC_TREE, "entropy-tree", "visual", "entropy-gate"),
        presets={
            # choice: the paper's depth 7 counts the first level, as EAGLE-2's does; its code runs 5
            # loops.
            "paper": {"nodes": 60, "width": 10, "loops": 6},
            "published-code": {"nodes": 60, "width": 10, "loops": 5},
            "photo": {"policy": "chain", "gamma": 10, "floor": 0.1},
            "pocket": {"policy": "chain", "gamma": 12, "floor": 0.6},
            "pocket-tree": {"nodes": 10, "width": 2, "loops": 7},
        },
        order=90,
        listed="paper",
        offered=5,
        url="https://arxiv.org/abs/2509.23928",
        learn=Lesson(
            does="""The target’s hidden states at the words already depend on the picture, so the
            drafter need not see it. HiViS hides every visual token and feeds the drafter the words,
            the target’s states, and an embedding that counts the steps it has drafted.""",
            look="""What it saw: no patch of the picture, only the words of the question.
            Watch in the tree whether colours and places are guessed all the same: the target’s
            states carry them.""",
            formula=r"x = W [ e_{t + 1} ‖ f_t ‖ r_s ]",
            aloud="""The head’s input x is a projection W of the newest token’s embedding e, the
            target’s feature f one token before it, and an embedding r of the step s.""",
        ),
    )
)
