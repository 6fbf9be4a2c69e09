"""Stand-ins for a CUDA device: graphs that refuse what CUDA does, modes that refuse a host's."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specvl_demo.core import highest
from specvl_demo.decoders import graphs, kernels
from specvl_demo.decoders.attention import kernels_accept
from specvl_demo.decoders.backend import Backend

B = TypeVar("B", bound=Backend)
GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)
"""A place for what only `make test-gpu` runs."""
HOST_READS = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "unique2"}
"""Operators that wait for the device, by their short names."""


def _tensors(*trees: object) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(trees) if isinstance(leaf, torch.Tensor)]


def _name(func: Any) -> str:
    return func.overloadpacket.__name__


class OnDeviceOnly(TorchDispatchMode):
    """For meta tensors, which have no numbers: whatever reads one raises by itself. This mode also
    refuses tensors of the host, but for single numbers, and copies from it.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = _tensors(args, kwargs)
        if any(tensor.device.type == "cpu" and tensor.dim() > 0 for tensor in tensors):
            raise RuntimeError(f"{func} takes a tensor of the host")
        if _name(func) in HOST_READS:
            raise RuntimeError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


class Launches(TorchDispatchMode):
    """Counts operators that compute something."""

    n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n += not (func.is_view or any(word in func.name() for word in ("empty", "detach")))
        return func(*args, **(kwargs or {}))


