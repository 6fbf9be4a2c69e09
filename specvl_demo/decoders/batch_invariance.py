"""Batch-invariant steps: a row's result is bitwise the same whatever rows are computed with it.

A token's row is then the same in an AR step and in any tree, in every precision, so lossless
methods reproduce AR's answer token for token. Our own kernels compute every row so. Elsewhere steps
are padded to row counts whose kernels agree, and attention gathers each row's last keys in the
order of the text: by plain products here, or by a GPU's kernel (`flash_rows`).
Whether a decoder's steps are so is not assumed but tested by `calibration.min_invariant_rows`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specvl_demo.core.tree import TreeShape

ROWS = (4, 8, 16, 32, 64)
"""Row counts that steps are padded to where our own kernels do not run; larger trees are not
batch-invariant there. Products of one or two rows use kernels that sum in another order.
"""
MAX_NODES = ROWS[-1]
TAIL = MAX_NODES - 1
"""Positions before a row's own on its path: W = TAIL + 1 keys are summed apart, in order."""


def padded_rows(n_nodes: int, min_rows: int) -> int:
    """Return the rows, at least `min_rows`, of a step over `n_nodes`; 1 means no padding."""
    if min_rows == 1:
        return n_nodes
    return next(rows for rows in ROWS if rows >= max(n_nodes, min_rows))


def attention_order(
    shape: TreeShape, rows: int, length: int, room: int, window: int | None, device: torch.device
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return what the rows of a tree after `length` rows attend to, in a cache with room for R
    rows; the tree is padded to T `rows` by repeating the root.

    Returns:
        The mask [T, R + W] float32, additive, of the cache's columns and then the tail; the same
            for layers with a sliding window, if there are any; and the columns [T, W] int64 of the
            tail, those of the path's last W positions. The first position is never the tail's: no
            row's sum is of nothing.
    """
    size = len(shape)
    depth = torch.zeros(rows, dtype=torch.int64, device=device)
    depth[:size] = shape.depth_on(device)
    paths = torch.zeros(rows, max(shape.depth) + 1, dtype=torch.int64, device=device)
    paths[:size] = shape.node_paths_on(device)
    # Positions below the root map to columns of the row's path, all others to their own column.
    first = length + depth[:, None] - TAIL
    at = first + torch.arange(TAIL + 1, device=device)
    below = (at - length).clamp(0, paths.shape[1] - 1)
    columns = torch.where(at < length, at.clamp_min(0), length + paths.gather(1, below))
    every = torch.arange(room, device=device).expand(rows, room)
    start = first.clamp_min(1)
    seen = torch.cat((every < start, at >= start), -1)
    low = torch.finfo(torch.float32).min
    mask = torch.zeros(seen.shape, device=device).masked_fill_(~seen, low)
    if window is None:
        return mask, None, columns
    near = torch.cat((every, at), -1) > (first + TAIL - window)
    return mask, mask.masked_fill(~near, low), columns


def ordered_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, columns: Tensor, scale: float
) -> Tensor:
    """Attention [T, heads * width] over a whole cache, in float32, as `attention_order` says.

    Args:
        queries: [1, heads, T, width].
        keys, values: [1, kv_heads, R, width].
        mask: [T, R + W].
        columns: [T, W].
    """
    _, heads, size, width = queries.shape
    kv_heads = keys.shape[1]
    room = keys.shape[2]
    groups = heads // kv_heads
    n_keys = mask.shape[1]
    # [kv heads, T, groups] in this order, so that each row is one contiguous block of all products.
    by_row = queries.view(kv_heads, groups, size, width).transpose(1, 2)
    grouped = _contiguous_as(torch.float32, by_row).reshape(kv_heads, -1, width)
    wide = values[0].float()
    scores = torch.bmm(grouped, keys[0].float().transpose(1, 2)).view(kv_heads, size, groups, room)
    tail = scores.gather(3, columns[:, None].expand(kv_heads, size, groups, -1))
    share = torch.add(mask[:, None], torch.cat((scores, tail), -1), alpha=scale).softmax(-1)
    before = torch.bmm(share.view(kv_heads, size * groups, n_keys)[..., :room], wide)
    tail_values = wide[:, columns].reshape(kv_heads * size, -1, width)
    last = torch.bmm(share.view(kv_heads * size, groups, n_keys)[..., room:], tail_values)
    mixed = before.view(kv_heads, size, groups, width).add_(
        last.view(kv_heads, size, groups, width)
    )
    return _contiguous_as(queries.dtype, mixed.transpose(0, 1)).reshape(size, heads * width)


def _contiguous_as(dtype: torch.dtype, x: Tensor) -> Tensor:
    """Return x in another type, and in order, by one launch."""
    return x.to(dtype, memory_format=torch.contiguous_format)
