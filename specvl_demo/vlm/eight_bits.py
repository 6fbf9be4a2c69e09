"""Matrices in eight bits, which halves the file size of float16.

For drafters, whose drafts are verified anyway, and for the photo tower's projector and classifier.
A matrix NAME [out, in] is stored as int8 with NAME.scale [out, 1] in float32, one for each row.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SCALE = ".scale"


def unpack_matrices(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Unpack every matrix to float16; ValueError if a matrix and its scale do not fit."""
    restored = {name: tensor for name, tensor in tensors.items() if not name.endswith(SCALE)}
    for name, tensor in restored.items():
        if tensor.dtype != torch.int8:
            continue
        scale = tensors.get(name + SCALE)
        if tensor.ndim != 2 or scale is None or scale.shape != (len(tensor), 1):
            raise ValueError(f"{name} is in eight bits and needs {name}{SCALE}, one number a row")
        restored[name] = (tensor.float() * scale).half()
    return restored


FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)
SCALES = ("_scale_inv", "_scale")
"""Endings of a weight's scales: blocks' (DeepSeek), or rows' or one (compressed-tensors)."""


def apply_scales(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return published weights in 8-bit floats with scales in float32; others as they are."""
    scaled = dict(tensors)
    for name, tensor in tensors.items():
        ends = [name + ending for ending in SCALES if name + ending in tensors]
        if tensor.dtype not in FLOATS or tensor.ndim != 2 or not ends:
            continue
        scale = scaled.pop(ends[0]).float()
        scale = scale.reshape(len(scale), -1) if scale.ndim else scale.reshape(1, 1)
        for axis, size in enumerate(tensor.shape):
            if 1 < scale.shape[axis] < size:
                # Blocks are powers of two; the last one may be cut off.
                block = 1 << (-(-size // scale.shape[axis]) - 1).bit_length()
                scale = scale.repeat_interleave(block, axis).narrow(axis, 0, size)
        scaled[name] = tensor.float() * scale
    return scaled


def refuse_unscaled(tensors: Mapping[str, Tensor], source: str) -> None:
    """Raise ValueError if weights are in 8-bit floats without scales."""
    for name, tensor in tensors.items():
        if tensor.dtype in FLOATS:
            raise ValueError(
                f"{source} has {name} in 8-bit floats without {name}{SCALES[1]} or"
                f" {name}{SCALES[0]}, which it needs"
            )
