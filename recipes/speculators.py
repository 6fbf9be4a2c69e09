"""Exports a trained head in the format of vLLM's `speculators`, so that vLLM can serve it.

Given a head's folder and its target's configuration; names and fields as in that library's models
and converters (github.com/vllm-project/speculators, read at version 0.5). Supports the formats that
both have: EAGLE-2's, EAGLE-3's, DFlash's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specvl_demo.methods import dflash, eagle3
from specvl_demo.methods.heads import checkpoints, files
from specvl_demo.vlm.shared_drafter import DRAFT_IDS, SECTION

VERSION = "0.5.0"
DRAFTED = 5
"""Tokens that vLLM drafts if the head's card does not record how far it fed itself."""
_LAYER = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("num_hidden_layers", "head_dim", "rms_norm_eps", "rope_theta", "hidden_act"),
)
_EAGLE2 = {"fc.": "fusion_fc.", "layers.0.": "transformer."}


def export(
    head: Path, out: Path, target: Mapping[str, Any], name: str, architectures: list[str]
) -> list[str]:
    """Write config.json and model.safetensors; return sentences on what the format cannot express.

    Args:
        target: The configuration of the target's decoder.
        name: The folder or hub id of the target in vLLM.

    Raises:
        ValueError: If the format does not support such a head.
    """
    tensors, settings = files.read(head)
    kind = checkpoints.recognise(tensors, head.name).kind
    if kind not in ("eagle2", "eagle3", "dflash"):
        raise ValueError(
            f"{head.name} is {checkpoints.FORMATS[kind].title}, which the speculators format does"
            " not support; it supports EAGLE-2, EAGLE-3 and DFlash."
        )
    if DRAFT_IDS in tensors:
        raise ValueError(
            f"{head.name} says a part of its target's output head, which the speculators format"
            " does not know of such a head; train it with --draft-vocab 0."
        )
    n_layers, vocab = int(target["num_hidden_layers"]), int(target["vocab_size"])
    layer = {key: settings[key] for key in _LAYER if key in settings}
    layer |= {
        "model_type": "qwen3" if kind == "dflash" else "llama",
        "vocab_size": vocab,
        "max_position_embeddings": target.get("max_position_embeddings", 4096),
        "attention_bias": False,
    }
    config: dict[str, Any] = {
        "speculators_model_type": "eagle" if kind == "eagle2" else kind,
        "speculators_version": VERSION,
        "transformer_layer_config": layer,
    }
    drafted = _fed(head)
    if kind == "eagle2":
        config |= {
            "architectures": ["EagleSpeculator", "LlamaDecoderLayer"],
            "transformer_layer_architecture": "LlamaDecoderLayer",
            "layernorms": False,
            "fusion_bias": "fc.bias" in tensors,
        }
        tensors = {_renamed(key): value for key, value in tensors.items()}
    elif kind == "eagle3":
        config |= {
            "architectures": ["Eagle3DraftModel"],
            "draft_vocab_size": len(tensors["d2t"]),
            "norm_before_residual": bool(settings.get("norm_before_residual", False)),
            "norm_before_fc": bool(settings.get("norm_before_fc", False)),
            "eagle_aux_hidden_state_layer_ids": [
                *eagle3.layers_read(settings, n_layers, head.name)
            ],
            "embed_requires_grad": False,
            "target_hidden_size": None,
        }
    else:
        drafted = int(settings["block_size"]) - 1
        config |= {
            "architectures": ["DFlashDraftModel"],
            "draft_vocab_size": vocab,
            "block_size": settings["block_size"],
            "aux_hidden_state_layer_ids": [*dflash.layers_read(settings, n_layers, head.name)],
            "mask_token_id": settings["dflash_config"]["mask_token_id"],
            "target_hidden_size": None,
        }
    config["speculators_config"] = {
        "algorithm": config["speculators_model_type"],
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {
                "proposal_type": "greedy",
                "speculative_tokens": drafted,
                "verifier_accept_k": 1,
                "accept_tolerance": 0.0,
            }
        ],
        "verifier": {"name_or_path": name, "architectures": architectures},
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    stored = {key: _stored(value) for key, value in tensors.items()}
    save_file(stored, out / "model.safetensors", metadata={"format": "pt"})
    scale = settings.get(SECTION, {}).get("visual_scale", 1.0)
    if scale == 1.0:
        return []
    return [
        f"{head.name} learnt from visual tokens scaled by {scale:.3g}, which the format cannot say:"
        " expect less of it where pictures are shown."
    ]


def _fed(head: Path) -> int:
    """Return how many tokens the head drafted in a row in training, according to its card."""
    card = head / "card.json"
    if not card.is_file():
        return DRAFTED
    fed = json.loads(card.read_text(encoding="utf-8"))["recipe"].get("self_feeding", 1)
    return int(fed) if fed > 1 else DRAFTED


def _renamed(name: str) -> str:
    for ours, theirs in _EAGLE2.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


def _stored(value: Tensor) -> Tensor:
    return (value.half() if value.dtype == torch.float32 else value).contiguous()
