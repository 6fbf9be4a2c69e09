"""Steps whose every row is the same number for number, however many rows are asked and wherever it
stands.

A token's row is then the same in an AR step and in any tree that holds it, in every precision:
lossless methods say what plain decoding says, token for token. Three things make it so: steps are
padded to row counts whose kernels agree, attention reads a whole cache of one size under a mask,
and every row sums the keys of its own path in the order of the text. `trials.least_rows` tries it
on the decoder at hand.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specvl_demo.core.tree import TreeShape

ROWS = (4, 8, 16, 32, 64)
"""Row counts that steps are padded to; trees of more nodes are not exact. One or two rows alone are
products of a vector, whose kernels sum otherwise."""
MOST_NODES = ROWS[-1]
TAIL = MOST_NODES - 1
"""The last positions of a row's path whose keys are summed apart, in order: no exact tree is
deeper.
"""


class RowOrder(NamedTuple):
    """What T rows see, for `ordered_attention` over a cache with room for R rows.

    mask: [T, R + W] float32, additive: the cache's columns, then the tail. window_mask: the same
    for layers with a sliding window, or None. columns: [T, R + W] int64, the cache's columns, then
    those of the last W positions of a row's own path.
    """

    mask: Tensor
    window_mask: Tensor | None
    columns: Tensor


def padded(size: int, least: int) -> int:
    """How many rows a step over `size` nodes has, at least `least`."""
    return next(rows for rows in ROWS if rows >= max(size, least))


def order(
    shape: TreeShape, rows: int, length: int, room: int, window: int | None, device: torch.device
) -> RowOrder:
    """The order for a tree behind `length` decided rows, padded to `rows` rows; padding repeats the
    root.
    """
    size = len(shape)
    depth = torch.zeros(rows, dtype=torch.int64, device=device)
    depth[:size] = shape.depth_on(device)
    paths = torch.zeros(rows, max(shape.depth) + 1, dtype=torch.int64, device=device)
    paths[:size] = shape.paths_on(device)
    # A position below the root is a column of the row's own path, any other one its own column.
    first = length + depth[:, None] - TAIL
    at = first + torch.arange(TAIL + 1, device=device)
    below = (at - length).clamp(0, paths.shape[1] - 1)
    tail = torch.where(at < length, at.clamp_min(0), length + paths.gather(1, below))
    every = torch.arange(room, device=device).expand(rows, room)
    columns = torch.cat((every, tail), -1)
    seen = torch.cat((every < first, at >= 0), -1)
    low = torch.finfo(torch.float32).min
    mask = torch.zeros(seen.shape, device=device).masked_fill_(~seen, low)
    if window is None:
        return RowOrder(mask, None, columns)
    near = torch.cat((every, at), -1) > (first + TAIL - window)
    return RowOrder(mask, mask.masked_fill(~near, low), columns)


def ordered_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, columns: Tensor, scale: float
) -> Tensor:
    """Attention [1, heads, T, width] over a whole cache, in float32, by a `RowOrder`.

    queries [1, heads, T, width]; keys, values [1, kv_heads, R, width]; mask and columns [T, R + W].
    """
    _, heads, size, width = queries.shape
    kv_heads, room = keys.shape[1], keys.shape[2]
    groups, n_keys = heads // kv_heads, mask.shape[1]
    # [kv heads, T, groups] in this order: what a row shares with no other row is one block of all
    # products.
    asked = (
        queries.view(kv_heads, groups, size, width)
        .transpose(1, 2)
        .reshape(kv_heads, -1, width)
        .float()
    )
    wide = values[0].float()
    scores = torch.bmm(asked, keys[0].float().transpose(1, 2)).view(kv_heads, size, groups, room)
    at = columns[:, None].expand(kv_heads, size, groups, n_keys)
    share = torch.add(mask[:, None], scores.gather(3, at), alpha=scale).softmax(-1)
    before = torch.bmm(share.view(kv_heads, size * groups, n_keys)[..., :room], wide)
    own = wide.index_select(1, columns[:, room:].reshape(-1)).view(kv_heads * size, -1, width)
    last = torch.bmm(share.view(kv_heads * size, groups, n_keys)[..., room:], own)
    mixed = before.view(kv_heads, size, groups, width).add_(
        last.view(kv_heads, size, groups, width)
    )
    return mixed.transpose(1, 2).reshape(1, heads, size, width).to(queries.dtype)
