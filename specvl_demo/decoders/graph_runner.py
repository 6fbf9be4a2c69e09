"""Who holds the steps that a device replays: a decoder or head its `GraphRunner`, the runner its
unused caches, a cache its graphs.

What points back is weak: a graph is reset when its cache is dropped, not when the garbage collector
finds it, which could be in the middle of a capture. The steps themselves are in `graphs`.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from specvl_demo.core.faults import cause, lacks_memory, loses_device
from specvl_demo.decoders import graphs
from specvl_demo.decoders.forward import ForwardInput
from specvl_demo.decoders.graphs import BUCKETS, DraftStep, GraphMemory, GraphStep, StepShape
from specvl_demo.decoders.kv_cache import KVCache, KVSlots

if TYPE_CHECKING:
    from specvl_demo.decoders.backend import Backend

_LOG = logging.getLogger(__name__)
LEAST_ROWS = 512
FREE_SHARE, MOST_FREE_ROWS = 0.02, 2048
"""# choice: unused rows that a step may read, as a share of its weights' bytes, and in number. Most
questions about a photograph are then of one size for 7B models with shared heads.
"""


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

    def reset_for(self, backend: Backend, room: int) -> GraphCache:
        """Empty the cache and make room for so many rows. Masked rows and steps' padding must hold
        finite numbers.
        """
        self._backend = weakref.ref(backend)
        self.room = room
        self.length = 0
        self.holes = 0
        self.zero_unused()
        for step in self.steps.values():
            step.x.zero_()
        return self

    def release(self) -> None:
        """Return it, with its graphs, to its runner."""
        runner = self._runner()
        if runner is None:
            self.destroy_graphs()
        else:
            runner.free.append(self)

    def destroy_graphs(self) -> None:
        """Destroy its graphs."""
        for step in self.steps.values():
            step.destroy_graph()
        self.steps.clear()

    def prepare(self, shapes: Sequence[StepShape]) -> None:
        """Capture steps of these shapes, so that no timed round has to."""
        runner, backend = self._owners()
        runner.capture(backend, self, shapes)

    def kv_slots(self, k: int) -> KVSlots:
        """Like `KVCache.kv_slots`; in a fixed step, the slots are rows given by a tensor."""
        if self.at is None:
            return super().kv_slots(k)
        layers = [self.layer_buffer(i) for i in range(len(self.layouts))]
        slots = cast("list[Tensor]", [_IndexedSlot(data, self.at) for data in layers])
        return KVSlots(slots, [data[0] for data in layers], [data[1] for data in layers])

    def empty_like(self, room: int, shapes: Sequence[StepShape] = ()) -> GraphCache:
        runner, backend = self._owners()
        return runner.acquire(backend, self.batch, room, shapes)

    def _owners(self) -> tuple[GraphRunner, Backend]:
        runner = self._runner()
        backend = self._backend()
        assert runner is not None and backend is not None  # who uses a cache holds its decoder
        return runner, backend


class _IndexedSlot(NamedTuple):
    """Rows of a layer's buffer [2, batch, heads, span, width], written as a slot is."""

    data: Tensor
    at: Tensor

    def copy_(self, rows: Tensor) -> None:
        """Write keys and values [2, batch, heads, k, width]."""
        self.data.index_copy_(3, self.at, rows)


