"""Keys and values of all layers in preallocated buffers, appended and compacted in place.

Given tensors [batch, heads, rows, width] layer by layer. Rows beyond `length` are garbage and get
overwritten: a rejected branch costs nothing. Knows nothing of models, positions or masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from specvl_demo.core.transfer import to_device

if TYPE_CHECKING:
    from specvl_demo.decoders.graphs import StepShape


class Layout(NamedTuple):
    """Where a layer keeps its keys and values, and their shape."""

    device: torch.device
    heads: int
    width: int


class KVSlots(NamedTuple):
    """Of every layer, where a step's new keys and values go, [2, batch, heads, k, width], and all
    keys and values that it reads, with those, [batch, heads, rows, width].
    """

    slots: Sequence[Tensor]
    keys: Sequence[Tensor]
    values: Sequence[Tensor]


class KVCache:
    """One batch of rows for all layers of a decoder.

    Rows of a cache, with where each part ends; what is committed is the sequence's to know:

        |  empty  |  prompt and answer  |  this round's nodes  |  garbage  |
                holes         CachedSequence.length          length      room

    Attributes:
        blocks: A buffer [layers, 2, batch, heads, room, width] for all layers of one layout, keys
            at index 0 of the second axis and values at index 1. Most decoders have one; those
            spread over devices have one on each.
        layouts: Of every layer.
        length: Rows that are written in every layer. Layers write after it; `advance` moves it.
        whole: While set, layers read all of the buffer, not only what is written.
        holes: The first rows that some layers leave empty, which their caller skips.
        at: Rows to write, in a step of fixed shape (`graphs`); else None.
        adapter: What the library's decoders write to (`huggingface.as_hf_cache`).
    """

    whole = False
    holes = 0
    at: Tensor | None = None
    adapter: Any = None
    branches = True
    """Whether a tree may be written, of which one path is kept."""

    def __init__(self, layers: Sequence[Layout], batch: int, room: int, dtype: torch.dtype) -> None:
        self.layouts = list(layers)
        kinds = list(dict.fromkeys(layers))
        # Not cleared: that would take as long as a lane's copy of the prefill.
        self.blocks = [
            torch.empty(
                self.layouts.count(kind),
                2,
                batch,
                kind.heads,
                room,
                kind.width,
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
        """Rows that the cache has room for."""
        return self.buffer_rows

    @property
    def buffer_rows(self) -> int:
        """Rows that reading the whole buffer covers."""
        return self.blocks[0].shape[4]

    @property
    def batch(self) -> int:
        """How many sequences rows are kept for."""
        return self.blocks[0].shape[2]

    def prepare(self, shapes: Sequence[StepShape]) -> None:
        """Prepare for steps of these shapes (`graphs.step_shapes`), before any round is timed."""

    def release(self) -> None:
        """Release the cache, which is no longer used."""

    def mark_committed(self) -> None:
        """Take all rows for committed: none of them is removed again."""

    def layer_buffer(self, layer: int) -> Tensor:
        """Return the buffer of one layer, [2, batch, heads, span, width]."""
        block, index = self._places[layer]
        return self.blocks[block][index]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write [batch, heads, k, width] after `length`; return keys and values of all rows. In a
        fixed step, write at `at` and return the whole buffer.
        """
        data = self.layer_buffer(layer)
        if self.at is not None:
            data[0].index_copy_(2, self.at, keys)
            data[1].index_copy_(2, self.at, values)
            return data[0], data[1]
        end = self.require_room(keys.shape[2])
        data[0, :, :, self.length : end].copy_(keys)
        data[1, :, :, self.length : end].copy_(values)
        end = self.buffer_rows if self.whole else end
        return data[0, :, :, :end], data[1, :, :, :end]

    def kv_slots(self, k: int) -> KVSlots:
        """Return the slots of the next k rows, of layers that are all of one layout.

        Slices once for all layers, for forwards that cannot afford one slicing per layer.
        """
        end, (data,) = self.require_room(k), self.blocks
        slots = data[:, :, :, :, self.length : end]
        read = data[:, :, :, :, :end]
        return KVSlots(slots.unbind(0), read[:, 0].unbind(0), read[:, 1].unbind(0))

    def zero_unused(self) -> None:
        """Zero the unused part; callers may read the whole buffer."""
        for data in self.blocks:
            data[:, :, :, :, self.length :].zero_()

    def require_room(self, k: int) -> int:
        """Return where k more rows end; ValueError unless there is room for them."""
        if self.length + k > self.room:
            raise ValueError(
                f"the cache has room for {self.room} rows; {self.length} + {k} do not fit"
            )
        return self.length + k

    def advance(self, k: int) -> None:
        """Count k rows that all layers have written."""
        self.length = self.require_room(k)

    def truncate(self, length: int) -> None:
        """Remove rows from `length` on."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of {self.length} rows to {length}")
        self.length = length

    def keep_rows(self, start: int, rows: Sequence[int]) -> None:
        """Keep these of the rows after `start`, in this order, and remove the others.

        rows count from `start`; those already in place are not touched.
        """
        n = len(rows)
        first = next((i for i, row in enumerate(rows) if row != i), n)
        if rows and max(rows) >= self.length - start:
            raise ValueError(
                f"row {max(rows)} was not written: there are only {self.length - start} after"
                f" {start}"
            )
        for data in self.blocks if first < n else ():
            source = to_device([start + row for row in rows[first:]], data.device)
            data[:, :, :, :, start + first : start + n] = data.index_select(4, source)
        self.length = start + n

    def copy(self, room: int, shapes: Sequence[StepShape] = ()) -> KVCache:
        """Return the same rows in buffers of another size. shapes: As for `prepare`."""
        length = self.length
        if room < length:
            raise ValueError(f"a cache of {length} rows does not fit into {room}")
        twin = self.empty_like(room, shapes)
        for mine, theirs in zip(self.blocks, twin.blocks):
            theirs[:, :, :, :, :length] = mine[:, :, :, :, :length]
        twin.length = length
        twin.holes = self.holes
        return twin

    def empty_like(self, room: int, shapes: Sequence[StepShape] = ()) -> KVCache:
        """Return an empty cache of this kind."""
        return type(self)(self.layouts, self.batch, room, self.blocks[0].dtype)
