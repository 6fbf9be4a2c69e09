"""What one step costs: AR step, verification, draft step, prefill, each compared with what the
machine allows.

Costs depend on shapes, not on the values of weights, so random weights are enough and nothing is
downloaded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor, nn

from specvl_demo.bench import cases, forwards, measure, provenance
from specvl_demo.bench.measure import BenchOptions
from specvl_demo.core.tree import TreeShape, chain, shape_of
from specvl_demo.decoders.backend import Backend
from specvl_demo.decoders.calibration import text_context
from specvl_demo.decoders.sequence import prefill
from specvl_demo.decoders.timing import clock_for, synchronize
from specvl_demo.methods.base import Choice
from specvl_demo.pairs.machine import detect
from specvl_demo.serving import availability, choosing
from specvl_demo.serving.loader import Loaded
from specvl_demo.vlm import random_models
from specvl_demo.vlm.encoder import VLM

ROWS = (1, 2, 4, 8, 16, 26, 32, 64, 128)
WIDTH = 8
"""Rows of a draft step that expands a tree."""


@dataclass(frozen=True)
class Bounds:
    """The measured limits of the machine: bytes read per second, and operations per second in the
    decoder's type.
    """

    bytes_per_s: float
    flops_per_s: float


Cost = dict[str, Any]
"""One step, a row of the report.

