"""A model's memory needs, from its configuration only.

The library's own class is built on the meta device, where weights take no memory. Knows neither
machines nor dtypes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from specvl_demo.decoders import packed_decoder
from specvl_demo.decoders.huggingface import HFDecoder
from specvl_demo.vlm import efficientnet_lite


class Sizes(NamedTuple):
    """Numbers of a model.

    Attributes:
        params: All weights.
        tower: Weights outside decoder and embeddings.
        kv: Keys and values of a token.
        fused: Weights that the packed CPU decoder repacks, 0 if it does not run the model.
        looks: Numbers held at once per token of a prompt while the vision tower computes.
        reads: The same while the decoder computes the prompt.
        halves: Whether its weights are stored in 16 bits.
    """

    params: int
    tower: int
    kv: int
    fused: int
    looks: int
    reads: int
    halves: bool


def read(folder: Path, sees: bool) -> Sizes | None:
    """Return the sizes of the model with this config.json; None if the library cannot build it.

    Loading the model then reports why.
    """
    efficientnet_lite.register()
    kind: Any = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            model = kind.from_config(config)
        decoder, plain = model.get_decoder(), HFDecoder(model)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StrictDataclassError):
        return None
    params = sum(weight.numel() for weight in model.parameters())
    text = {id(weight) for weight in (*decoder.parameters(), model.get_output_embeddings().weight)}
    tower = sum(one.numel() for one in model.parameters() if id(one) not in text)
    fused = plain.n_weights if packed_decoder.why_not(decoder) is None else 0
    halves = str(config.dtype).removeprefix("torch.") in ("bfloat16", "float16")
    # A decoder's layer holds gate and projection, in one or two matrices, and their product.
    looks, reads = _looks(config, model, decoder), _held(decoder, decoder.config.hidden_size, 4)
    return Sizes(params, tower, plain.n_cached, fused, looks, reads, halves)


def _held(part: nn.Module, width: int, wide: int) -> int:
    """Return the numbers that a layer holds per row: `wide` of its widest, some of its own width.

    Both counts follow what was measured.
    """
    linear = [one.out_features for one in part.modules() if isinstance(one, nn.Linear)]
    return wide * max(linear, default=0) + 8 * width


def _looks(config: Any, model: nn.Module, decoder: nn.Module) -> int:
    """Return `Sizes.looks`: the tower sees all pictures at once, layer by layer."""
    vision = getattr(config, "vision_config", None)
    text = getattr(decoder, "layers", None)
    towers = [one for one in model.modules() if isinstance(one, nn.ModuleList) and one is not text]
    if vision is None or not towers:
        return 0
    width = getattr(vision, "embed_dim", None) or vision.hidden_size
    pixels = 3 * vision.patch_size**2 * getattr(vision, "temporal_patch_size", 1)
    # The processor's pixels in float32, then in the tower's precision.
    row = max(_held(tower, width, 2) for tower in towers) + 3 * pixels
    if getattr(config, "vision_feature_layer", None) is not None:
        # The library keeps what every layer returns, and takes one of them.
        row += width * max(len(tower) for tower in towers)
    return int(row * _patches(config, vision))


def _patches(config: Any, vision: Any) -> float:
    """Return how many patches of a picture become one token; families name it differently."""
    side = getattr(vision, "spatial_merge_size", None) or getattr(config, "scale_factor", None)
    side = side or getattr(config, "spatial_merge_size", None)
    if side is None and (ratio := getattr(config, "downsample_ratio", None)):
        side = 1 / ratio
    if side is None and (tokens := getattr(config, "mm_tokens_per_image", None)):
        return float((vision.image_size // vision.patch_size) ** 2 / tokens)
    return float(side or 1) ** 2


def text_config(folder: Path) -> dict[str, Any]:
    """Return a configuration's decoder section, completed by the library's defaults."""
    efficientnet_lite.register()
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    return config.get_text_config().to_dict()
