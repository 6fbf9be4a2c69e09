"""`bench`: methods measured beside each other, as a table or one JSON document."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specvl_demo import registry
from specvl_demo.cli import progress
from specvl_demo.cli.answer import find_pair, load_options, pick
from specvl_demo.cli.parse import Refused
from specvl_demo.methods import Choice
from specvl_demo.pairs import Pair
from specvl_demo.registry import Machine
from specvl_demo.report import tables

if TYPE_CHECKING:
    from specvl_demo.targets.decoder import Backend


def run(options: argparse.Namespace) -> int:
    """Check, load, measure, print."""
    pair = find_pair(options)
    if options.suite == "steps":
        return _steps(options, pair)
    names = [name.strip() for name in options.methods.split(",") if name.strip()]
    names = registry.served(pair) if names == ["all"] else names
    chosen = pick(["ar", *(name for name in dict.fromkeys(names) if name != "ar")], options.set, pair, 0.0)
    from specvl_demo.bench import ablations, measure, suites

    if options.suite == "trees":
        return _trees(options, pair, [c for c in chosen if c.policy.name == "best-first"])
    if options.suite == "ablations":
        chosen = ablations.choices(registry.roles_here(pair))
    try:
        cases = suites.find(options.suite)
        roles = [c.drafter.role for c in chosen if c.drafter.role is not None]
        roles += ["small"] if options.peers and "small" in registry.roles_here(pair) else []
        loaded = registry.load(pair, list(dict.fromkeys(roles)), None, progress.tell, load_options(options))
        report = measure.bench(
            loaded, cases, chosen, options.repeats, options.max_new_tokens, options.peers, progress.tell
        )
    except ValueError as reason:
        raise Refused(str(reason)) from None
    finally:
        progress.done()
    if options.json:
        sys.stdout.write(json.dumps(report, ensure_ascii=False, allow_nan=False) + "\n")
        return 0
    machine = report["machine"]
    sys.stdout.write(
        f"{machine['title']}, {machine['threads']} threads, {machine['dtype']} on {machine['device']}"
        f"{', BUSY: do not quote these figures' if machine['busy'] else ''}\n\n"
    )
    sys.stdout.write(tables.render(report["rows"], measure.COLUMNS, "markdown") + "\n")
    for row in report["rows"]:
        if row["note"]:
            sys.stdout.write(f"{row['method']}: {row['note']}\n")
    return 0


def _steps(options: argparse.Namespace, pair: Pair) -> int:
    """What a step costs: the shipped pair as it is, hub pairs by shape, random weights, nothing fetched."""
    settings = dict(options.set)
    unknown = set(settings) - {"context", "graphs"}
    if unknown or not settings.get("context", "1").isdigit():
        raise Refused("--suite steps takes --set context=TOKENS and --set graphs=true.")
    from specvl_demo.bench import steps

    try:
        target, drafter, names = _decoders(options, pair, settings.get("graphs") == "true")
        context = int(settings.get("context", 1024))
        report = steps.suite(target, names, drafter, context, repeats=max(2, options.repeats))
    except ValueError as reason:
        raise Refused(str(reason)) from None
    finally:
        progress.done()
    if options.json:
        sys.stdout.write(json.dumps(report, ensure_ascii=False, allow_nan=False) + "\n")
        return 0
    machine = report["machine"]
    sys.stdout.write(
        f"{machine['device']}, {machine['dtype']}, {machine['threads']} threads; measured: "
        f"{machine['bytes_per_s'] / 1e9:.1f} GB/s read, {machine['flops_per_s'] / 1e12:.2f} TFLOP/s\n\n"
    )
    columns = ("step", "model", "rows", "ms", "vs_step", "bound_ms", "bound_by", "share", "spread")
    sys.stdout.write(tables.render(report["rows"], columns, "markdown") + "\n")
    return 0


def _decoders(
    options: argparse.Namespace, pair: Pair, graphs: bool
) -> tuple[Backend, Backend | None, tuple[str, str]]:
    from specvl_demo.targets import shapes
    from specvl_demo.targets.vlm import VLM

    machine = registry.detect()
    backend = "static" if graphs else "auto"
    if pair.local:
        roles = [role for role in ("small",) if role in registry.roles_here(pair)]
        loaded = registry.load(pair, roles, None, progress.tell, load_options(options))
        small = loaded.models.drafters.get("small")
        models = [loaded.models.target.vlm.model, *([small.model] if small else [])]
        names = (pair.target.title, small.name if small else "")
    elif pair.id in shapes.PAIRS:
        names = shapes.PAIRS[pair.id]
        device = "cuda:0" if machine.gpus else "cpu"
        dtype = options.dtype or ("bfloat16" if machine.gpus else "float32")
        _fits(names, machine, dtype)
        models = [shapes.random_model(name, dtype, device) for name in names]
    else:
        known = ", ".join(("pocket", *shapes.PAIRS))
        raise ValueError(f"The steps suite knows no shapes for {pair.id}; it knows: {known}.")
    decoders = [VLM(model, name, backend=backend).decoder for model, name in zip(models, names, strict=False)]
    return decoders[0], decoders[1] if len(decoders) > 1 else None, names


def _fits(names: tuple[str, str], machine: Machine, dtype: str) -> None:
    """Refuse shapes that the machine cannot hold."""
    from specvl_demo.targets import shapes

    needs = registry.DTYPE_BYTES[dtype] * sum(shapes.n_weights(name) for name in names)
    there = machine.gpus[0][1] if machine.gpus else machine.memory_bytes
    if needs > there * registry.USABLE_SHARE:
        raise ValueError(
            f"{names[0]} in {dtype} needs {needs / 1e9:.0f} GB; there are {there / 1e9:.0f} GB here."
        )


def _trees(options: argparse.Namespace, pair: Pair, chosen: Sequence[Choice]) -> int:
    """Which tree pays here, for every method that grows one best first."""
    from specvl_demo.bench import suites, trees

    if not chosen:
        raise Refused("The suite trees needs a method that grows its tree best first, as eagle2 does.")
    try:
        cases = suites.find(options.suite)
        roles = [c.drafter.role for c in chosen if c.drafter.role is not None]
        loaded = registry.load(pair, list(dict.fromkeys(roles)), None, progress.tell, load_options(options))
        found = [
            trees.search(loaded, c.method.name, cases, options.max_new_tokens, tell=progress.tell)
            for c in chosen
        ]
    except ValueError as reason:
        raise Refused(str(reason)) from None
    finally:
        progress.done()
    rows = [{"method": f["method"], **row} for f in found for row in f["rows"]]
    if options.json:
        report = {
            "machine": {"title": registry.detect().title},
            "costs": {f["method"]: f["costs"] for f in found},
        }
        sys.stdout.write(json.dumps({**report, "rows": rows}, ensure_ascii=False, allow_nan=False) + "\n")
        return 0
    best = [{"method": f["method"], **row} for f in found for row in f["rows"][:10]]
    sys.stdout.write(tables.render(best, trees.COLUMNS, "markdown") + "\n")
    return 0
