"""Models of real shapes with random weights, to measure what a step costs; their text is random.

Given a name, builds a whole model on a device without fetching anything. Only the decoder has its
real size; the vision tower is a small one. Sizes are those of the published configurations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForImageTextToText,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    Qwen2_5_VLConfig,
)


def _text(width: int, inner: int, layers: int, heads: int, kv: int, vocab: int) -> dict[str, int]:
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "max_position_embeddings": 32768,
    }


SHAPES: Mapping[str, tuple[str, dict[str, int]]] = {
    "llava-1.5-7b": ("llava", _text(4096, 11008, 32, 32, 32, 32064)),
    "lvlm68m": ("llava", _text(768, 3072, 2, 12, 12, 32064)),
    "qwen2.5-vl-3b": ("qwen2.5", _text(2048, 11008, 36, 16, 2, 151936)),
    "qwen2.5-vl-7b": ("qwen2.5", _text(3584, 18944, 28, 28, 4, 152064)),
    "qwen2.5-vl-32b": ("qwen2.5", _text(5120, 27648, 64, 40, 8, 152064)),
    "tiny-llava": ("llava", _text(64, 96, 2, 4, 2, 300)),
    "tiny-qwen2.5": ("qwen2.5", _text(64, 96, 2, 4, 2, 300)),
}

PAIRS: Mapping[str, tuple[str, str]] = {
    "llava-1.5-7b": ("llava-1.5-7b", "lvlm68m"),
    "qwen2.5-vl-7b": ("qwen2.5-vl-7b", "qwen2.5-vl-3b"),
    "qwen2.5-vl-32b": ("qwen2.5-vl-32b", "qwen2.5-vl-7b"),
}
"""By the id of a pair: target and drafter."""


def n_weights(name: str) -> int:
    """Return how many numbers the layers, the embeddings and the head of a name in SHAPES have."""
    text = SHAPES[name][1]
    width, grouped = text["hidden_size"], text["num_key_value_heads"] / text["num_attention_heads"]
    layer = width * width * (2 + 2 * grouped) + 3 * width * text["intermediate_size"]
    return int(layer * text["num_hidden_layers"] + 2 * text["vocab_size"] * width)


def random_model(name: str, dtype: str, device: str) -> nn.Module:
    """Return the model of a name in SHAPES with random weights."""
    kind, text = SHAPES[name]
    if kind == "llava":
        tower = CLIPVisionConfig(
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=28,
            patch_size=14,
        )
        config: Any = LlavaConfig(
            vision_config=tower, text_config=LlamaConfig(**text), image_token_id=3
        )
    else:
        half = text["hidden_size"] // text["num_attention_heads"] // 2
        # Time, height and width divide the rotary pairs as in the published models: 16, 24 and 24
        # of 64.
        sections = [half - 2 * (half * 3 // 8), half * 3 // 8, half * 3 // 8]
        rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections}
        tower = {
            "depth": 1,
            "hidden_size": 64,
            "num_heads": 2,
            "out_hidden_size": text["hidden_size"],
        }
        names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
        special = {name: 3 + i for i, name in enumerate(names)}
        config = Qwen2_5_VLConfig(
            vision_config=tower | {"intermediate_size": 64},
            text_config=text | {"rope_parameters": rope},
            tie_word_embeddings=False,
            **special,
        )
    with torch.device(device):
        model = AutoModelForImageTextToText.from_config(config, dtype=getattr(torch, dtype))
    return model.eval().requires_grad_(False)
