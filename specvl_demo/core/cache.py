"""Keys and values of all layers in one preallocated buffer, appended and compacted in place.

Given tensors [batch, heads, rows, width] layer by layer. Rows beyond `length` are garbage and get
overwritten: a rejected branch costs nothing. Knows nothing of models, positions or masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class KVCache:
    """One batch of rows for all layers of a decoder.

    data: [n_layers, 2, batch, heads, room, width], keys at index 0 of the second axis and values at index 1.
    length: rows that are written in every layer. Layers write behind it; `advance` moves it.
    """

    def __init__(
        self,
        n_layers: int,
        batch: int,
        heads: int,
        width: int,
        room: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # Not cleared: a follow-up question copies rows twice, and clearing room took as long as that.
        self.data = torch.empty(n_layers, 2, batch, heads, room, width, dtype=dtype, device=device)
        self.length = 0

    @property
    def room(self) -> int:
        """Rows there is room for."""
        return self.data.shape[4]

    @property
    def batch(self) -> int:
        """Rows are kept for this many sequences."""
        return self.data.shape[2]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put [batch, heads, k, width] behind `length`; gives keys and values of all rows including them."""
        end = self._end(keys.shape[2])
        data = self.data[layer]
        data[0, :, :, self.length : end].copy_(keys)
        data[1, :, :, self.length : end].copy_(values)
        return data[0, :, :, :end], data[1, :, :, :end]

    def spans(self, k: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """For every layer: the slot of the next k rows [2, batch, heads, k, width], and keys and values up to
        and including it. One slicing for all layers, for a forward that cannot afford one per layer.
        """
        end = self._end(k)
        seen = self.data[:, :, :, :, :end]
        slots = self.data[:, :, :, :, self.length : end]
        return slots.unbind(0), seen[:, 0].unbind(0), seen[:, 1].unbind(0)

    def advance(self, k: int) -> None:
        """All layers have written k rows."""
        self.length = self._end(k)

    def truncate(self, length: int) -> None:
        """Forget rows from `length` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} rows to {length}")
        self.length = length

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Of the rows behind `start` keep these, in this order; the others are forgotten.

        rows count from `start`. Decided on the host: rows that already lie in place are not touched.
        """
        n = len(rows)
        first = next((i for i, row in enumerate(rows) if row != i), n)
        if rows and max(rows) >= self.length - start:
            raise ValueError(
                f"row {max(rows)} was not written, only {self.length - start} lie behind {start}"
            )
        if first < n:
            source = torch.tensor([start + row for row in rows[first:]], device=self.data.device)
            self.data[:, :, :, :, start + first : start + n] = self.data.index_select(4, source)
        self.length = start + n

    def copy(self, room: int, rows: int | None = None) -> KVCache:
        """The same rows, or the first of them, in a buffer of another size."""
        length = self.copied(room, rows)
        n_layers, _, batch, heads, _, width = self.data.shape
        twin = type(self)(n_layers, batch, heads, width, room, dtype=self.data.dtype, device=self.data.device)
        twin.data[:, :, :, :, :length] = self.data[:, :, :, :, :length]
        twin.length = length
        return twin

    def copied(self, room: int, rows: int | None) -> int:
        """How many rows a copy of this size takes; ValueError where they are not there or do not fit."""
        length = self.length if rows is None else rows
        if length > self.length:
            raise ValueError(f"a cache of {self.length} rows cannot give {length}")
        if room < length:
            raise ValueError(f"a cache of {length} rows does not fit into {room}")
        return length

    def _end(self, k: int) -> int:
        if self.length + k > self.room:
            raise ValueError(f"the cache has room for {self.room} rows; {self.length} + {k} do not fit")
        return self.length + k