KEPT_BYTES = 300_000_000
"""Of unused caches: so much is kept for questions of other lengths, whose graphs need no second
capture. A 7B model with shared heads takes 60 MB per thousand rows.
"""


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
        self._pool = GraphMemory()

    # Caches and buffers outlive the mode that they are first asked for in.
    @torch.inference_mode(False)
    def acquire(
        self, backend: Backend, batch: int, room: int, shapes: Sequence[StepShape] = ()
    ) -> GraphCache:
        """Return a free cache, or make one; those unused for longest go if all are too large.

        shapes: What will be captured: of the caches that lack least of it, the one with the fewest
            graphs is taken, so that others are left to lanes that need them.
        """
        span = round_up_rows(room + BUCKETS[-1], backend)
        fitting = [
            cache for cache in self.free if (cache.batch, cache.buffer_rows) == (batch, span)
        ]
        if fitting:
            lacks = {id(each): sum(shape not in each.steps for shape in shapes) for each in fitting}
            cache = min(fitting, key=lambda cache: (lacks[id(cache)], len(cache.steps)))
            self.free.remove(cache)
            return cache.reset_for(backend, room)
        while sum(block.nbytes for each in self.free for block in each.blocks) > KEPT_BYTES:
            self.free.pop(0).destroy_graphs()
        return GraphCache(self, backend, batch, span).reset_for(backend, room)

    def destroy_idle_caches(self) -> None:
        """Destroy the graphs of all unused caches, and the caches."""
        while self.free:
            self.free.pop().destroy_graphs()

    def forward(self, backend: Backend, call: ForwardInput) -> Tensor:
        """Return hidden states [B, T, D], eagerly where no fixed shape fits; T rows are cached."""
        shape = StepShape.of(call)
        cache = call.cache
        size = call.x.shape[1]
        if shape is None or not isinstance(cache, GraphCache):
            return backend.forward_eager(call)
        made, layers = self.run(backend, cache, shape, call)
        cache.advance(size)
        hidden = made[:, :size].clone()
        for i, states in layers.items():
            call.aux.layers[i] = states[:, :size].clone()
        return hidden

    def run(self, backend: Backend, cache: GraphCache, shape: StepShape, call: Any) -> Any:
        """Run the step of a shape over what a call brings, and return what it makes
        (`GraphStep.made`), to be copied before any other graph runs.
        """
        self.capture(backend, cache, [shape])
        step = cache.steps[shape]
        step.fill(call)
        if step.graph is None:
            self._run_step(backend, step, cache)
        else:
            step.graph.replay()
        return step.made

    def capture(self, backend: Backend, cache: GraphCache, shapes: Sequence[StepShape]) -> None:
        """Make the buffers of these shapes on a cache, unless it has them, and capture them if the
        device has graphs.

        If it refuses, steps run without: slower, not wrong. Losing the device is raised.
        """
        shapes = [shape for shape in shapes if shape not in cache.steps]
        if not shapes:
            return
        captures = graphs.has_graphs(backend.device)
        with graphs.collect_no_garbage() if captures else nullcontext():
            for shape in shapes:
                step = self._new_step(backend, cache, shape)
                if captures and self.refused is None:
                    self._try_to_capture(backend, step, cache)
                cache.steps[shape] = step

    @torch.inference_mode(False)
    def _new_step(self, backend: Backend, cache: GraphCache, shape: StepShape) -> GraphStep:
        return (DraftStep if shape.tree else GraphStep)(shape, backend, cache)

    def _try_to_capture(self, backend: Backend, step: GraphStep, cache: GraphCache) -> None:
        # Rows are written that no cache reads: all of an empty one, or the first after its length.
        try:
            step.at += cache.length
            compute = partial(self._run_step, backend, step, cache)
            step.graph = self._pool.capture(compute, backend.device)
        except RuntimeError as fault:
            step.destroy_graph()
            if loses_device(fault):
                raise
            if lacks_memory(fault.__context__ or fault):  # it runs without, in what is given back
                self.destroy_idle_caches()
                return
            self.refused = cause(fault.__context__ or fault)[:200]
            _LOG.warning(
                "Steps run without graphs, since one could not be captured: %s", self.refused
            )

    def _run_step(self, backend: Backend, step: GraphStep, cache: GraphCache) -> None:
        try:
            step.compute(backend, cache)
        finally:
            cache.at = None


def round_up_rows(rows: int, backend: Backend) -> int:
    """Round rows up so that similar requests share caches and graphs: to one of four sizes per
    power of two, or of fewer, if reading the rows that are added costs a step hardly anything.
    """
    row_bytes = sum(2 * layer.heads * layer.width for layer in backend.layouts())
    free = FREE_SHARE * backend.n_bytes / (row_bytes * backend.dtype.itemsize)
    part = LEAST_ROWS // 4
    while 8 * part < rows or (part < MOST_FREE_ROWS and 2 * part <= free):
        part *= 2
    return max(LEAST_ROWS, -(-rows // part) * part)
