"""What runs forwards on this machine: a model's decoder, or the block of a trained head.

Embeddings, positions, masks and the cache are arguments, so that models are shared and never
changed. Knows nothing of trees, prompts or vision towers.

A decoder or head owns its `GraphRunner`, the runner its unused caches, a cache its graphs: one file
shows who holds whom. What points back is weak: a graph is reset when its cache is dropped, not when
the garbage collector finds it, which could be in the middle of a capture.
"""

from __future__ import annotations

import logging
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from specvl_demo.core.faults import cause, lacks_memory, loses_device
from specvl_demo.core.types import Vocabulary
from specvl_demo.decoders import graphs
from specvl_demo.decoders.forward import ForwardInput
from specvl_demo.decoders.graphs import BUCKETS, GraphMemory, GraphStep, StepShape
from specvl_demo.decoders.kv_cache import KVCache, KVSlots, Layout
from specvl_demo.decoders.output_head import LogProbabilities, OutputHead
from specvl_demo.decoders.packed_linear import PackedLinear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specvl_demo.decoders.layer_stack import LevelWeights

_LOG = logging.getLogger(__name__)
LEAST_ROWS = 512


class Backend(ABC):
    """Layers over a cache. Subclasses compute one forward in `decode`.

    Attributes:
        width: D of its results.
        input_width: Of the rows of `ForwardInput.x`.
        output: The output head that it drafts with.
        n_steps: Step embeddings of rows below the root; 1 means none.
        window: Width of the sliding window, None if no layer has one. If set, layers read a second
            mask (`ForwardInput.second_mask`).
        near_blocks: Whether a block's positions attend to each other in both directions only in
            layers with a sliding window, and only inside the window.
        has_holes: Whether some layers leave the first rows of a cache empty (`KVCache.holes`).
        axes: 3 if positions have three axes.
        batch_invariant: Whether every row of any step has the bits of a plain step, without padding
            or ordering, on any number of threads.
        fixed: Whether small steps have fixed shapes, which a CUDA device replays as graphs
            (`graphs`); see `calibration`.
    """

    width: int
    input_width: int
    n_layers: int
    output: OutputHead
    n_steps = 1
    window: int | None = None
    near_blocks = False
    has_holes = False
    axes = 1
    batch_invariant = False
    fixed = False

    def __init__(self) -> None:
        self.runner = GraphRunner()

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype: ...

    @property
    def is_split(self) -> bool:
        """Whether layers lie on several devices."""
        return len({layer.device for layer in self.layouts()}) > 1

    @abstractmethod
    def embed(self, ids: Tensor) -> Tensor:
        """ids [...] -> embeddings [..., D]."""

    def draft_rows(self, tokens: Tensor, features: Tensor, step: Tensor | int) -> Tensor:
        """Return what layers are given for tokens [k] to draft after: [1, k, input width].

        Args:
            features: Those before the tokens [k, D], for a head that reads features.
            step: Which step embedding, [k] or one for all, for a head that has several.
        """
        return self.embed(tokens)[None]

    def log_probabilities(self, vocabulary: Vocabulary) -> LogProbabilities:
        """Return the log-probabilities that it drafts by, of hidden states."""
        return LogProbabilities(self.output, vocabulary, self.device)

    def level_weights(self, log_probs: LogProbabilities) -> LevelWeights | None:
        """Return what drafts a level of a tree by one call; None where torch takes over."""
        return None

    @abstractmethod
    def layouts(self) -> list[Layout]:
        """Return how and where every layer stores its rows."""

    @abstractmethod
    def decode(self, call: ForwardInput) -> Tensor:
        """Return hidden states [B, T, D]; the cache is written, but its length is unchanged.

        A captured step runs this once to warm up and once more while it is captured, and never
        again: a replay repeats its kernels, not its Python code. It may therefore depend on shapes
        but not on numbers, may not wait for the device or copy from the host, and must read all
        that differs from step to step from tensors of the call: x, positions and masks, and
        `call.cache.at`, the rows to write. The mask spans the whole cache then.
        """

    def new_cache(self, batch: int, room: int, shapes: Sequence[StepShape] = ()) -> KVCache:
        """Return an empty cache that `forward` writes into. shapes: As for `KVCache.prepare`."""
        if self.fixed:
            return self.runner.acquire(self, batch, room, shapes)
        return self.eager_cache(batch, room)

    def eager_cache(self, batch: int, room: int) -> KVCache:
        """Return an empty cache for steps of any shape."""
        return KVCache(self.layouts(), batch, room, self.dtype)

    def forward(self, call: ForwardInput) -> Tensor:
        """Return hidden states after the final norm [B, T, D]; the cache grows by T rows."""
        hidden = self.runner.forward(self, call) if self.fixed else self.forward_eager(call)
        if self.n_layers in call.aux.request.layers:
            call.aux.layers[self.n_layers] = hidden
        return hidden

    def forward_eager(self, call: ForwardInput) -> Tensor:
        """The same without fixed shapes."""
        hidden = self.decode(call)
        call.cache.advance(call.x.shape[1])
        return hidden

    def release_caches(self) -> None:
        """Give up caches and graphs that are kept for the next question."""
        self.runner.destroy_idle_caches()


class LanguageBackend(Backend):
    """The decoder of a language model, with its embeddings and its output head.

    Attributes:
        n_weights: Numbers that every step reads, of the layers and the head.
        n_bytes: The same in bytes.
        n_cached: Numbers cached per row.
    """

    n_cached: int

    def __init__(self, decoder: PreTrainedModel, embeddings: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self._decoder, self._embeddings, self._head = decoder, embeddings, cast("Any", head)
        self.width = self.input_width = decoder.config.hidden_size
        self.n_layers = decoder.config.num_hidden_layers
        read = [*decoder.layers.parameters(), self._head.weight]
        self.n_weights = sum(weight.numel() for weight in read)
        self.n_bytes = sum(weight.nbytes for weight in read)

    @property
    def device(self) -> torch.device:
        """Where ids, masks and logits are; layers may lie elsewhere."""
        return cast("Tensor", self._embeddings.weight).device

    @property
    def dtype(self) -> torch.dtype:
        """Of the output head; the precision that drafts and masks are made in."""
        return self._head.weight.dtype

    def embed(self, ids: Tensor) -> Tensor:
        # By the module: some families scale the table's rows.
        return self._embeddings(ids)

    @property
    def vocab(self) -> int:
        """How many ids it knows."""
        return self.output.vocab

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., D] after the final norm -> logits [..., V]."""
        return self.output(hidden)

    def output_head_rows(self, rows: Tensor) -> PackedLinear:
        """Return the product with only these rows [R] of the output head, for a drafter."""
        weight = self._head.weight.detach()
        return PackedLinear(weight[rows.to(weight.device)].to(self.device), bits=8)


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
        span = _round_up_rows(room + BUCKETS[-1])
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
        self.capture(backend, cache, [shape])
        step = cache.steps[shape]
        step.fill(call)
        if step.graph is None:
            self._run_step(backend, step, cache)
        else:
            step.graph.replay()
        cache.advance(size)
        made, layers = step.made
        # Copied before any other graph runs, which may use the same memory.
        hidden = made[:, :size].clone()
        for i, states in layers.items():
            call.aux.layers[i] = states[:, :size].clone()
        return hidden

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
        return GraphStep(shape, backend, cache)

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


def _round_up_rows(rows: int) -> int:
    """Round rows up to one of four sizes per power of two: similar requests share caches."""
    quarter = LEAST_ROWS // 4
    while 8 * quarter < rows:
        quarter *= 2
    return max(LEAST_ROWS, -(-rows // quarter) * quarter)
