"""Attention of the lean decoder and of trained heads, attention probabilities, and rotary pairs.

Rotary pairs lie side by side, unlike in published weights, so that a rotation is one complex
product. Two further forms of attention have owners of their own, since their sums differ: exact
steps (`exact`), and the library's decoders, which call the library's (`huggingface`).
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Those that take any mask, or are left out where they do not. cuDNN's fails with some."""


def fused(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Return the library's attention [B, heads, T, width], by kernels that are right.

    Args:
        mask: Additive or bool (True: visible), broadcast to [B, heads, T, S].
        scale: None for width^-0.5.
    """
    grouped = queries.shape[1] != keys.shape[1]
    with sdpa_kernel(_KERNELS) if queries.is_cuda else nullcontext():
        return F.scaled_dot_product_attention(
            queries, keys, values, mask, is_causal=causal, scale=scale, enable_gqa=grouped
        )


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Return [B * T, heads * width] for queries [B, heads, T, width].

    Args:
        keys, values: [B, kv_heads, S, width].
        mask: Additive, [T, S] or [B or 1, 1, T, S]; None if every row sees all keys, or is causal.
    """
    mixed = fused(queries, keys, values, mask, causal)
    return mixed.transpose(1, 2).reshape(-1, queries.shape[1] * queries.shape[3])


def probabilities(
    queries: Tensor, keys: Tensor, mask: Tensor | None, rows: tuple[int, ...] | None, scale: float
) -> Tensor:
    """Compute attention probabilities [B, rows, S], averaged over heads, which fused kernels do not
    keep.

    Args:
        queries: [B, heads, T, width].
        keys: [B, kv_heads, S, width].
        mask: Additive or bool (True: visible), [T, S] or [B or 1, 1, T, S]; None for causal.
        rows: Which of the T queries, from the end if negative; None for all.
    """
    batch, heads, size, width = queries.shape
    n_keys = keys.shape[2]
    at = torch.arange(size, device=queries.device)
    if rows is not None:
        at = at[[row for row in rows if -size <= row < size]]
    groups = heads // keys.shape[1]
    chosen = queries[:, :, at].reshape(batch, keys.shape[1], groups * len(at), width)
    scores = (chosen @ keys.transpose(2, 3)).view(batch, heads, len(at), n_keys).float() * scale
    if mask is None:
        ahead = torch.arange(n_keys, device=queries.device) > (at + n_keys - size)[:, None]
        scores = scores.masked_fill(ahead, -torch.inf)
    elif mask.dtype == torch.bool:
        # The library's own mask for a sliding window is boolean (True: visible) instead of
        # additive.
        scores = scores.masked_fill(~mask[..., at, :], -torch.inf)
    else:
        scores = scores + mask[..., at, :]
    return scores.softmax(-1).mean(1)


def rotations(frequencies: Tensor, n: int) -> Tensor:
    """Return the rotation of every rotary pair at positions below n, [n, width / 2] complex."""
    angles = torch.arange(n, device=frequencies.device).float()[:, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles)


def in_pairs(weight: Tensor, width: int) -> Tensor:
    """Reorder published rows [heads * width, ...] so that rotary pairs lie side by side.

    Queries and keys are reordered alike, which leaves their product unchanged.
    """
    order = torch.arange(width, device=weight.device).view(2, -1).t().reshape(-1)
    return weight.unflatten(0, (-1, width))[:, order].flatten(0, 1)
