"""Writes weights as `specvl_demo.vlm.eight_bits` reads them, and the photo pair's delta."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from specvl_demo.vlm.efficientnet_lite import EfficientNetLiteModel
from specvl_demo.vlm.eight_bits import SCALE, unpack_matrices
from specvl_demo.vlm.photo_assembly import CLASSES, WEIGHTS

LEAST = 50_000
"""Size, in numbers, from which a matrix is packed."""


def packed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Pack the large matrices among weights by name in eight bits."""
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or not tensor.is_floating_point() or tensor.numel() < LEAST:
            stored[name] = tensor
            continue
        largest = tensor.float().abs().amax(1, keepdim=True)
        scale = (largest / 127).clamp_min(torch.finfo(torch.float32).tiny)
        stored[name] = (tensor.float() / scale).round().clamp(-127, 127).to(torch.int8)
        stored[name + SCALE] = scale
    return stored


@torch.no_grad()
def round_to(module: nn.Module) -> None:
    """Round a module's weights to the values they will have when read from such a file."""
    rounded = unpack_matrices(packed({name: p.detach() for name, p in module.named_parameters()}))
    for name, p in module.named_parameters():
        p.copy_(rounded[name])


def write_delta(
    out: Path, tower: EfficientNetLiteModel, lora: dict[str, Tensor], classes: Sequence[str]
) -> None:
    """Write a delta folder, with weights in float16 or eight bits and without the word table."""
    out.mkdir(parents=True, exist_ok=True)
    state = {f"tower.{k}": v for k, v in tower.state_dict().items() if k != "class_words"}
    state |= {f"lora.{k}": v for k, v in lora.items()}
    half = {k: v.half() if v.is_floating_point() else v for k, v in state.items()}
    save_file({k: v.contiguous().cpu() for k, v in packed(half).items()}, out / WEIGHTS)
    (out / CLASSES).write_text(json.dumps(list(classes), indent=0) + "\n")
    tower.config.save_pretrained(out)
