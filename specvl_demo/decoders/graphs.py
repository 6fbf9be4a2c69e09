"""Small steps that a CUDA device captures as graphs and replays, for decoders and trained heads.

A graph repeats its kernels over the same buffers. So small calls (a step, a tree or a draft, also
batch-invariant ones and those that keep layer states) are padded to one of a few row counts, read
the whole cache under a mask, and write at rows given by a tensor. Prefills and calls that keep
attention are not padded. Without CUDA the same steps run without graphs, which is what tests check.
A whole drafted tree may be one step too: it feeds the root, finds the likeliest tokens after it,
feeds those of the likeliest paths, and so on, so that the host sends a few numbers and reads none
in between. `graph_runner.GraphRunner` owns and runs the steps.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache as cached
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from specvl_demo.core import highest
from specvl_demo.core.transfer import to_device
from specvl_demo.core.tree import GrownTree
from specvl_demo.core.types import AuxRequest, Growth, LaneStart, Vocabulary
from specvl_demo.decoders.batch_invariance import MAX_NODES, padded_rows
from specvl_demo.decoders.forward import AuxStates, ForwardInput

if TYPE_CHECKING:
    from specvl_demo.decoders.backend import Backend
    from specvl_demo.decoders.graph_runner import GraphCache

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)


def bucket(rows: int) -> int:
    """Return the row count that so many rows are padded to."""
    return next(size for size in BUCKETS if size >= rows)


class StepShape(NamedTuple):
    """What a graph was captured for.

    Attributes:
        rows: Padded row count.
        layers: Layers whose inputs are kept.
        tail: Columns after the cache's in the mask of a batch-invariant step, 0 in others.
        tree: How a tree is drafted by a step whose rows end with the root, and of which words.
    """

    rows: int
    layers: tuple[int, ...]
    tail: int
    tree: tuple[Growth, Vocabulary] | None = None

    @classmethod
    def of(cls, call: ForwardInput) -> StepShape | None:
        """Return the shape that a call is padded to, or None if it is not."""
        size = call.x.shape[1]
        request = call.aux.request
        if call.deepstack is not None or size > BUCKETS[-1] or not call.cache.length:
            return None
        # Many rows without a mask are a causal prefill; a single row sees all rows before it.
        if (call.mask is None and size > 1) or request.attention:
            return None
        tail = 0 if call.columns is None else call.columns.shape[1]
        return cls(bucket(size), request.layers, tail)


def step_shapes(
    max_rows: int, layers: tuple[int, ...] = (), min_rows: int | None = None
) -> list[StepShape]:
    """Return every shape of steps of up to `max_rows` rows that keep these layers' inputs.

    min_rows: As in `CachedSequence.score`.
    """
    invariant = min_rows is not None and max_rows <= MAX_NODES
    first = padded_rows(1, min_rows) if invariant and min_rows else 1
    last = bucket(min(max(max_rows, first), BUCKETS[-1]))
    tail = MAX_NODES if invariant else 0
    return [StepShape(rows, layers, tail) for rows in BUCKETS if first <= rows <= last]


def draft_shapes(backend: Backend, start: LaneStart) -> list[StepShape]:
    """Return the shapes of a lane's drafts: of whole trees, if they grow in captured steps of this
    backend. The tokens before a root that are not fed yet are at most a whole path.
    """
    growth = start.growth
    if growth is None or not backend.fixed or backend.window is not None:
        return step_shapes(start.max_nodes)
    tree = growth, start.vocabulary
    return [shape._replace(tree=tree) for shape in step_shapes(len(growth.fed) + 2)]


class GraphStep:
    """The buffers of one step shape on one cache, and the graph over them, if any.

    at: [rows] of the cache, where new rows are written. end: Columns of masks that may be seen, in
    some row. made: Hidden states and the inputs of layers, until another graph runs, which uses
    the same memory. The others are as in `ForwardInput`.
    """

    made: Any = None
    graph: torch.cuda.CUDAGraph | None = None

    def __init__(self, shape: StepShape, backend: Backend, cache: GraphCache) -> None:
        batch, (rows, layers, tail, _) = cache.batch, shape
        zeros = partial(torch.zeros, device=backend.device)
        axes = (backend.axes,) if backend.axes > 1 else ()
        self.end = cache.buffer_rows
        self.x = zeros(batch, rows, backend.input_width, dtype=backend.dtype)
        self.positions = zeros(*axes, batch, rows, dtype=torch.int64)
        self.at = torch.arange(rows, device=backend.device)
        # Batch-invariant steps use masks in float32.
        dtype = torch.float32 if tail else backend.dtype
        two = backend.window or backend.has_holes
        self.mask = zeros(batch, 1, rows, self.end + tail, dtype=dtype)
        self.second_mask = torch.zeros_like(self.mask) if two else None
        self.columns = zeros(rows, tail, dtype=torch.int64) if tail else None
        self._request = AuxRequest(layers=layers)

    def compute(self, backend: Backend, cache: GraphCache) -> None:
        cache.at = self.at
        aux = AuxStates(self._request)
        masks = self.mask, self.second_mask, self.columns
        call = ForwardInput(self.x, self.positions, cache, *masks, aux=aux)
        self.made = backend.decode(call), aux.layers

    def fill(self, call: Any) -> None:
        """Copy a `ForwardInput`; earlier rows stay as padding, which nobody reads."""
        size = call.x.shape[1]
        cache = call.cache
        self.x[:, :size] = call.x
        self.positions[..., :size] = call.positions
        torch.arange(cache.length, cache.length + len(self.at), out=self.at)
        end = cache.length + size
        if self.columns is not None:
            # Rows of padding keep an earlier step's mask: finite numbers that are never read.
            self.columns[:size], end = call.columns, self.mask.shape[-1]
        low = torch.finfo(self.mask.dtype).min
        for buffer, mask in ((self.mask, call.mask), (self.second_mask, call.second_mask)):
            if buffer is None:
                continue
            if self.end > end:  # columns of an earlier call
                buffer[..., end:] = low
            given = call.mask if mask is None else mask
            buffer[..., :size, :end] = 0 if given is None else given
        self.end = end
        if cache.holes and self.second_mask is not None:
            self.second_mask[..., : cache.holes] = low

    def destroy_graph(self) -> None:
        """Destroy the graph and what it computed into."""
        graph, self.graph, self.made = self.graph, None, None
        if graph is not None:
            graph.reset()


class DraftStep(GraphStep):
    """A step that drafts a tree after m sequences, with buffers of its own.

    Attributes:
        numbers: The cache's length, how many tokens before the root are fed too, the cache's holes.
        shifts: As of `CachedSequence`.
        tokens, features: Up to the root [rows], and those before them [rows, D].
        weights: [m] of the sequences in their mixture.
        made: Of every fed node: which of all tokens found after nodes it is [nodes]; the tokens
            found after it and their log-probabilities [nodes, k]; all log-probabilities, by
            sequence [nodes, m, R]; then what `GrownTree` has, if it has a size. Valid until the
            next run of this step.
    """

    def __init__(self, shape: StepShape, backend: Backend, cache: GraphCache) -> None:
        assert shape.tree is not None
        (self._k, fed, self._size), vocabulary = shape.tree
        device = backend.device
        self._fed = [n if isinstance(n, int) else to_device(n, device) for n in fed]
        # Kept, since a graph reads tensors of it.
        self._log_probs = backend.log_probabilities(vocabulary)
        m, rows = cache.batch, shape.rows
        zeros = partial(torch.zeros, dtype=torch.int64, device=device)
        self.numbers, self.shifts, self.tokens = zeros(3), zeros(2, m), zeros(rows)
        self.at = self.numbers[:1]
        self.x = self.features = zeros(rows, backend.width, dtype=backend.dtype)
        self.weights = zeros(m, dtype=torch.float32)
        self._given: Mapping[str, Tensor] = {}

    def fill(self, call: Mapping[str, Tensor]) -> None:
        """Copy buffers by name; those that are the same object as the last time are left alone."""
        for name, values in call.items():
            if self._given.get(name) is not values:
                getattr(self, name)[: len(values)] = values
        self._given = call

    def compute(self, backend: Backend, cache: GraphCache) -> None:
        """Draft the whole tree, level by level, without the host: each level's tokens and places
        are tensors, so that a graph of these kernels drafts any tree of this shape.
        """
        length, late, holes = self.numbers
        padding, offset = self.shifts[..., None]
        columns = torch.arange(cache.buffer_rows, device=backend.device)
        start, at = length + late, length + columns[: len(self.tokens)]
        depth = (at - start).clamp_max(0)  # padding has the root's position
        unseen = (columns > at[:, None]) | (columns < padding[..., None])
        low = torch.finfo(backend.dtype).min
        tokens, features, root = self.tokens, self.features, late[None]
        place = torch.zeros_like(root)
        paths = self.weights.new_zeros(1)
        made, every, row = [], [], 0
        for level, next_fed in enumerate((*self._fed, None), 1):
            # 1. Feed the level.
            cache.at = at
            positions = offset + (start + depth)
            if backend.axes > 1:
                positions = positions.expand(backend.axes, -1, -1)
            step = depth.clamp(0, backend.n_steps - 1)
            x = backend.draft_rows(tokens, features, step).expand(cache.batch, -1, -1)
            several = unseen, unseen | (columns < holes)
            masks = [(mask[:, None] * low).to(x.dtype) for mask in several]
            call = ForwardInput(x, positions, cache, *masks[: 1 + backend.has_holes])
            hidden = backend.decode(call)
            if not row:  # nothing is drafted after tokens before the root
                tokens, hidden = tokens.index_select(0, root), hidden.index_select(1, root)
                unseen = unseen.index_select(1, root)
            # 2. The likeliest tokens after each node.
            log_probs = self._log_probs.row_log_probs(hidden)
            logp, ids = highest.topk(self._log_probs.mixed(log_probs, self.weights), self._k)
            scores = logp + paths[:, None]
            made.append((place, ids, logp, log_probs.transpose(0, 1)))
            every.append(scores)
            if next_fed is None:
                break
            # 3. What is fed next.
            first = row * self._k
            if isinstance(next_fed, int):
                chosen = scores.flatten().topk(next_fed).indices
                place = first + chosen
            else:
                place, chosen = next_fed, next_fed - first
            paths = scores.take(chosen)
            above = chosen // self._k
            row += len(tokens)
            tokens = ids.flatten().index_select(0, chosen)
            features = hidden[0].index_select(0, above)
            depth = torch.full_like(place, level)
            at = start + row + columns[: len(place)]
            unseen = unseen.index_select(1, above) & (columns != at[:, None])
        # Into memory of the first run, before the capture: no other graph uses it.
        parts: list[Any] = [*zip(*made)]
        if self._size:
            ids, logp, scores, places = map(torch.cat, (*parts[1:3], every, parts[0]))
            levels = 1 + len(self._fed)
            tree = GrownTree.choose(ids, logp, scores, places, self._size, levels)
            parts += [(part,) for part in tree]
        outs = self.made or [None] * len(parts)
        self.made = [torch.cat(part, out=out) for part, out in zip(parts, outs)]


class GraphMemory:
    """Memory that graphs share: they run one after another and leave nothing for one another."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()

    def capture(self, compute: Callable[[], object], device: torch.device) -> torch.cuda.CUDAGraph:
        """Compute once, so that kernels are chosen and workspaces allocated, then capture it."""
        stream = _capture_stream(device)
        current = torch.cuda.current_stream(device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            compute()
        current.wait_stream(stream)
        if not self._graphs:  # nothing may be captured into a pool whose graphs are gone
            self._handle = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        pool = self._handle
        try:
            # The outer context restores the current stream also where ending the capture fails.
            with (
                torch.cuda.stream(stream),
                torch.cuda.graph(
                    graph, pool=pool, stream=stream, capture_error_mode="thread_local"
                ),
            ):
                compute()
        except BaseException:
            self._graphs = weakref.WeakSet()
            _abandon_capture(graph, pool, device)
            raise
        self._graphs.add(graph)
        return graph


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
def collect_no_garbage() -> Iterator[None]:
    """Collect no garbage until the end: the collector could free what may not be freed during a
    capture, or wait for the device. Nor before: it would walk over all that libraries hold.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _abandon_capture(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> None:
    """Clean up after a fault during a capture.

    If the fault made the capture invalid, ending it failed before the allocator was told, which
    then still takes the pool for one that is being captured into.
    """
    graph.reset()
    with suppress(RuntimeError):  # the capture had ended
        torch._C._cuda_endAllocateToPool(device.index, pool)
        torch._C._cuda_releasePool(device.index, pool)
    # A capture that ends well also tells the random generators that the last one is over.
    stream = _capture_stream(device)
    trial = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream), torch.cuda.graph(trial, stream=stream):
        torch.zeros(1, device=device)
    trial.reset()
