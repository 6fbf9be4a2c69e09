"""Steps of fixed shapes, which a CUDA device can replay as graphs, for decoders and trained heads.

Small calls (a step, a tree or a draft, including exact ones and those that keep layer states) are
padded to one of a few row counts, read the whole cache under a mask, and write at rows given by a
tensor. Prefills and calls that keep attention are not padded. On a CPU the same step runs without a
graph, which is what tests check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from specvl_demo.core.types import Capture
from specvl_demo.decoders.backend import ForwardInput, ForwardOutput
from specvl_demo.decoders.exact import MOST_NODES, padded
from specvl_demo.decoders.huggingface import HFCache, HFDecoder
from specvl_demo.decoders.kv_cache import KVCache, Layout

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
LEAST_ROWS = 512


class StepShape(NamedTuple):
    """The key of a recorded graph.

    Attributes:
        rows: Padded row count.
        layers: Layers whose inputs are kept.
        tail: Columns after the cache's in the mask of an exact step, 0 in an ordinary one.
    """

    rows: int
    layers: tuple[int, ...]
    tail: int


class StaticCache(HFCache):
    """A cache that can be written at rows given by a tensor and read as a whole.

    It keeps the graphs recorded over its buffers and returns to its decoder once it is unused.

    room: Rows in use. As many rows as the largest call follow, so that padding has a place to be
    written.
    """

    room = 0

    def __init__(self, steps: FixedSteps, layers: Sequence[Layout], batch: int, span: int) -> None:
        super().__init__(layers, batch, span, steps.host.dtype)
        self._steps = steps
        self.at: Tensor | None = None
        self.steps: dict[StepShape, _Step] = {}

    def acquire(self, room: int) -> StaticCache:
        """Empty the cache and make room for so many rows; masked rows must hold finite numbers."""
        self.room, self.length, self.holes = room, 0, 0
        self.clear()
        return self

    def release(self) -> None:
        """Return it, with its graphs, to its decoder."""
        self._steps.free.append(self)

    def prepare(self, most: int, layers: tuple[int, ...] = (), least: int | None = None) -> None:
        """Record every shape of such steps, so that no timed round has to."""
        exactly = least is not None and most <= MOST_NODES
        first = padded(1, least) if exactly and least else 1
        last = next((rows for rows in BUCKETS if rows >= max(most, first)), BUCKETS[-1])
        for rows in BUCKETS:
            if first <= rows <= last:
                self._steps.step(self, StepShape(rows, layers, MOST_NODES if exactly else 0))

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Like `KVCache.write`; in a fixed step, write at `self.at` and return the whole buffer."""
        if self.at is None:
            return super().write(layer, keys, values)
        data = self.layer(layer)
        data[0].index_copy_(2, self.at, keys)
        data[1].index_copy_(2, self.at, values)
        return data[0], data[1]

    def spans(self, k: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Like `KVCache.spans`; in a fixed step, the slots are rows given by a tensor."""
        if self.at is None:
            return super().spans(k)
        layers = [self.layer(i) for i in range(len(self.layouts))]
        slots = cast("tuple[Tensor, ...]", tuple(_Rows(data, self.at) for data in layers))
        return slots, tuple(data[0] for data in layers), tuple(data[1] for data in layers)

    def another(self, room: int) -> StaticCache:
        return self._steps.acquire(self.batch, room)


class _Rows(NamedTuple):
    """Rows of a layer's buffer [2, batch, heads, span, width], written as a slot is."""

    data: Tensor
    at: Tensor

    def copy_(self, rows: Tensor) -> None:
        """Write keys and values [2, batch, heads, k, width]."""
        self.data.index_copy_(3, self.at, rows)


@dataclass
class _Step:
    """The buffers of one step shape on one cache, and the graph over them if the device has
    graphs.
    """

    call: ForwardInput
    at: Tensor
    hidden: Tensor | None = None
    graph: torch.cuda.CUDAGraph | None = None


class Host(Protocol):
    """The module that computes steps. input_width: width of its input rows."""

    input_width: int
    axes: int
    window: int | None

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    def layouts(self) -> list[Layout]:
        """How every layer stores its rows."""

    def decode(self, call: ForwardInput) -> Tensor:
        """Return hidden states [B, T, D]; the cache is written, but its length is unchanged."""

    def watch(self, kept: ForwardOutput, stack: ExitStack) -> None:
        """Capture the inputs of the chosen layers until the stack is closed."""


class FixedSteps:
    """The fixed steps of one host, and the caches that they are recorded on.

    A graph is bound to its buffers, so caches are reused by one lane after the other: a pair
    records once for every cache held at the same time.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.free: list[StaticCache] = []
        self._pool: Any = None  # a CUDA handle

    # Caches and buffers outlive the mode that they are first asked for in.
    @torch.inference_mode(False)
    def acquire(self, batch: int, room: int) -> StaticCache:
        """Return a free cache, or make one that replaces the cache unused for longest."""
        span = _span(room + BUCKETS[-1])
        for cache in self.free:
            if (cache.batch, cache.span) == (batch, span):
                self.free.remove(cache)
                return cache.acquire(room)
        del self.free[:1]
        return StaticCache(self, self.host.layouts(), batch, span).acquire(room)

    def forward(self, call: ForwardInput, otherwise: Callable[[ForwardInput], Tensor]) -> Tensor:
        """Return hidden states [B, T, D]; the cache grows by T rows.

        otherwise: Called if the call does not fit a fixed shape.
        """
        shape, cache, size = self._shape(call), call.cache, call.x.shape[1]
        if shape is None or not isinstance(cache, StaticCache):
            return otherwise(call)
        step = self.step(cache, shape)
        self._fill(step, call)
        if step.graph is None:
            self._compute(step, cache)
        else:
            step.graph.replay()
        cache.advance(size)
        assert step.hidden is not None  # written by the run above
        hidden = step.hidden[:, :size].clone()
        call.kept.layers |= {
            i: states[:, :size].clone() for i, states in step.call.kept.layers.items()
        }
        if len(cache.layouts) in shape.layers:
            call.kept.layers[len(cache.layouts)] = hidden
        return hidden

    def _shape(self, call: ForwardInput) -> StepShape | None:
        """Return the shape of a call, or None if it is not padded."""
        size, capture = call.x.shape[1], call.kept.capture
        if call.deepstack is not None or size > BUCKETS[-1]:
            return None
        # Many rows without a mask are a causal prefill; a single row sees all rows before it.
        if (call.mask is None and size > 1) or capture.attention:
            return None
        tail = 0 if call.columns is None else call.columns.shape[1] - call.cache.span
        rows = next(bucket for bucket in BUCKETS if bucket >= size)
        return StepShape(rows, capture.layers, tail)

    def step(self, cache: StaticCache, shape: StepShape) -> _Step:
        """Return the buffers of a shape on a cache, recorded if the device has graphs."""
        if shape not in cache.steps:
            step = self._buffers(cache, shape)
            if self.host.device.type == "cuda":
                self._record(step, cache)
            cache.steps[shape] = step
        return cache.steps[shape]

    @torch.inference_mode(False)
    def _buffers(self, cache: StaticCache, shape: StepShape) -> _Step:
        host, batch, rows = self.host, cache.batch, shape.rows
        device = host.device
        # Exact steps use masks in float32.
        dtype = torch.float32 if shape.tail else host.dtype

        def mask() -> Tensor:
            return torch.zeros(batch, 1, rows, cache.span + shape.tail, dtype=dtype, device=device)

        axes = (host.axes,) if host.axes > 1 else ()
        call = ForwardInput(
            x=torch.zeros(batch, rows, host.input_width, dtype=host.dtype, device=device),
            positions=torch.zeros(*axes, batch, rows, dtype=torch.int64, device=device),
            cache=cache,
            mask=mask(),
            window_mask=None if host.window is None else mask(),
            kept=ForwardOutput(Capture(layers=shape.layers)),
        )
        if shape.tail:
            columns = torch.arange(cache.span + shape.tail, device=device).clamp_max(cache.span - 1)
            call.columns = columns.repeat(rows, 1)
        return _Step(call, torch.arange(rows, device=device))

    def _fill(self, step: _Step, call: ForwardInput) -> None:
        """Copy a call into the buffers. Rows of padding are written after it and see only
        themselves.
        """
        size, rows, cache = call.x.shape[1], len(step.at), call.cache
        step.call.x.zero_()[:, :size] = call.x
        step.call.positions.zero_()[..., :size] = call.positions
        first = cache.length
        torch.arange(first, first + rows, out=step.at)
        if step.call.columns is not None and call.columns is not None:
            step.call.columns[:size] = call.columns
        for buffer, own in ((step.call.mask, call.mask), (step.call.window_mask, call.window_mask)):
            if buffer is None:
                continue
            given = call.mask if own is None else own
            if call.columns is not None and given is not None:
                # Rows of padding keep an earlier step's mask: finite numbers that are never read.
                buffer[..., :size, :] = given
                continue
            buffer.fill_(torch.finfo(buffer.dtype).min)
            seen = buffer[..., :size, : first + size]
            if given is None:
                seen.zero_()
            else:
                seen.copy_(given)
            buffer[..., size:, first + size : first + rows].diagonal(dim1=-2, dim2=-1).zero_()
        if cache.holes and step.call.window_mask is not None:
            buffer = step.call.window_mask
            buffer[..., : cache.holes] = torch.finfo(buffer.dtype).min

    def _record(self, step: _Step, cache: StaticCache) -> None:
        """Run once on a separate stream so that kernels are chosen, then record.

        It writes rows that no cache reads: those of an empty one, or the first after its length.
        """
        step.at += cache.length
        device = self.host.device
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self._compute(step, cache)
        torch.cuda.current_stream(device).wait_stream(stream)
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                self._compute(step, cache)
        except RuntimeError:
            # What was half recorded may still hold blocks of this pool.
            self._pool = None
            raise
        step.graph = graph

    def _compute(self, step: _Step, cache: StaticCache) -> None:
        cache.at = step.at
        try:
            with ExitStack() as stack:
                self.host.watch(step.call.kept, stack)
                step.hidden = self.host.decode(step.call)
        finally:
            cache.at = None


class StaticDecoder(HFDecoder):
    """A `backend.Backend`: `HFDecoder` with small steps of fixed shapes.

    fixed: Whether steps have fixed shapes; see `calibration`.
    """

    fixed = True

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        if self.is_split:
            raise ValueError("graphs span one device; this model is spread over several")
        self.input_width = self.width
        self.steps = FixedSteps(self)

    def new_cache(self, batch: int, room: int) -> KVCache:
        return self.steps.acquire(batch, room) if self.fixed else super().new_cache(batch, room)

    def forward(self, call: ForwardInput) -> Tensor:
        return self.steps.forward(call, super().forward) if self.fixed else super().forward(call)


def _span(rows: int) -> int:
    """Round the rows of a cache up to one of four sizes per power of two, so that similar requests
    share caches.
    """
    quarter = LEAST_ROWS // 4
    while 8 * quarter < rows:
        quarter *= 2
    return max(LEAST_ROWS, -(-rows // quarter) * quarter)
