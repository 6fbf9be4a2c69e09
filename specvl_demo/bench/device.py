"""All that only the device at hand can tell, in one run: steps, exactness by type, peers, memory.

A part that fails is told in a sentence, and the others go on: a machine with a GPU is lent for minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from specvl_demo.bench import cases, lossless, measure, provenance, steps
from specvl_demo.bench.measure import Tell
from specvl_demo.bench.peers import PEERS
from specvl_demo.decoders.timing import peak_bytes
from specvl_demo.methods.base import Choice
from specvl_demo.registry import Loaded
from specvl_demo.vlm.encoder import VLM

DTYPES = ("bfloat16", "float16", "float32")
BACKENDS = {"eager": "hf", "fixed shapes": "static"}
"""Decoders whose steps are compared; on a CUDA device those of fixed shapes are graphs."""
NODES = (1, 2, 4, 8, 16, 32, 64)
CONTEXT = 1024
FAULTS = (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError, NotImplementedError)

Load = Callable[[Sequence[str], str | None], Loaded]
Rows = list[dict[str, Any]]


def report(
    load: Load, choices: Sequence[Choice], repeats: int, prompts: int, max_new_tokens: int, tell: Tell
) -> dict[str, Any]:
    """`machine, settings, rows`: a row a part with its own rows, or with what went wrong.

    load: brings up the pair with drafters of these roles in a type; None takes the device's own.
    """
    roles = list(dict.fromkeys(c.drafter.role for c in choices if c.drafter.role is not None))
    watch = provenance.Watch()

    def own_type(loaded: Loaded) -> tuple[dict[str, Any], Rows]:
        return {**provenance.describe(loaded), "pair": loaded.pair.id}, [
            _part("Steps, eager and in fixed shapes", lambda: _steps(loaded, repeats)),
            _part(
                "Methods beside the library",
                lambda: _beside(loaded, choices, repeats, max_new_tokens, tell),
            ),
            _part("Memory, predicted and measured", lambda: _memory(loaded)),
        ]

    machine, rows = own_type(load(roles, None))
    for number, dtype in enumerate(DTYPES):
        tell(f"exactness in {dtype}", number / len(DTYPES))

        def exact(dtype: str = dtype) -> Rows:
            return _exact(load(roles, dtype), choices, prompts, max_new_tokens, tell)

        rows.append(_part(f"Exactness in {dtype}", exact))
    settings = {
        "pair": machine.pop("pair"),
        "repeats": repeats,
        "prompts": prompts,
        "max_new_tokens": max_new_tokens,
    }
    return {"machine": {**machine, **_gpu(), **watch.read()}, "settings": settings, "rows": rows}


def _part(title: str, find: Callable[[], Rows]) -> dict[str, Any]:
    try:
        return {"part": title, "rows": find(), "fault": None}
    except FAULTS as fault:
        said = " ".join(str(fault).split())[:300]
        return {"part": title, "rows": [], "fault": f"Failed: {type(fault).__name__}: {said}"}


def _gpu() -> dict[str, Any]:
    if not torch.cuda.is_available():
        return {}
    gpu = torch.cuda.get_device_properties(0)
    return {"gpu": gpu.name, "capability": f"{gpu.major}.{gpu.minor}", "toolkit": torch.version.cuda}


def _steps(loaded: Loaded, repeats: int) -> Rows:
    """Milliseconds of verification by nodes on both decoders, and whether they choose the same tokens."""
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
            row = {"model": name, "nodes": one["rows"], "eager_ms": one["ms"], "fixed_ms": other["ms"]}
            rows.append(row | {"gain": one["ms"] / other["ms"], "bound_ms": one["bound_ms"]})
    return rows


def _beside(loaded: Loaded, choices: Sequence[Choice], repeats: int, max_new_tokens: int, tell: Tell) -> Rows:
    """Every method and every way of the library on a few held-out scenes, with the limits found."""
    found = measure.bench(loaded, cases.scenes_alone(3), choices, repeats, max_new_tokens, list(PEERS), tell)
    columns = ("method", "tau", "tokens_per_s", "speedup_vs_ar", "speedup_vs_hf_generate", "limit")
    return [{key: row[key] for key in (*columns, "identical_to_ar", "note")} for row in found["rows"]]


def _memory(loaded: Loaded) -> Rows:
    measured, predicted = peak_bytes(loaded.models.target.decoder.device), loaded.verdict.needs_bytes
    return [
        {
            "predicted_gb": predicted / 1e9,
            "measured_gb": measured / 1e9,
            "measured_over_predicted": measured / predicted if predicted else None,
        }
    ]


def _exact(loaded: Loaded, choices: Sequence[Choice], prompts: int, max_new_tokens: int, tell: Tell) -> Rows:
    found = lossless.lossless(loaded, cases.mixed(prompts), choices, max_new_tokens, tell)
    return [{key: row.get(key) for key in lossless.COLUMNS} for row in found["rows"]]
