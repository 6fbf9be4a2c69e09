"""Matrices in eight bits, which halves the file size of float16.

For drafters, whose drafts are verified anyway, and for the photo tower's projector and classifier.
A matrix NAME [out, in] is stored as int8 with NAME.scale [out, 1] in float32, one for each row.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SCALE = ".scale"
LEAST = 50_000
"""Size, in numbers, from which a matrix is packed."""


def packed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Pack the large matrices among weights by name in eight bits."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or not tensor.is_floating_point() or tensor.numel() < LEAST:
            found[name] = tensor
            continue
        most = tensor.float().abs().amax(1, keepdim=True)
        scale = (most / 127).clamp_min(torch.finfo(torch.float32).tiny)
        found[name] = (tensor.float() / scale).round().clamp(-127, 127).to(torch.int8)
        found[name + SCALE] = scale
    return found


def unpacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Unpack every matrix to float16; ValueError if a matrix and its scale do not fit."""
    found = {name: tensor for name, tensor in tensors.items() if not name.endswith(SCALE)}
    for name, tensor in found.items():
        if tensor.dtype != torch.int8:
            continue
        scale = tensors.get(name + SCALE)
        if tensor.ndim != 2 or scale is None or scale.shape != (len(tensor), 1):
            raise ValueError(
                f"{name} is in eight bits and needs {name}{SCALE} with a number for each row"
            )
        found[name] = (tensor.float() * scale).half()
    return found


@torch.no_grad()
def round_to(module: nn.Module) -> None:
    """Round a module's weights to the values they will have when read from such a file."""
    state = {name: p.detach() for name, p in module.named_parameters()}
    kept = unpacked(packed(state))
    for name, p in module.named_parameters():
        p.copy_(kept[name])
