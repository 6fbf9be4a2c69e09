"""Small steps that a CUDA device captures as graphs and replays, for decoders and trained heads.

A graph repeats its kernels over the same buffers. So small calls (a step, a tree or a draft, also
batch-invariant ones and those that keep layer states) are padded to one of a few row counts, read
the whole cache under a mask, and write at rows given by a tensor. Prefills and calls that keep
attention are not padded. Without CUDA the same steps run without graphs, which is what tests check.

A decoder or head owns its `GraphRunner`, the runner its unused caches, a cache its graphs. What
points back is weak: a graph is reset when its cache is dropped, not when the garbage collector
finds it, which could be in the middle of a capture.
"""

from __future__ import annotations

import gc
import logging
import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache as cached
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from specvl_demo.core.faults import cause, loses_device
from specvl_demo.core.types import Capture
from specvl_demo.decoders.batch_invariance import MOST_NODES, padded
from specvl_demo.decoders.forward import Captured, ForwardInput
from specvl_demo.decoders.kv_cache import KVCache

if TYPE_CHECKING:
    from specvl_demo.decoders.backend import Backend

_LOG = logging.getLogger(__name__)
BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
LEAST_ROWS = 512


class StepShape(NamedTuple):
    """What a graph was captured for.

    Attributes:
        rows: Padded row count.
        layers: Layers whose inputs are kept.
        tail: Columns after the cache's in the mask of a batch-invariant step, 0 in others.
    """

    rows: int
    layers: tuple[int, ...]
    tail: int


@dataclass
class GraphStep:
    """The buffers of one step shape on one cache, and the graph over them, if any.

    at: [rows] of the cache, where new rows are written. The others are as in `ForwardInput`.
    """

    x: Tensor
    positions: Tensor
    at: Tensor
    mask: Tensor
    window_mask: Tensor | None
    columns: Tensor | None
    captured: Captured
    hidden: Tensor | None = None
    graph: torch.cuda.CUDAGraph | None = None

    def call(self, cache: GraphCache) -> ForwardInput:
        """Return the call that computes the step."""
        return ForwardInput(
            self.x,
            self.positions,
            cache,
            mask=self.mask,
            window_mask=self.window_mask,
            columns=self.columns,
            captured=self.captured,
        )

    def reset(self) -> None:
        """Destroy the graph and what it computed into."""
        graph, self.graph, self.hidden = self.graph, None, None
        self.captured.layers.clear()
        if graph is not None:
            graph.reset()


class GraphCache(KVCache):
    """A cache that can be written at rows given by a tensor and read as a whole, with the graphs
    captured over its buffers. It returns to its runner once it is unused.

    room: Rows in use. As many rows as the largest call follow, a place for padding.
    """

    room = 0

    def __init__(self, runner: GraphRunner, backend: Backend, batch: int, span: int) -> None:
        super().__init__(backend.layouts(), batch, span, backend.dtype)
        self._runner = weakref.ref(runner)
        self.steps: dict[StepShape, GraphStep] = {}

    def acquire(self, backend: Backend, room: int) -> GraphCache:
        """Empty the cache and make room for so many rows; masked rows must hold finite numbers."""
        self._backend = weakref.ref(backend)
        self.room, self.length, self.holes = room, 0, 0
        self.clear()
        return self

    def release(self) -> None:
        """Return it, with its graphs, to its runner."""
        runner = self._runner()
        if runner is None:
            self.reset()
        else:
            runner.free.append(self)

    def reset(self) -> None:
        """Destroy its graphs."""
        for step in self.steps.values():
            step.reset()
        self.steps.clear()

    def prepare(
        self, max_rows: int, layers: tuple[int, ...] = (), least: int | None = None
    ) -> None:
        """Capture every shape of such steps, so that no timed round has to."""
        invariant = least is not None and max_rows <= MOST_NODES
        first = padded(1, least) if invariant and least else 1
        last = next((rows for rows in BUCKETS if rows >= max(max_rows, first)), BUCKETS[-1])
        tail = MOST_NODES if invariant else 0
        shapes = [StepShape(rows, layers, tail) for rows in BUCKETS if first <= rows <= last]
        runner, backend = self._owners()
        runner.capture(backend, self, [shape for shape in shapes if shape not in self.steps])

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

    def another(self, room: int) -> GraphCache:
        runner, backend = self._owners()
        return runner.acquire(backend, self.batch, room, copies=True)

    def _owners(self) -> tuple[GraphRunner, Backend]:
        runner, backend = self._runner(), self._backend()
        assert runner is not None and backend is not None  # who uses a cache holds its decoder
        return runner, backend


