"""What one step costs: plain step, verification, draft step, prefill, each beside what the machine allows.

Given decoders, a context length and row counts, gives plain rows with medians, spreads and roofline bounds.
Costs depend on shapes, not on what weights say: real shapes can be measured with random weights, without a
download. Knows nothing of methods, prompts or answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from specvl_demo.core.tree import TreeShape, chain, shape_of
from specvl_demo.core.types import Context
from specvl_demo.targets.clock import clock_for, settle
from specvl_demo.targets.decoder import Backend
from specvl_demo.targets.stream import Stream, prefill

ROWS = (1, 2, 4, 8, 16, 26, 32, 64, 128)
WIDTH = 8
"""Rows of a draft step that expands a tree."""


@dataclass(frozen=True)
class Bounds:
    """What the machine was seen to do: bytes read a second, and operations a second in the decoder's type."""

    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True)
class Cost:
    """One step.

    ms: median; spread: (highest - lowest) / median. bound_ms: the least that memory and arithmetic allow;
    share: bound / median. vs_step: in plain steps of the same decoder.
    """

    step: str
    model: str
    rows: int
    context: int
    ms: float
    spread: float
    bytes: int
    flops: float
    bound_ms: float
    bound_by: str
    share: float
    vs_step: float | None = None


def bounds(device: torch.device, dtype: torch.dtype, size: int | None = None) -> Bounds:
    """Measured, not looked up: a sum over a buffer much larger than the caches, a square product.

    size: side of the product; None takes what keeps the device busy for a moment.
    """
    large = device.type == "cuda"
    side = size or (8192 if large else 768)
    buffer = torch.ones((2**31 if large else 2**26) // 4, device=device)
    read = _fastest(buffer.sum, device)
    a = torch.randn(side, side, device=device, dtype=dtype)
    product = _fastest(lambda: a @ a, device)
    return Bounds(buffer.numel() * 4 / read, 2 * side**3 / product)


def costs(
    decoder: Backend,
    name: str,
    limits: Bounds,
    context: int,
    rows: Sequence[int] = ROWS,
    repeats: int = 20,
    step: str = "verify",
) -> list[Cost]:
    """The costs of scoring `rows` nodes behind `context` tokens, head and choice of tokens included."""
    n_bytes = decoder.n_weights * decoder.dtype.itemsize
    found: list[Cost] = []
    stream = _stream(decoder, context, max(rows))
    for count in rows:
        shape = _bushy(count)
        x = decoder.embed(torch.arange(count, device=decoder.device) % decoder.vocab)[None]

        def once(x: Tensor = x, shape: TreeShape = shape) -> Tensor:
            return decoder.logits(stream.score(x, shape)).argmax(-1)

        times = _times(once, decoder.device, repeats)
        cached = decoder.n_cached * (context + count) * decoder.dtype.itemsize
        label = "step" if count == 1 and step == "verify" else step
        flops = 2.0 * decoder.n_weights * count
        found.append(_cost(label, name, count, context, times, n_bytes + cached, flops, limits))
    plain = next((cost.ms for cost in found if cost.rows == 1), None)
    return [Cost(**{**asdict(cost), "vs_step": cost.ms / plain if plain else None}) for cost in found]


def prefill_cost(decoder: Backend, name: str, limits: Bounds, length: int, repeats: int = 5) -> Cost:
    """A pass over a prompt; its head reads one row alone."""
    n_bytes = decoder.n_weights * decoder.dtype.itemsize
    context = _context(decoder, length)
    times = _times(lambda: prefill(decoder, [context], 0)[1], decoder.device, repeats)
    return _cost("prefill", name, length, 0, times, n_bytes, 2.0 * decoder.n_weights * length, limits)


def suite(
    target: Backend,
    names: tuple[str, str],
    drafter: Backend | None = None,
    context: int = 1024,
    rows: Sequence[int] = ROWS,
    repeats: int = 20,
    size: int | None = None,
) -> dict[str, Any]:
    """`machine, settings, rows`, as `bench --suite steps --json` prints them."""
    limits = bounds(target.device, target.dtype, size)
    found = [prefill_cost(target, names[0], limits, context, max(2, repeats // 4))]
    found += costs(target, names[0], limits, context, rows, repeats)
    if drafter is not None:
        found.append(prefill_cost(drafter, names[1], limits, context, max(2, repeats // 4)))
        found += costs(drafter, names[1], limits, context, (1, WIDTH), repeats, step="draft")
    cuda = target.device.type == "cuda"
    return {
        "machine": {
            "device": torch.cuda.get_device_name(target.device) if cuda else "cpu",
            "dtype": str(target.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            **asdict(limits),
        },
        "settings": {"context": context, "rows": list(rows), "repeats": repeats, "models": list(names)},
        "rows": [asdict(cost) for cost in found],
    }


def _context(decoder: Backend, length: int) -> Context:
    ids = torch.arange(length, device=decoder.device) % decoder.vocab
    positions = torch.arange(length, device=decoder.device)
    return Context(
        name="steps",
        ids=ids,
        visual=torch.zeros_like(ids, dtype=torch.bool),
        embeds=decoder.embed(ids),
        positions=positions if decoder.axes == 1 else positions.expand(decoder.axes, -1),
        next_position=length,
        index=positions,
    )


def _stream(decoder: Backend, context: int, most: int) -> Stream:
    stream, _, _ = prefill(decoder, [_context(decoder, context)], context + most)
    return stream


def _bushy(size: int) -> TreeShape:
    """A tree of this many nodes, two children each: its mask is neither full nor a triangle."""
    return chain(0) if size == 1 else shape_of((-1, *((i - 1) // 2 for i in range(1, size))))


def _cost(
    step: str, name: str, rows: int, context: int, times: list[float], size: int, flops: float, limits: Bounds
) -> Cost:
    ms = median(times) * 1e3
    by_memory, by_flops = size / limits.bytes_per_s * 1e3, flops / limits.flops_per_s * 1e3
    bound = max(by_memory, by_flops)
    return Cost(
        step=step,
        model=name,
        rows=rows,
        context=context,
        ms=ms,
        spread=(max(times) - min(times)) / median(times),
        bytes=size,
        flops=flops,
        bound_ms=bound,
        bound_by="memory" if by_memory >= by_flops else "arithmetic",
        share=bound / ms,
    )


@torch.inference_mode()
def _times(once: Callable[[], Tensor], device: torch.device, repeats: int) -> list[float]:
    """Seconds of each repeat, after two that nobody counts."""
    for _ in range(2):
        once()
    settle(device)
    found = []
    for _ in range(repeats):
        watch = clock_for(device)
        watch.start()
        once()
        watch.lap("all")
        found.append(watch.read()["all"])
    return found


@torch.inference_mode()
def _fastest(run: Callable[[], Tensor], device: torch.device, repeats: int = 5) -> float:
    """Seconds of the fastest of several: what the machine can do when nothing is in its way."""
    run()
    best = float("inf")
    for _ in range(repeats):
        settle(device)
        started = time.perf_counter()
        run()
        settle(device)
        best = min(best, time.perf_counter() - started)
    return best
