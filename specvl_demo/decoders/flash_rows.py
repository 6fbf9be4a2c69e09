"""Attention of batch-invariant steps by the flash kernel of a GPU, in half precision.

To the kernel every row is a sequence of one token, whose keys are the cache's up to a length that a
tensor holds: it writes no scores, copies no cache, and no row changes another's sums. Whether it is
so on this device is tried (`keeps_rows`). Knows no models.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from specvl_demo.core.faults import loses_device
from specvl_demo.decoders.batch_invariance import ordered_attention
from specvl_demo.decoders.grouped_attention import agrees, trial_numbers

_CACHE_PARTS = 8
"""# choice: parts of a cache that are read at once. As many for every row: left to the kernel, they
would depend on how many rows there are.
"""


def row_attention(
    queries: Tensor, mask: Tensor, columns: Tensor, scale: float
) -> Callable[[Tensor], Tensor]:
    """Return `ordered_attention` as a function of a layer's buffer [2, 1, kv_heads, R, width], by
    the flash kernel in half precision: to it every row is a sequence of its own, whose keys are the
    buffer's up to a length that a tensor holds. Made once for all layers; without a window.
    """
    size, tail = columns.shape
    room = mask.shape[1] - tail
    before, last = (seen.sum(-1, dtype=torch.int32) for seen in (mask == 0).split((room, tail), -1))
    # The kernel reads from a sequence's first key on, and the tail's last is always seen.
    latest_first = columns.flip(-1).flatten()
    rows = torch.arange(size + 1, dtype=torch.int32, device=queries.device)
    first, starts = torch.zeros_like(rows), rows * tail
    share = queries.new_empty(queries.shape[1], size)
    attend_part = partial(attend_rows, queries[0].transpose(0, 1), rows, scale)

    def attend(data: Tensor) -> Tensor:
        data = data[:, 0]
        far, far_sums = attend_part(data, first, before, room, _CACHE_PARTS)
        tails = data.index_select(2, latest_first)
        near, near_sums = attend_part(tails, starts, last, tail, 1)
        torch.sigmoid(far_sums - near_sums, out=share)
        return near.lerp(far, share.t()[..., None]).reshape(size, -1)

    return attend


def attend_rows(
    queries: Tensor,
    rows: Tensor,
    scale: float,
    data: Tensor,
    starts: Tensor,
    lengths: Tensor,
    longest: int,
    n_parts: int,
) -> tuple[Tensor, Tensor]:
    """Return attention [T, heads, width] of rows that are sequences of one token, and the logarithm
    of each sum of exponentials [heads, T]. The operator below `torch.nn.attention.varlen`, which
    fills a tensor more at every call.

    Args:
        queries: [T, heads, width].
        rows: [T + 1] int32, 0 to T.
        data: Keys and values [2, kv_heads, S, width].
        starts: [T + 1] int32, where each row's keys begin.
        lengths: [T] int32, of which no more than `longest` are read, in `n_parts` parts at once.
    """
    keys, values = data.transpose(1, 2)
    made = torch.ops.aten._flash_attention_forward(
        queries,
        keys,
        values,
        rows,
        starts,
        1,
        longest,
        0.0,
        False,
        False,
        scale=scale,
        seqused_k=lengths,
        num_splits=n_parts,
    )
    return made[:2]


def keeps_rows(queries: Tensor, data: Tensor, mask: Tensor, columns: Tensor, scale: float) -> bool:
    """Whether the flash kernel takes rows of this kind, agrees with `ordered_attention`, and makes
    the same of a row whatever is beside it. A trial with other numbers, which waits for the device.
    """
    queries, data = trial_numbers(queries), trial_numbers(data)
    try:
        mixed = row_attention(queries, mask, columns, scale)(data)
        last = row_attention(queries[:, :, -1:], mask[-1:], columns[-1:], scale)(data)
    except RuntimeError as fault:  # no such kernel, or no such argument
        if loses_device(fault):
            raise
        return False
    truth = ordered_attention(queries, data[0], data[1], mask, columns, scale)
    return torch.equal(mixed[-1:], last) and agrees(mixed, truth)