rows: tokens fed. ms: median. spread: (highest - lowest) / median. bound_ms: the least that memory
and arithmetic allow. share: bound / median. vs_step: in steps of one row.
"""


def bounds(device: torch.device, dtype: torch.dtype, size: int | None = None) -> Bounds:
    """Measure the limits: a sum over a buffer much larger than the caches, and a square product.

    size: Side of the product; None for one that keeps the device busy for a moment.
    """
    large = device.type == "cuda"
    side = size or (8192 if large else 768)
    buffer = torch.ones((2**31 if large else 2**26) // 4, device=device)
    read = min(_times(buffer.sum, device, 5))
    a = torch.randn(side, side, device=device, dtype=dtype)
    product = min(_times(lambda: a @ a, device, 5))
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
    """Return the costs of scoring `rows` nodes after `context` tokens, including the head and the
    choice of tokens.
    """
    found: list[Cost] = []
    ids = torch.arange(context, device=decoder.device) % decoder.vocab
    sequence, _, _ = prefill(decoder, [text_context(decoder, ids)], context + max(rows))
    for count in rows:
        shape = _bushy(count)
        x = decoder.embed(torch.arange(count, device=decoder.device) % decoder.vocab)[None]

        def once(x: Tensor = x, shape: TreeShape = shape) -> Tensor:
            return decoder.logits(sequence.score(x, shape)).argmax(-1)

        times = _times(once, decoder.device, repeats)
        cached = decoder.n_cached * (context + count) * decoder.dtype.itemsize
        label = "step" if count == 1 and step == "verify" else step
        cost: Cost = {"step": label, "model": name, "rows": count, "context": context}
        cost |= _timed(times, decoder.n_bytes + cached, 2.0 * decoder.n_weights * count, limits)
        found.append(cost | {"vs_step": cost["ms"] / (found[0] if found else cost)["ms"]})
    return found


def prefill_cost(
    decoder: Backend, name: str, limits: Bounds, length: int, repeats: int = 5
) -> Cost:
    """Return the cost of a pass over a prompt; its head reads only one row."""
    context = text_context(decoder, torch.arange(length, device=decoder.device) % decoder.vocab)
    times = _times(lambda: prefill(decoder, [context], 0)[1], decoder.device, repeats)
    cost = {"step": "prefill", "model": name, "rows": length, "context": 0, "vs_step": None}
    return cost | _timed(times, decoder.n_bytes, 2.0 * decoder.n_weights * length, limits)


def suite(
    decoders: Mapping[str, Backend],
    context: int = 1024,
    rows: Sequence[int] = ROWS,
    repeats: int = 20,
    size: int | None = None,
) -> dict[str, Any]:
    """Return `machine, settings, rows`, as `bench --suite steps --json` prints them. rows must
    begin with 1.

    decoders: The target's by its name, then a drafter's.
    """
    target, *_ = decoders.values()
    limits = bounds(target.device, target.dtype, size)
    found: list[Cost] = []
    for name, decoder in decoders.items():
        step, counts = ("verify", rows) if decoder is target else ("draft", (1, WIDTH))
        found.append(prefill_cost(decoder, name, limits, context, max(2, repeats // 4)))
        found += costs(decoder, name, limits, context, counts, repeats, step)
    cuda = target.device.type == "cuda"
    machine = {
        "device": torch.cuda.get_device_name(target.device) if cuda else "cpu",
        "dtype": str(target.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **asdict(limits),
    }
    settings = {
        "context": context,
        "rows": list(rows),
        "repeats": repeats,
        "models": list(decoders),
    }
    return {"machine": machine, "settings": settings, "rows": found}


def report(options: BenchOptions) -> dict[str, Any]:
    """Return what a step costs: of a pair on disk as it is, of hub pairs by shape with random
    weights.
    """
    settings = options.settings
    if set(settings) - {"context", "graphs"} or not settings.get("context", "1").isdigit():
        raise ValueError("--suite steps takes --set context=TOKENS and --set graphs=true.")
    loaded, decoders = _decoders(options, settings.get("graphs") == "true")
    found = suite(decoders, int(settings.get("context", 1024)), repeats=max(2, options.repeats))
    if loaded is not None:
        found["machine"] |= provenance.describe(loaded)
        found["rows"] += _draft_rows(loaded, options.choices)
    return found


def _draft_rows(loaded: Loaded, choices: Sequence[Choice]) -> list[Cost]:
    """Return draft steps as they run in rounds, including views and heads: one method per drafter,
    in AR steps.
    """
    (request,) = measure.requests(loaded, cases.scenes_alone(1), 64)
    alike = {(one.drafter.name, len(one.views)): one for one in reversed(choices)}
    ar = next(one for one in choices if one.method.name == "ar")
    ar_step_s = mean(one.verify_s for one in forwards.run(loaded, ar, request)[1])
    rows = []
    for choice in reversed(alike.values()):
        groups: dict[tuple[str, int], list[float]] = defaultdict(list)
        for one in forwards.run(loaded, choice, request)[1]:
            for at, (width, seconds) in enumerate(one.steps):
                groups["draft" if at else "draft root", width].append(seconds)
        for (step, width), times in sorted(groups.items()):
            row = {"step": step, "model": choice.method.name, "rows": width}
            rows.append(row | {"ms": 1e3 * mean(times), "vs_step": mean(times) / ar_step_s})
    return rows


def _decoders(options: BenchOptions, graphs: bool) -> tuple[Loaded | None, dict[str, Backend]]:
    """Return the target's decoder by its name and a small drafter's, and the pair if it was
    loaded.
    """
    models: dict[str, nn.Module]
    pair, backend, loaded = options.pair, "graphs" if graphs else "auto", None
    if pair.local:
        loaded = options.load(list(choosing.roles_here(pair)), None)
        vlms = {pair.target.title: loaded.models.target.vlm}
        if small := loaded.models.drafters.get("small"):
            vlms[small.name] = small
        if not graphs:
            return loaded, {name: vlm.decoder for name, vlm in vlms.items()}
        models = {name: vlm.model for name, vlm in vlms.items()}
    elif pair.id in random_models.PAIRS:
        names, machine = random_models.PAIRS[pair.id], detect()
        dtype = options.dtype or ("bfloat16" if machine.gpus else "float32")
        needs = availability.DTYPE_BYTES[dtype] * sum(map(random_models.n_weights, names)) / 1e9
        there = (machine.gpus[0][1] if machine.gpus else machine.memory_bytes) / 1e9
        if needs > there * availability.USABLE_SHARE:
            raise ValueError(
                f"{names[0]} in {dtype} needs {needs:.0f} GB, but there are only {there:.0f} GB"
                " here."
            )
        models = {name: random_models.random_model(name, dtype, machine.device) for name in names}
    else:
        known = ", ".join(("pocket", *random_models.PAIRS))
        raise ValueError(f"The steps suite knows no shapes for {pair.id}; it knows: {known}.")
    return loaded, {
        name: VLM(model, name, backend=backend).decoder for name, model in models.items()
    }


def _bushy(size: int) -> TreeShape:
    """Return a tree of this many nodes, two children each: its mask is neither full nor a
    triangle.
    """
    return chain(0) if size == 1 else shape_of((-1, *((i - 1) // 2 for i in range(1, size))))


def _timed(times: list[float], size: int, flops: float, limits: Bounds) -> Cost:
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
def _times(once: Callable[[], Tensor], device: torch.device, repeats: int) -> list[float]:
    """Return seconds of each repeat, after two uncounted ones."""
    for _ in range(2):
        once()
    synchronize(device)
    found = []
    for _ in range(repeats):
        watch = clock_for(device)
        watch.start()
        once()
        watch.lap("all")
        found.append(watch.read()["all"])
    return found
