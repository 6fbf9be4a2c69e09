"""`models`: pairs, methods, what runs here and why not. Loads and fetches nothing."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from specvl_demo import methods, registry
from specvl_demo.cli.answer import served
from specvl_demo.pairs import PAIRS, Pair
from specvl_demo.registry import Machine
from specvl_demo.report import tables


def run(options: argparse.Namespace) -> int:
    """Tables for people, or one JSON document."""
    machine = registry.detect()
    document = {
        "machine": machine.title,
        "pairs": [pair_row(pair, machine) for pair in PAIRS],
        "methods": [method_row(name) for name in methods.METHODS],
    }
    if options.json:
        sys.stdout.write(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")
        return 0
    pairs = [row | {"runs here": row["available"], "why": row["reason"]} for row in document["pairs"]]
    sys.stdout.write(f"{document['machine']}\n\n")
    columns = ("id", "runs here", "why")
    sys.stdout.write(tables.render(pairs, columns, "markdown") + "\n\n")
    columns = ("name", "lossless", "summary")
    sys.stdout.write(tables.render(document["methods"], columns, "markdown") + "\n")
    return 0


def pair_row(pair: Pair, machine: Machine) -> dict[str, Any]:
    """A pair with its verdict. Bytes and parameters are estimates from rounded sizes."""
    verdict = registry.available(pair, machine)
    return {
        "id": pair.id,
        "title": pair.title,
        "family": pair.family,
        "target": pair.target.id,
        "licence": pair.target.licence,
        "params": pair.target.params,
        "drafters": {
            role: {"id": one.id, "licence": one.licence, "params": one.params}
            for role, one in pair.drafters.items()
        },
        "memory_bytes": {dtype: registry.needs_bytes(pair, dtype) for dtype in registry.DTYPE_BYTES},
        "available": verdict.ok,
        "reason": verdict.reason,
        "device": verdict.device if verdict.ok else None,
        "dtype": verdict.dtype if verdict.ok else None,
        "must_fetch": verdict.must_fetch,
        "methods": served(pair),
        "note": pair.note,
    }


def method_row(name: str) -> dict[str, Any]:
    """A method with the parameters that `--set` takes."""
    method = methods.find(name)
    return {
        "name": name,
        "title": method.title,
        "summary": method.summary,
        "lossless": method.lossless,
        "drafter": method.drafter,
        "reference": method.reference,
        "presets": list(method.presets),
        "parameters": [
            {
                "name": param.name,
                "kind": param.kind,
                "default": param.default,
                "low": param.low,
                "high": param.high,
                "choices": list(param.choices),
                "help": param.help,
            }
            for param in methods.parameters(name)
        ],
    }
