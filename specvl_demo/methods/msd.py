"""MSD (Lin et al., arXiv 2505.14260): an EAGLE-2 head that reads pictures separately from features.

At text rows it joins embedding and feature as EAGLE-2's does; at visual rows it reads only the
target's projected visual tokens. Runs published weights; not trained here.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from specvl_demo.core.types import Decoder, Start
from specvl_demo.methods.base import Method, register
from specvl_demo.methods.chain import CHAIN
from specvl_demo.methods.declare import Learn
from specvl_demo.methods.eagle2 import BEST_FIRST
from specvl_demo.methods.heads.checkpoints import Format, Head, add_format
from specvl_demo.methods.heads.features import FeatureHead, HeadPrompt, head_part
from specvl_demo.methods.heads.shapes import BIASES, FIRST
from specvl_demo.methods.tree import STATIC_TREE

NORM = "layers.0.input_layernorm.weight"


class MSDHead(FeatureHead):
    """The weights of an MSD head; those for Qwen2-VL have a norm before their block."""

    def __init__(self, head: Head, decoder: Decoder) -> None:
        super().__init__(head, decoder)
        self._norm_in_front = NORM in head.tensors

    def open(self, start: Start, before: Tensor | None = None) -> HeadPrompt:
        """Like EAGLE-2's, but a visual token's row is its projected embedding (§3.1).

        # choice: tokens are shifted by one at visual rows too, as EAGLE's code shifts all. Newer
        model cards squeeze pictures into 32 rows by k-means, which is not done here.
        """
        opening = super().open(start)
        visual = start.encoded.visual[1:-1, None]
        embeds = self.prompt_embeds(start.encoded)[1:-1]
        return opening._replace(x=torch.where(visual, embeds.to(opening.x.dtype), opening.x))

    def inputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (self._block.normed(x) if self._norm_in_front else x), x


def _recognised(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the tensors include the norm before the block.

    Without it, the file looks like EAGLE-2's, and the pair or its config.json must name the format.
    """
    plain = NORM in tensors and "norm.weight" not in tensors
    return plain and {"fc.weight", *FIRST} <= tensors.keys()


add_format(
    Format(
        "msd",
        "an MSD head",
        "msd",
        MSDHead,
        _recognised,
        {**FIRST, "fc.weight": "D 2D"},
        optional={**BIASES, "fc.bias": "D", NORM: "D"},
    )
)

register(
    Method(
        "msd",
        "MSD",
        "An EAGLE-2 head that reads pictures without features: joined at words, plain at patches.",
        drafter=head_part("msd", "MSD head"),
        policy=BEST_FIRST,
        reference="Lin et al., arXiv 2505.14260",
        options=(CHAIN, STATIC_TREE, "entropy-tree"),
        presets={"paper": {"nodes": 60, "width": 10, "loops": 5}},
        order=82,
        learn=Learn(
            does="""Words and patches differ: a word’s embedding holds little, so it helps to join
            it with the target’s feature, as EAGLE-2 does; a patch’s embedding already holds all
            that was seen. MSD’s head joins at words, reads patches as they are, and is trained
            first on text, then on more and more pictures.""",
            shines="Targets with a published head: LLaVA-1.5 and Qwen2-VL.",
            struggles="Large pictures: every patch is a row of the head.",
            look="Acceptance on pictures compared with EAGLE-2’s, for the same target.",
            formula=r"\text{words } x_i = fc ( [ e_i , f_{i − 1} ] ) \text{, patches } x_i = e_i",
            aloud="the input joins embedding and feature at words; at patches it is the embedding",
            url="https://arxiv.org/abs/2505.14260",
            published=("up to 2.29×", "LLaVA-1.5 7B, multimodal benchmarks"),
        ),
    )
)
