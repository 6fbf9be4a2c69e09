"""A decoder whose steps have fixed shapes, so that a CUDA device can replay them as graphs.

Serves the interface of `HFDecoder`. Small calls (a step, a tree, a draft) are padded to the next of a few row
counts, read the whole cache under a mask, and write where a tensor says; prefills and calls that keep states
go the ordinary way. On a CPU the same fixed-shape step runs without a graph, which is what tests hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from specvl_demo.core.cache import KVCache
from specvl_demo.targets.decoder import Call
from specvl_demo.targets.hf import HFCache, HFDecoder

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
_ROUND = 64
"""Caches have a multiple of this many rows: fused kernels want masks whose rows are aligned."""


class StaticCache(HFCache):
    """A cache that can also be written at rows given by a tensor and read as a whole.

    Behind its `room` lie as many rows as the largest call, so that padding is always written somewhere.
    """

    def __init__(self, *shape: int, dtype: torch.dtype, device: torch.device) -> None:
        rows = -(-(shape[4] + BUCKETS[-1]) // _ROUND) * _ROUND
        super().__init__(*shape[:4], rows, dtype=dtype, device=device)
        self.data.zero_()  # a step reads all of it, and what a mask hides must still be a number
        self._room = shape[4]
        self.at: Tensor | None = None
        self.steps: dict[int, _Step] = {}

    @property
    def room(self) -> int:
        """Rows there is room for."""
        return self._room

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """As any cache; at `self.at` and with the whole buffer as answer while a fixed step runs."""
        if self.at is None:
            return super().write(layer, keys, values)
        data = self.data[layer]
        data[0].index_copy_(2, self.at, keys)
        data[1].index_copy_(2, self.at, values)
        return data[0], data[1]

    def copy(self, room: int, rows: int | None = None) -> KVCache:
        """The same rows, or the first of them, in a buffer of another size, with graphs of its own."""
        length = self.copied(room, rows)
        n_layers, _, batch, heads, _, width = self.data.shape
        shape = (n_layers, batch, heads, width, room)
        twin = StaticCache(*shape, dtype=self.data.dtype, device=self.data.device)
        twin.data[:, :, :, :, :length] = self.data[:, :, :, :, :length]
        twin.length = length
        return twin


@dataclass
class _Step:
    """The buffers of one row count on one cache, and the graph over them where the device has graphs."""

    x: Tensor
    positions: Tensor
    at: Tensor
    mask: Tensor
    window_mask: Tensor | None
    hidden: Tensor | None = None
    graph: torch.cuda.CUDAGraph | None = field(default=None)


class StaticDecoder(HFDecoder):
    """A `targets.decoder.Backend`: `HFDecoder` with fixed-shape small steps.

    A cache keeps its own graphs, since a graph is bound to its buffers; all share one pool of memory.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        if len(set(self._devices)) > 1:
            raise ValueError("graphs span one device; this model is spread over several")
        self._pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    def new_cache(self, batch: int, room: int) -> KVCache:
        """An empty cache that `forward` writes into."""
        shape = (self.n_layers, batch, self._kv_heads, self._head_width, room)
        return StaticCache(*shape, dtype=self.dtype, device=self.device)

    def forward(self, call: Call) -> Tensor:
        """Hidden states after the final norm [B, T, D]; the cache is T rows longer afterwards."""
        size = call.x.shape[1]
        ordinary = call.kept is not None or call.deepstack is not None or size > BUCKETS[-1]
        # Many rows without a mask are a causal prefill; one row alone sees just what lies before it.
        if ordinary or (call.mask is None and size > 1) or not isinstance(call.cache, StaticCache):
            return super().forward(call)
        step = self._filled(call, next(bucket for bucket in BUCKETS if bucket >= size))
        self._run(step, call.cache)
        call.cache.advance(size)
        return step.hidden[:, :size].clone()

    def _filled(self, call: Call, bucket: int) -> _Step:
        """The buffers for this call. Rows of padding see themselves alone, written behind all others."""
        cache, size, batch = call.cache, call.x.shape[1], call.x.shape[0]
        total, low = cache.data.shape[4], torch.finfo(self.dtype).min
        step = cache.steps.get(bucket)
        if step is None:
            step = cache.steps[bucket] = self._buffers(call, bucket)
        end = cache.length + size
        step.x.zero_()[:, :size] = call.x
        step.positions.zero_()[..., :size] = call.positions
        behind = torch.arange(bucket - size, device=self.device) + total - (bucket - size)
        step.at.copy_(torch.cat((torch.arange(cache.length, end, device=self.device), behind)))
        for buffer, mask in ((step.mask, call.mask), (step.window_mask, call.window_mask)):
            if buffer is None:
                continue
            mask = call.mask if mask is None else mask
            buffer.fill_(low)
            if mask is None:
                buffer[..., :size, :end] = 0.0
            else:
                given = mask if mask.ndim == 4 else mask[None, None]
                buffer[..., :size, :end] = given.expand(batch, 1, size, end)
            buffer[..., torch.arange(size, bucket, device=self.device), behind] = 0.0
        return step

    def _buffers(self, call: Call, bucket: int) -> _Step:
        batch, total = call.x.shape[0], call.cache.data.shape[4]
        axes = call.positions.shape[:-2]

        def mask() -> Tensor:
            return torch.zeros(batch, 1, bucket, total, dtype=self.dtype, device=self.device)

        return _Step(
            x=call.x.new_zeros(batch, bucket, call.x.shape[2]),
            positions=call.positions.new_zeros(*axes, batch, bucket),
            at=torch.zeros(bucket, dtype=torch.int64, device=self.device),
            mask=mask(),
            window_mask=None if self.window is None else mask(),
        )

    def _run(self, step: _Step, cache: StaticCache) -> None:
        cache.at = step.at
        try:
            if self.device.type != "cuda":
                step.hidden = self._compute(step, cache)
            elif step.graph is None:
                self._record(step, cache)
            else:
                step.graph.replay()
        finally:
            cache.at = None

    def _record(self, step: _Step, cache: StaticCache) -> None:
        """Run once to have kernels chosen, on a stream of its own as recording wants it; record and replay.

        Running it again writes the same rows to the same places.
        """
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            self._compute(step, cache)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            step.hidden = self._compute(step, cache)
        step.graph = graph
        graph.replay()

    def _compute(self, step: _Step, cache: StaticCache) -> Tensor:
        call = Call(step.x, step.positions, cache, mask=step.mask, window_mask=step.window_mask)
        return self._decode(call)