class _Rows(NamedTuple):
    """Rows of a layer's buffer [2, batch, heads, span, width], written as a slot is."""

    data: Tensor
    at: Tensor

    def copy_(self, rows: Tensor) -> None:
        """Write keys and values [2, batch, heads, k, width]."""
        self.data.index_copy_(3, self.at, rows)


class GraphRunner:
    """Captures and replays the steps of one backend, on caches that one lane uses after the other:
    a pair captures once for every cache held at the same time.

    The backend passes itself to every call: heads with other settings share one runner.

    Attributes:
        free: Unused caches, the one unused for longest first.
        refused: Why the device did not capture a step; later ones then run without graphs.
    """

    def __init__(self) -> None:
        self.free: list[GraphCache] = []
        self.refused: str | None = None
        # Graphs share one private pool of memory: they run one after another and leave nothing for
        # one another. These are the ones in it.
        self._pool: Any = None
        self._in_pool: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()

    # Caches and buffers outlive the mode that they are first asked for in.
    @torch.inference_mode(False)
    def acquire(self, backend: Backend, batch: int, room: int, copies: bool = False) -> GraphCache:
        """Return a free cache, or make one that replaces the cache unused for longest.

        copies: Whether it is to hold a copy of another cache, as a target's lanes do, which then
            leave their graphs to later lanes, not to a prefill.
        """
        span = _span(room + BUCKETS[-1])
        fitting = [cache for cache in self.free if (cache.batch, cache.span) == (batch, span)]
        if fitting:
            cache = (max if copies else min)(fitting, key=lambda cache: len(cache.steps))
            self.free.remove(cache)
            return cache.acquire(backend, room)
        if self.free:
            self.free.pop(0).reset()
        return GraphCache(self, backend, batch, span).acquire(backend, room)

    def release(self) -> None:
        """Destroy the graphs of all unused caches, and the caches."""
        while self.free:
            self.free.pop().reset()

    def forward(self, backend: Backend, call: ForwardInput) -> Tensor:
        """Return hidden states [B, T, D], eagerly where no fixed shape fits; T rows are cached."""
        shape, cache, size = self.step_shape(call), call.cache, call.x.shape[1]
        if shape is None or not isinstance(cache, GraphCache):
            return backend.eager(call)
        if shape not in cache.steps:
            self.capture(backend, cache, [shape])
        step = cache.steps[shape]
        self._pad(step, call)
        if step.graph is None:
            self._compute(backend, step, cache)
        else:
            step.graph.replay()
        cache.advance(size)
        assert step.hidden is not None  # written by the run above
        # Copied before any other graph runs, which may use the same memory.
        hidden = step.hidden[:, :size].clone()
        for i, states in step.captured.layers.items():
            call.captured.layers[i] = states[:, :size].clone()
        if len(cache.layouts) in shape.layers:
            call.captured.layers[len(cache.layouts)] = hidden
        return hidden

    @staticmethod
    def step_shape(call: ForwardInput) -> StepShape | None:
        """Return the shape that a call is padded to, or None if it is not."""
        size, capture = call.x.shape[1], call.captured.capture
        if call.deepstack is not None or size > BUCKETS[-1]:
            return None
        # Many rows without a mask are a causal prefill; a single row sees all rows before it.
        if (call.mask is None and size > 1) or capture.attention:
            return None
        tail = 0 if call.columns is None else call.columns.shape[1]
        rows = next(bucket for bucket in BUCKETS if bucket >= size)
        return StepShape(rows, capture.layers, tail)

    def capture(self, backend: Backend, cache: GraphCache, shapes: Sequence[StepShape]) -> None:
        """Make the buffers of these shapes on a cache, and capture them if the device has graphs.

        If it refuses, steps run without: slower, not wrong. Losing the device is raised.
        """
        if not shapes:
            return
        graphs = has_graphs(backend.device)
        with _undisturbed() if graphs else nullcontext():
            for shape in shapes:
                step = self._buffers(backend, cache, shape)
                if graphs and self.refused is None:
                    self._try_to_capture(backend, step, cache)
                cache.steps[shape] = step

    @torch.inference_mode(False)
    def _buffers(self, backend: Backend, cache: GraphCache, shape: StepShape) -> GraphStep:
        batch, rows, device = cache.batch, shape.rows, backend.device
        # Batch-invariant steps use masks in float32.
        dtype = torch.float32 if shape.tail else backend.dtype

        def mask() -> Tensor:
            return torch.zeros(batch, 1, rows, cache.span + shape.tail, dtype=dtype, device=device)

        def whole(*size: int) -> Tensor:
            return torch.zeros(*size, dtype=torch.int64, device=device)

        axes = (backend.axes,) if backend.axes > 1 else ()
        return GraphStep(
            x=torch.zeros(batch, rows, backend.input_width, dtype=backend.dtype, device=device),
            positions=whole(*axes, batch, rows),
            at=torch.arange(rows, device=device),
            mask=mask(),
            window_mask=None if backend.window is None else mask(),
            columns=whole(rows, shape.tail) if shape.tail else None,
            captured=Captured(Capture(layers=shape.layers)),
        )

    @staticmethod
    def _pad(step: GraphStep, call: ForwardInput) -> None:
        """Copy a call into the buffers; rows of padding follow it and see only themselves."""
        size, rows, cache = call.x.shape[1], len(step.at), call.cache
        step.x[:, :size], step.x[:, size:] = call.x, 0.0
        step.positions[..., :size], step.positions[..., size:] = call.positions, 0
        first = cache.length
        torch.arange(first, first + rows, out=step.at)
        if step.columns is not None and call.columns is not None:
            step.columns[:size] = call.columns
        for buffer, mask in ((step.mask, call.mask), (step.window_mask, call.window_mask)):
            if buffer is None:
                continue
            given = call.mask if mask is None else mask
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
        if cache.holes and step.window_mask is not None:
            buffer = step.window_mask
            buffer[..., : cache.holes] = torch.finfo(buffer.dtype).min

    def _try_to_capture(self, backend: Backend, step: GraphStep, cache: GraphCache) -> None:
        try:
            self._capture(backend, step, cache)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as fault:
            if loses_device(fault):
                raise
            self.refused = cause(fault.__context__ or fault)[:200]
            _LOG.warning(
                "Steps run without graphs, since one could not be captured: %s", self.refused
            )

    def _capture(self, backend: Backend, step: GraphStep, cache: GraphCache) -> None:
        """Run the step once, so that kernels are chosen and workspaces allocated, then capture it.

        It writes rows that no cache reads: those of an empty one, or the first after its length.
        """
        step.at += cache.length
        device = backend.device
        stream, current = _capture_stream(device), torch.cuda.current_stream(device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            self._compute(backend, step, cache)
        current.wait_stream(stream)
        if not self._in_pool:  # nothing may be captured into a pool whose graphs are gone
            self._pool = torch.cuda.graph_pool_handle()
        graph, pool = torch.cuda.CUDAGraph(), self._pool
        try:
            # The outer context restores the current stream also where ending the capture fails.
            with (
                torch.cuda.stream(stream),
                torch.cuda.graph(
                    graph, pool=pool, stream=stream, capture_error_mode="thread_local"
                ),
            ):
                self._compute(backend, step, cache)
        except BaseException:
            step.reset()
            self._in_pool = weakref.WeakSet()
            _abandon(graph, pool, device)
            raise
        self._in_pool.add(graph)
        step.graph = graph

    def _compute(self, backend: Backend, step: GraphStep, cache: GraphCache) -> None:
        cache.at = step.at
        try:
            step.hidden = backend.decode(step.call(cache))
        finally:
            cache.at = None


def has_graphs(device: torch.device) -> bool:
    """Whether steps on this device are captured as graphs: on CUDA, unless SPECVL_GRAPHS is off."""
    return device.type == "cuda" and os.environ.get("SPECVL_GRAPHS") != "off"


@cached
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the one stream that captures on a device: every stream that multiplies matrices has a
    workspace of its own, tens of megabytes, for ever.
    """
    return torch.cuda.Stream(device)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Collect garbage now and not until the end: the collector could free what may not be freed
    during a capture, or wait for the device.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _abandon(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> None:
    """Clean up after a fault during a capture.

    If the fault made the capture invalid, ending it failed before the allocator was told, which
    then still takes the pool for one that is being captured into.
    """
    graph.reset()
    with suppress(RuntimeError):  # the capture had ended
        torch._C._cuda_endAllocateToPool(device.index, pool)
        torch._C._cuda_releasePool(device.index, pool)
    # A capture that ends well also tells the random generators that the last one is over.
    stream, trial = _capture_stream(device), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream), torch.cuda.graph(trial, stream=stream):
        torch.zeros(1, device=device)
    trial.reset()


def _span(rows: int) -> int:
    """Round rows up to one of four sizes per power of two: similar requests share caches."""
    quarter = LEAST_ROWS // 4
    while 8 * quarter < rows:
        quarter *= 2
    return max(LEAST_ROWS, -(-rows // quarter) * quarter)