def attend_rows(
    queries: torch.Tensor,
    rows: torch.Tensor,
    scale: float,
    data: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    longest: int,
    n_parts: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `flash_rows.attend_rows` asks of a GPU's kernel, which no processor has."""
    at = torch.arange(longest)
    seen = (starts[:-1, None] + at).clamp_max(data.shape[2] - 1)
    groups = queries.shape[1] // data.shape[1]
    key, value = data.transpose(1, 2)[:, seen].float().repeat_interleave(groups, 3)
    scores = (queries[:, None] * key).sum(-1) * scale
    scores = scores.masked_fill((at >= lengths[:, None])[..., None], -torch.inf)
    mixed = (scores.softmax(1)[..., None] * value).sum(1)
    return mixed.to(queries.dtype), scores.logsumexp(1).t()


class KernelsTakeAll(TorchFunctionMode):
    """Refuses attention that CUDA's fused kernels cannot read. n: How often there was some."""

    n = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            self.n += 1
            queries, keys, values, *_ = args
            mask = (kwargs or {}).get("attn_mask")
            if mask is not None and mask.ndim < 4:
                mask = mask[(None,) * (4 - mask.ndim)]
            assert kernels_accept(queries, keys, values, mask)
        return func(*args, **(kwargs or {}))


class _Pool:
    """The allocator's account of one pool: graphs that use it, and whether one is captured."""

    def __init__(self) -> None:
        self.uses, self.made, self.underway = 0, False, False


class _Recorder(TorchDispatchMode):
    """Notes every operation of a capture, and refuses those that read numbers."""

    def __init__(self, graph: FakeGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _name(func) in HOST_READS:
            FakeGraph.spoilt = f"{_name(func)} waits for the device"
            raise torch.AcceleratorError(
                "CUDA error: operation not permitted when stream is capturing"
            )
        before = {one.untyped_storage().data_ptr() for one in _tensors(args, kwargs)}
        made = func(*args, **kwargs)
        self._graph.operations.append((func, args, kwargs, made))
        for one in _tensors(made):
            if one.untyped_storage().data_ptr() not in before:
                self._graph.own.append(one)
        return made


class FakeGraph:
    """`torch.cuda.CUDAGraph` on the processor: a replay repeats the captured operations alone."""

    capturing: ClassVar[FakeGraph | None] = None
    spoilt: ClassVar[str | None] = None
    """Why the capture under way is invalid."""
    pools: ClassVar[dict[int, _Pool]] = {}
    alive: ClassVar[weakref.WeakSet[FakeGraph]] = weakref.WeakSet()
    captured: ClassVar[int] = 0

    def __init__(self) -> None:
        self.operations: list[tuple[Any, tuple[Any, ...], Mapping[str, Any], Any]] = []
        self.own: list[torch.Tensor] = []
        """Tensors in the pool's memory."""
        self._pool: _Pool | None = None
        FakeGraph.alive.add(self)

    def begin(self, pool: _Pool) -> None:
        if FakeGraph.capturing is not None:
            raise RuntimeError("a capture is under way already")
        if pool.made and pool.uses == 0:
            raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
        if pool.underway:
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        pool.made, pool.underway, pool.uses = True, True, pool.uses + 1
        FakeGraph.capturing, FakeGraph.spoilt, self._begun = self, None, pool

    def end(self) -> None:
        FakeGraph.capturing = None
        if FakeGraph.spoilt is not None:
            # The allocator is not told.
            said = "CUDA error: operation failed due to a previous error during capture"
            raise torch.AcceleratorError(f"{said}\n{FakeGraph.spoilt}")
        self._begun.underway, self._pool = False, self._begun
        FakeGraph.captured += 1

    def replay(self) -> None:
        assert self._pool is not None, "replay without a capture"
        assert FakeGraph.capturing is None
        for other in FakeGraph.alive:
            if other is not self and other._pool is self._pool:
                for left in other.own:
                    if left.is_floating_point():
                        left.fill_(torch.nan)  # it is the memory of this one too
        for func, args, kwargs, made in self.operations:
            again = func(*args, **kwargs)
            for old, new in zip(_tensors(made), _tensors(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)

    def reset(self) -> None:
        if self._pool is None:
            return
        if FakeGraph.capturing is not None:
            FakeGraph.spoilt = "a graph was destroyed"
        self._pool.uses -= 1
        self._pool = None
        self.operations.clear()
        self.own.clear()

    __del__ = reset


class _Stream:
    def __init__(self, *_: object) -> None: ...

    def wait_stream(self, other: _Stream) -> None: ...


class _Event:
    def __init__(self, enable_timing: bool) -> None: ...

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: _Event) -> float:
        return 1e3 * (other.at - self.at)


class FakeCuda:
    """What `torch.cuda` is asked for by captures. current: The current stream."""

    def __init__(self) -> None:
        self.default = self.current = _Stream()

    @contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def pool(self) -> int:
        FakeGraph.pools[len(FakeGraph.pools)] = _Pool()
        return len(FakeGraph.pools) - 1

    def graph(self, graph: FakeGraph, pool: int | None = None, **_: object) -> _Capture:
        return _Capture(self, graph, FakeGraph.pools[self.pool() if pool is None else pool])


class _Capture:
    """`torch.cuda.graph`: if ending a capture fails, the current stream is not restored."""

    def __init__(self, cuda: FakeCuda, graph: FakeGraph, pool: _Pool) -> None:
        self._cuda, self._graph, self._pool = cuda, graph, pool
        self._recorder = _Recorder(graph)

    def __enter__(self) -> None:
        self._before, self._cuda.current = self._cuda.current, _Stream()
        self._graph.begin(self._pool)
        self._thresholds = gc.get_threshold()
        gc.set_threshold(1)  # the collector comes whenever it may
        self._recorder.__enter__()

    def __exit__(self, *fault: object) -> None:
        self._recorder.__exit__(*fault)
        gc.set_threshold(*self._thresholds)
        self._graph.end()
        self._cuda.current = self._before


def with_graphs(backend: B) -> B:
    """Give a backend's small steps fixed shapes."""
    backend.fixed = True
    return backend


def graphs_on_the_processor(monkeypatch) -> Iterator[FakeCuda]:
    """Let steps on the processor be captured as graphs. A fixture of the tests that name it."""
    fake = FakeCuda()
    FakeGraph.capturing, FakeGraph.spoilt, FakeGraph.captured = None, None, 0
    FakeGraph.pools.clear()
    replaced = {
        "graph": fake.graph,
        "CUDAGraph": FakeGraph,
        "graph_pool_handle": fake.pool,
        "Stream": _Stream,
        "stream": fake.stream,
        "current_stream": lambda *_: fake.current,
        "is_current_stream_capturing": lambda: FakeGraph.capturing is not None,
        "Event": _Event,
    }
    for name, stand_in in replaced.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", _end_allocation)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", _release_pool)
    monkeypatch.setattr(graphs, "has_graphs", lambda device: True)
    # What runs only on processors, unseen by graphs.
    monkeypatch.setattr(kernels, "available", lambda: False)
    monkeypatch.setattr(highest, "argmax", lambda rows: rows.argmax(-1))
    graphs._capture_stream.cache_clear()

    def collected(phase: str, _: Mapping[str, int]) -> None:
        if phase == "start" and FakeGraph.capturing is not None:
            FakeGraph.spoilt = "garbage was collected"

    gc.callbacks.append(collected)
    yield fake
    gc.callbacks.remove(collected)
    graphs._capture_stream.cache_clear()
    assert fake.current is fake.default and FakeGraph.capturing is None


def _end_allocation(device: int | None, pool: int) -> None:
    if not FakeGraph.pools[pool].underway:
        raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
    FakeGraph.pools[pool].underway = False


def _release_pool(device: int | None, pool: int) -> None:
    FakeGraph.pools[pool].uses -= 1
