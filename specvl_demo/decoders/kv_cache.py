"""Keys and values of all layers in preallocated buffers, appended and compacted in place.

Given tensors [batch, heads, rows, width] layer by layer. Rows beyond `length` are garbage and get
overwritten: a rejected branch costs nothing. Knows nothing of models, positions or masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specvl_demo.core.transfer import sent


class Layout(NamedTuple):
    """Where a layer keeps its keys and values, and of which shape. beside: more numbers in each
    row, behind its width, which `clear` sets to 1.
    """

    device: torch.device
    heads: int
    width: int
    beside: int = 0


class KVCache:
    """One batch of rows for all layers of a decoder.

    blocks: a buffer [layers, 2, batch, heads, room, width] for all layers of one layout, keys at
    index 0 of
        the second axis and values at index 1. Most decoders have one; spread over devices, one on
        each.
    layouts: of every layer. length: rows that are written in every layer. Layers write behind it;
    `advance` moves it. whole: layers read all of the buffer, not just what is written, while this
    is set. holes: the first rows that some of the layers have nothing in; who computes the layers
    looks past them.
    """

    whole, holes = False, 0
    branches = True
    """Whether a tree may be written, of which one path is kept."""

    def __init__(self, layers: Sequence[Layout], batch: int, room: int, dtype: torch.dtype) -> None:
        self.layouts, kinds = list(layers), list(dict.fromkeys(layers))
        # Not cleared: a follow-up question copies rows twice, and clearing room took as long as
        # that.
        self.blocks = [
            torch.empty(
                *(self.layouts.count(kind), 2, batch, kind.heads, room, kind.width + kind.beside),
                dtype=dtype,
                device=kind.device,
            )
            for kind in kinds
        ]
        self._places = [
            (kinds.index(kind), self.layouts[:i].count(kind)) for i, kind in enumerate(layers)
        ]
        self.length = 0

    @property
    def room(self) -> int:
        """Rows there is room for."""
        return self.span

    @property
    def span(self) -> int:
        """Rows that reading the whole buffer covers."""
        return self.blocks[0].shape[4]

    @property
    def batch(self) -> int:
        """Rows are kept for this many sequences."""
        return self.blocks[0].shape[2]

    def prepare(self) -> None:
        """Prepare for steps, before any clock runs."""

    def release(self) -> None:
        """Release the cache, which is no longer used."""

    def settle(self) -> None:
        """All rows are decided: none of them will be forgotten."""

    def reaches(self, rows: int) -> bool:
        """Whether a copy can end at so many of the rows."""
        return rows <= self.length

    def layer(self, layer: int) -> Tensor:
        """The buffer of one layer, [2, batch, heads, span, width]."""
        block, index = self._places[layer]
        return self.blocks[block][index]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put [batch, heads, k, width] behind `length`; gives keys and values of all rows including
        them.
        """
        end, data = self._end(keys.shape[2]), self.layer(layer)
        data[0, :, :, self.length : end].copy_(keys)
        data[1, :, :, self.length : end].copy_(values)
        end = self.span if self.whole else end
        return data[0, :, :, :end], data[1, :, :, :end]

    def spans(
        self, k: int, seen: int | None = None
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """For every layer, all of one layout: the slot of the next k rows [2, batch, heads, k,
        width], and all keys and values up to and including that slot. With `seen` the first `seen`
        of them, and values with one number more: 1. One slicing for all layers, for a forward that
        cannot afford one a layer.
        """
        end, (data,), width = self._end(k), self.blocks, self.layouts[0].width
        read = data[:, :, :, :, : end if seen is None else seen]
        return (
            data[:, :, :, :, self.length : end, :width].unbind(0),
            read[:, 0, ..., :width].unbind(0),
            read[:, 1, ..., : width if seen is None else width + 1].unbind(0),
        )

    def clear(self) -> None:
        """Make what is not written zero, for who reads the whole buffer."""
        for kind, data in zip(dict.fromkeys(self.layouts), self.blocks, strict=True):
            data[:, :, :, :, self.length :].zero_()
            data[..., kind.width :] = 1

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

        rows count from `start`. Decided on the host: rows that already lie in place are not
        touched.
        """
        n = len(rows)
        first = next((i for i, row in enumerate(rows) if row != i), n)
        if rows and max(rows) >= self.length - start:
            raise ValueError(
                f"row {max(rows)} was not written, only {self.length - start} lie behind {start}"
            )
        for data in self.blocks if first < n else ():
            source = sent([start + row for row in rows[first:]], data.device)
            data[:, :, :, :, start + first : start + n] = data.index_select(4, source)
        self.length = start + n

    def copy(self, room: int, rows: int | None = None) -> KVCache:
        """The same rows, or the first of them, in buffers of another size."""
        length = self.length if rows is None else rows
        if length > self.length:
            raise ValueError(f"a cache of {self.length} rows cannot give {length}")
        if room < length:
            raise ValueError(f"a cache of {length} rows does not fit into {room}")
        twin = self.another(room)
        for mine, theirs in zip(self.blocks, twin.blocks, strict=True):
            theirs[:, :, :, :, :length] = mine[:, :, :, :, :length]
        twin.length, twin.holes = length, self.holes
        return twin

    def another(self, room: int) -> KVCache:
        """An empty cache of this kind."""
        return type(self)(self.layouts, self.batch, room, self.blocks[0].dtype)

    def _end(self, k: int) -> int:
        if self.length + k > self.room:
            raise ValueError(
                f"the cache has room for {self.room} rows; {self.length} + {k} do not fit"
            )
        return self.length + k
