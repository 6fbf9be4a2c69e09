"""What one step costs, beside what the machine allows, and the kernels that it is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from lab.gpu.isolated import Row
from specvl_demo.core.tree import TreeShape, chain, shape_of
from specvl_demo.decoders import batch_invariance
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.decoders.calibration import text_context
from specvl_demo.decoders.sequence import CachedSequence, prefill
from specvl_demo.decoders.timing import clock_for, synchronize

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
WIDTH = 8
"""Rows of a draft step that expands a tree."""
PROFILED = 3
"""Steps in a profile."""


@dataclass(frozen=True)
class Bounds:
    """The machine's measured limits: bytes and operations in the decoder's type per second."""

    bytes_per_s: float
    flops_per_s: float


def bounds(device: torch.device, dtype: torch.dtype, size: int | None = None) -> Bounds:
    """Measure the limits: a sum over a buffer, and a square product, of `size` if it is given."""
    large = device.type == "cuda"
    side = size or (8192 if large else 768)
    buffer = torch.ones((2**31 if large else 2**26) // 4, device=device)
    read = min(seconds_of(buffer.sum, device, 5))
    a = torch.randn(side, side, device=device, dtype=dtype)
    product = min(seconds_of(lambda: a @ a, device, 5))
    return Bounds(buffer.numel() * 4 / read, 2 * side**3 / product)


def costs(
    decoder: LanguageBackend,
    name: str,
    limits: Bounds,
    context: int,
    rows: Sequence[int],
    repeats: int,
    step: str = "verify",
    least: int | None = None,
) -> list[Row]:
    """Return the costs of scoring `rows` nodes after `context` tokens, including the head and the
    choice of tokens; of batch-invariant steps if `least` is given, as in `CachedSequence.score`.

    A row has ms (median), spread ((highest - lowest) / median), bound_ms (the least that memory and
    arithmetic allow), share (bound / median) and vs_step (in steps of the first row count).
    """
    found: list[Row] = []
    sequence = started(decoder, context, max(rows))
    for count in rows:
        times = seconds_of(step_of(decoder, sequence, count, least), decoder.device, repeats)
        cached = decoder.n_cached * (context + count) * decoder.dtype.itemsize
        label = "step" if count == 1 and step == "verify" else step
        row: Row = {"step": label, "model": name, "rows": count, "context": context}
        row |= _timed(times, decoder.n_bytes + cached, 2.0 * decoder.n_weights * count, limits)
        found.append(row | {"vs_step": row["ms"] / (found[0] if found else row)["ms"]})
    return found


def prefill_cost(
    decoder: LanguageBackend, name: str, limits: Bounds, length: int, repeats: int
) -> Row:
    """Return the cost of a pass over a prompt; its head reads only one row."""
    context = text_context(decoder, torch.arange(length, device=decoder.device) % decoder.vocab)
    times = seconds_of(lambda: prefill(decoder, [context], 0).hidden, decoder.device, repeats)
    row = {"step": "prefill", "model": name, "rows": length, "context": 0, "vs_step": None}
    return row | _timed(times, decoder.n_bytes, 2.0 * decoder.n_weights * length, limits)


def profiled(device: torch.device) -> profile:
    """Return a context in which calls, and a GPU's kernels, are counted and timed."""
    on_gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    return profile(activities=[ProfilerActivity.CPU, *on_gpu])


@torch.inference_mode()
def kernels(decoder: LanguageBackend, context: int, rows: int) -> list[Row]:
    """Return milliseconds and launches of one step by kernel, for the 16 longest, after a row for
    the sum of all. On a CPU, operators stand for kernels.
    """
    once = step_of(decoder, started(decoder, context, rows), rows)
    for _ in range(PROFILED):
        once()
    synchronize(decoder.device)
    on_gpu = decoder.device.type == "cuda"
    with profiled(decoder.device) as seen:
        for _ in range(PROFILED):
            once()
        synchronize(decoder.device)
    times: dict[str, tuple[float, float]] = {}
    for event in seen.key_averages():
        if on_gpu and event.device_type == DeviceType.CPU:
            continue
        us = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        times[event.key] = (us / 1e3 / PROFILED, event.count / PROFILED)
    longest = sorted(times.items(), key=lambda item: -item[1][0])
    total = [sum(values) for values in zip(*times.values(), strict=True)]
    table = [("all", tuple(total)), *longest[:16]]
    return [
        {"kernel": name[:90], "rows": rows, "ms": ms, "launches": launches}
        for name, (ms, launches) in table
    ]


@torch.inference_mode()
def started(decoder: LanguageBackend, context: int, room: int) -> CachedSequence:
    """Return a sequence of so many rows, with room for as many more."""
    ids = torch.arange(context, device=decoder.device) % decoder.vocab
    room = context + max(room, batch_invariance.MAX_NODES)
    sequence = prefill(decoder, [text_context(decoder, ids)], room).sequence
    sequence.cache.zero_unused()
    return sequence


@torch.inference_mode()
def step_of(
    decoder: LanguageBackend, sequence: CachedSequence, rows: int, least: int | None = None
) -> Callable[[], Tensor]:
    """Return a step that scores so many nodes and chooses their tokens."""
    shape = _bushy(rows)
    x = decoder.embed(torch.arange(rows, device=decoder.device) % decoder.vocab)[None]
    return lambda: decoder.logits(sequence.score(x, shape, min_rows=least)).argmax(-1)


def _bushy(size: int) -> TreeShape:
    """Return a tree of so many nodes, two children each, whose mask is no triangle."""
    return chain(0) if size == 1 else shape_of((-1, *((i - 1) // 2 for i in range(1, size))))


def _timed(times: list[float], size: int, flops: float, limits: Bounds) -> Row:
    """Return the time of a step of so many bytes and operations, with its bound."""
    ms = median(times) * 1e3
    by_memory, by_flops = size / limits.bytes_per_s * 1e3, flops / limits.flops_per_s * 1e3
    bound = max(by_memory, by_flops)
    return {
        "ms": ms,
        "spread": (max(times) - min(times)) / median(times),
        "bytes": size,
        "flops": flops,
        "bound_ms": bound,
        "bound_by": "memory" if by_memory >= by_flops else "arithmetic",
        "share": bound / ms,
    }


@torch.inference_mode()
def seconds_of(
    once: Callable[[], Tensor], device: torch.device, repeats: int, warm: int = 2
) -> list[float]:
    """Return seconds of each repeat, after so many uncounted ones."""
    for _ in range(warm):
        once()
    synchronize(device)
    seconds = []
    for _ in range(repeats):
        watch = clock_for(device)
        watch.start()
        once()
        watch.lap("all")
        seconds.append(watch.read()["all"])
    return seconds
