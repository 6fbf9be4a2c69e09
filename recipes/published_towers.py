"""The published EfficientNet-Lites, and their weights under the names of this project's tower."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from specvl_demo.vlm.efficientnet_lite import FINE_STAGES, scaled_stages

# The names of a block's parts in published weights.
BLOCK_PARTS = {
    "_expand_conv": "expand.conv",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}


@dataclass(frozen=True)
class Variant:
    """A published EfficientNet-Lite: its width and depth relative to Lite0, and its picture side in
    pixels, a whole number of cells.
    """

    name: str
    width: float
    depth: float
    image_size: int


VARIANTS = (
    Variant("EfficientNet-Lite0", 1.0, 1.0, 224),
    Variant("EfficientNet-Lite2", 1.1, 1.2, 256),
)


def published_weights(state: dict[str, Tensor]) -> tuple[Variant, dict[str, Tensor]]:
    """Return which EfficientNet-Lite these published PyTorch weights are, and the same weights
    under this project's names; ValueError if it is none of `VARIANTS`.
    """
    blocks = len({name.split(".")[1] for name in state if name.startswith("_blocks.")})
    counts = {sum(s[0] for s in scaled_stages(v.width, v.depth)): v for v in VARIANTS}
    if blocks not in counts:
        known = " or ".join(f"{n} ({v.name})" for n, v in counts.items())
        raise ValueError(
            f"an EfficientNet-Lite of {known} is needed, but these weights have {blocks} blocks"
        )
    variant = counts[blocks]
    n_lower = sum(s[0] for s in scaled_stages(variant.width, variant.depth)[:FINE_STAGES])
    head = f"upper.{blocks - n_lower}"
    places = {"_conv_stem": "lower.0.conv", "_bn0": "lower.0.norm", "_conv_head": f"{head}.conv"}
    places |= {"_bn1": f"{head}.norm", "_fc": "classifier"}
    for i in range(blocks):
        place = f"lower.{i + 1}" if i < n_lower else f"upper.{i - n_lower}"
        places |= {
            f"_blocks.{i}.{theirs}": f"{place}.{ours}" for theirs, ours in BLOCK_PARTS.items()
        }
    named: dict[str, Tensor] = {}
    for name, value in state.items():
        part, _, leaf = name.rpartition(".")
        # The first block does not widen.
        if part not in places or part == "_blocks.0._expand_conv":
            raise ValueError(f"unknown weight {name!r} in the published {variant.name}")
        named[f"{places[part]}.{leaf}"] = value
    return variant, named
