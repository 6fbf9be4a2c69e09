"""A model's memory needs, from its configuration only.

The library's own class is built on the meta device, where weights take no memory. Knows neither
machines nor dtypes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from specvl_demo.decoders import fused_cpu
from specvl_demo.decoders.huggingface import HFDecoder
from specvl_demo.vlm import efficientnet_lite


class Sizes(NamedTuple):
    """Numbers of a model.

    Attributes:
        params: All weights.
        tower: Weights outside decoder and embeddings.
        kv: Keys and values of a token.
        fused: Weights that the fused CPU decoder repacks, 0 if it does not run the model.
        halves: Whether its weights are stored in 16 bits.
    """

    params: int
    tower: int
    kv: int
    fused: int
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
    fused = plain.n_weights if fused_cpu.why_not(decoder) is None else 0
    halves = str(config.dtype).removeprefix("torch.") in ("bfloat16", "float16")
    return Sizes(params, tower, plain.n_cached, fused, halves)


def text_config(folder: Path) -> dict[str, Any]:
    """Return a configuration's decoder section, completed by the library's defaults."""
    efficientnet_lite.register()
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    return config.get_text_config().to_dict()
