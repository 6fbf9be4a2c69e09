"""Attention of decoders and of trained heads, attention probabilities, and rotary pairs.

Rotary pairs lie side by side, unlike in published weights, so that a rotation is one complex
product. Batch-invariant steps have their own attention (`batch_invariance`), whose sums differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

ALIGNMENT = 16
"""Bytes that kernels read at once."""
_WIDEST_SHARED = 256
"""Width of heads up to which that kernel reads them."""
MAX_PACKED = 256
"""Rows up to which a group's heads are packed as rows: a mask for each takes memory."""


def limit_kernels(device: torch.device) -> None:
    """Let no attention of this process be cuDNN's, which torch prefers on Hopper and Blackwell: it
    stops at masks of ours that it accepted, and the device with it.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


@cache
def shares_heads(device: torch.device) -> bool:
    """Whether a kernel lets heads share keys, in half precision and without a mask: of CUDA the
    flash kernel, from this capability on. In others' place torch would write out all scores.
    """
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 0)


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Return [B * T, heads * width] for queries [B, heads, T, width].

    Args:
        keys, values: [B, kv_heads, S, width].
        mask: Additive or bool (True: visible), [T, S] or [B or 1, 1, T, S]; None if every row sees
            all keys, or is causal.
        scale: Of scores; None for 1 / sqrt(width).
    """
    heads, size, width = queries.shape[1:]
    groups = heads // keys.shape[1]
    half = queries.element_size() == 2 and width <= _WIDEST_SHARED
    shared = mask is None and half and shares_heads(queries.device)
    if groups == 1 or queries.device.type == "cpu" or shared:
        mixed = fused(queries, keys, values, mask, causal, scale)
    elif size <= MAX_PACKED and not causal:
        for_groups = None if mask is None else repeat_mask(mask, groups)
        mixed = attend_grouped(queries, keys, values, for_groups, scale)
    else:
        keys, values = (rows.repeat_interleave(groups, 1) for rows in (keys, values))
        mixed = fused(queries, keys, values, mask, causal, scale)
    return mixed.transpose(1, 2).reshape(-1, heads * width)


def attend_grouped(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float | None = None
) -> Tensor:
    """Return attention of queries [B, heads, T, width] whose groups of heads share keys and values:
    the heads of a group become rows of one matrix. Exact.

    mask: As `repeat_mask` makes it.
    """
    batch, _, _, width = queries.shape
    rows = queries.reshape(batch, keys.shape[1], -1, width)
    return fused(rows, keys, values, mask, scale=scale).reshape(queries.shape)


def repeat_mask(mask: Tensor, groups: int) -> Tensor:
    """Repeat a mask [T, S] or [B or 1, 1, T, S] for every head of a group."""
    return align_mask((mask if mask.ndim == 4 else mask[None, None]).repeat(1, 1, groups, 1))


def fused(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The library's attention [B, heads, T, width], by a kernel that takes it, else plainly."""
    if mask is not None and queries.device.type != "cpu":
        mask = align_mask(mask if mask.ndim == 4 else mask[None, None])
    maths = queries.is_cuda and not kernels_accept(queries, keys, values, mask)
    with sdpa_kernel(SDPBackend.MATH) if maths else nullcontext():
        return F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            is_causal=causal,
            scale=scale,
            enable_gqa=queries.shape[1] != keys.shape[1],
        )


def align_mask(mask: Tensor) -> Tensor:
    """Return a mask that kernels can read: torch checks its strides, not where it begins."""
    if _is_aligned(mask):
        return mask
    step = ALIGNMENT // mask.element_size()
    n_keys = mask.shape[-1]
    wide = mask.new_zeros(*mask.shape[:-1], -(-n_keys // step) * step)
    wide[..., :n_keys] = mask
    return wide[..., :n_keys]


def kernels_accept(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> bool:
    """Whether the fused kernels of CUDA can read this. Given what they cannot, some say so, and
    others stop the device.
    """
    for rows in (queries, keys, values):
        whole_words = rows.shape[-1] * rows.element_size() % ALIGNMENT == 0
        if rows.dtype != queries.dtype or not _is_aligned(rows) or not whole_words:
            return False
    if mask is None:
        return True
    scores = (*queries.shape[:3], keys.shape[2])
    return (
        mask.dtype in (queries.dtype, torch.bool)
        and queries.shape[1] == keys.shape[1]
        and mask.ndim == 4
        and all(n in (1, whole) for n, whole in zip(mask.shape, scores, strict=True))
        and _is_aligned(mask)
    )


def _is_aligned(x: Tensor) -> bool:
    step = ALIGNMENT // x.element_size()
    return x.stride(-1) == 1 and not any(
        number % step for number in (x.storage_offset(), *x.stride()[:-1])
    )


def probabilities(
    queries: Tensor, keys: Tensor, mask: Tensor | None, rows: tuple[int, ...] | None, scale: float
) -> Tensor:
    """Return attention probabilities [B, rows, S], the mean over heads; fused kernels keep none.

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


def rotary_axes(sections: Sequence[int], interleaved: bool, device: torch.device) -> Tensor:
    """Return which of three position axes every rotary pair follows, [width / 2].

    sections: Pairs of each axis, which follow one another, or are interleaved until they are used
        up.
    """
    first, second, third = sections
    axis = torch.zeros(first + second + third, dtype=torch.int64, device=device)
    if interleaved:
        axis[1 : 3 * second : 3], axis[2 : 3 * third : 3] = 1, 2
    else:
        axis[first:], axis[first + second :] = 1, 2
    return axis


def pair_rotary(weight: Tensor, width: int) -> Tensor:
    """Reorder published rows [heads * width, ...] so that rotary pairs lie side by side.

    Queries and keys are reordered alike, which leaves their product unchanged.
    """
    order = torch.arange(width, device=weight.device).view(2, -1).t().reshape(-1)
    return weight.unflatten(0, (-1, width))[:, order].flatten(0, 1)


def join_projections(q: Tensor, k: Tensor, v: Tensor, width: int) -> Tensor:
    """Return published rows of queries, keys and values below each other, rotary pairs adjacent."""
    return torch.cat((pair_rotary(q, width), pair_rotary(k, width), v))
