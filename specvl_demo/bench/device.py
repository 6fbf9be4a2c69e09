"""Everything that can only be measured on the device itself, in one run: steps, exactness by type,
peers, memory.

A part that fails is reported in a sentence, and the others continue, since a machine with a GPU may
be available only for minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from specvl_demo.bench import cases, lossless, measure, provenance, steps
from specvl_demo.bench.measure import BenchOptions
from specvl_demo.bench.peers import PEERS
from specvl_demo.decoders.timing import peak_bytes
from specvl_demo.serving.loader import Loaded
from specvl_demo.vlm.encoder import VLM

DTYPES = ("bfloat16", "float16", "float32")
BACKENDS = {"eager": "hf", "fixed shapes": "graphs"}
"""Decoders whose steps are compared; on a CUDA device, steps of fixed shapes run as graphs."""
NODES = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 1024
FAULTS = (
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    IndexError,
    NotImplementedError,
)

Rows = list[dict[str, Any]]


def report(options: BenchOptions) -> dict[str, Any]:
    """Return `machine, settings, rows`: one row per part, with its own rows or the error."""
    watch = provenance.Watch()
    machine, rows = _in_own_type(options)
    for number, dtype in enumerate(DTYPES):
        options.tell(f"exactness in {dtype}", number / len(DTYPES))
        rows.append(_part(f"Exactness in {dtype}", partial(_exact, options, dtype)))
    settings = {
        "pair": options.pair.id,
        "repeats": options.repeats,
        "prompts": options.prompts,
        "max_new_tokens": options.max_new_tokens,
    }
    return {"machine": {**machine, **_gpu(), **watch.read()}, "settings": settings, "rows": rows}


def _in_own_type(options: BenchOptions) -> tuple[dict[str, Any], Rows]:
    """Return the machine with what was loaded, and the parts in the device's own type.

    The models are freed at return, before they are loaded in another type.
    """
    loaded = options.load(options.roles, None)
    return provenance.describe(loaded), [
        _part("Steps, eager and in fixed shapes", lambda: _steps(loaded, options.repeats)),
        _part("Methods beside the library", lambda: _beside(loaded, options)),
        _part("Memory, predicted and measured", lambda: _memory(loaded)),
    ]


def _part(title: str, find: Callable[[], Rows]) -> dict[str, Any]:
    try:
        return {"part": title, "rows": find(), "fault": None}
    except FAULTS as fault:
        message = " ".join(str(fault).split())[:300]
        return {"part": title, "rows": [], "fault": f"Failed: {type(fault).__name__}: {message}"}


def _gpu() -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {}
    gpu = torch.cuda.get_device_properties(0)
    return {
        "gpu": gpu.name,
        "capability": f"{gpu.major}.{gpu.minor}",
        "toolkit": torch.version.cuda,
    }


def _steps(loaded: Loaded, repeats: int) -> Rows:
    """Return milliseconds of verification by nodes on both decoders, and whether they choose the
    same tokens.
    """
    models = {"target": loaded.models.target.vlm.model}
    if "small" in loaded.models.drafters:
        models["small drafter"] = loaded.models.drafters["small"].model
    rows: Rows = []
    for name, model in models.items():
        found = {}
        for label, backend in BACKENDS.items():
            decoder = VLM(model, name, backend=backend).decoder
            limits = steps.bounds(decoder.device, decoder.dtype)
            found[label] = steps.costs(decoder, name, limits, CONTEXT, NODES, max(5, repeats))
        eager, fixed = found.values()
        for one, other in zip(eager, fixed, strict=True):
            row = {
                "model": name,
                "nodes": one["rows"],
                "eager_ms": one["ms"],
                "fixed_ms": other["ms"],
            }
            rows.append(row | {"gain": one["ms"] / other["ms"], "bound_ms": one["bound_ms"]})
    return rows


def _beside(loaded: Loaded, options: BenchOptions) -> Rows:
    """Return every method and every way of the library on a few held-out scenes, with the limits
    found.
    """
    found = measure.bench(loaded, cases.scenes_alone(3), options, list(PEERS))
    columns = ("method", "tau", "tokens_per_s", "speedup_vs_ar", "speedup_vs_hf_generate", "limit")
    return [
        {key: row[key] for key in (*columns, "identical_to_ar", "note")} for row in found["rows"]
    ]


def _memory(loaded: Loaded) -> Rows:
    measured = peak_bytes(loaded.models.target.decoder.device)
    predicted = loaded.availability.needs_bytes
    return [
        {
            "predicted_gb": predicted / 1e9,
            "measured_gb": measured / 1e9,
            "measured_over_predicted": measured / predicted if predicted else None,
        }
    ]


def _exact(options: BenchOptions, dtype: str) -> Rows:
    loaded, questions = options.load(options.roles, dtype), cases.mixed(options.prompts)
    found = lossless.lossless(loaded, questions, options)
    return [{key: row.get(key) for key in lossless.COLUMNS} for row in found["rows"]]
