"""`models`: pairs, methods, what runs here and why not, or the same of a target and a drafter.
`fetch photo`: the base weights of the photo pair, checked and kept in the user's cache.
"""

from __future__ import annotations

import argparse
import sys
from typing import get_args

from specvl_demo import pairs
from specvl_demo.cli.answer import print_json
from specvl_demo.cli.parse import InputError
from specvl_demo.methods import base
from specvl_demo.options import Dtype
from specvl_demo.pairs import fitting, placing
from specvl_demo.pairs.machine import Machine, detect_machine
from specvl_demo.records import JsonObject
from specvl_demo.report import tables
from specvl_demo.serving import choosing
from specvl_demo.serving.custom import named_pair


def list_models(options: argparse.Namespace) -> int:
    machine = detect_machine()
    models = options.target, options.drafter
    listed = [named_pair(None, *models)] if any(models) else pairs.PAIRS
    document: JsonObject = {
        "machine": machine.title,
        "pairs": [pair_row(pair, machine) for pair in listed],
        "methods": [method_row(name) for name in base.METHODS],
    }
    if options.json:
        print_json(document)
        return 0
    table = tables.to_markdown(document["pairs"], ("id", "available", "reason"))
    methods = tables.to_markdown(document["methods"], ("name", "lossless", "summary"))
    sys.stdout.write(f"{machine.title}\n\n{table}\n\n{methods}\n")
    return 0


def fetch_weights(options: argparse.Namespace) -> int:
    """Fetch what is missing and print its location; InputError if it cannot be fetched."""
    from specvl_demo.vlm import photo_assembly

    target = pairs.find(options.what).target
    if not target.folder.is_dir():
        raise InputError(
            f"The weights of {target.id} are missing from assets; train or copy them first."
        )

    def tell(text: str) -> None:
        sys.stderr.write(f"{text}…\n")

    sys.stdout.write(f"{photo_assembly.fetch(target.folder, tell)}\n")
    return 0


def pair_row(pair: pairs.PairSpec, machine: Machine) -> JsonObject:
    """Return a pair and whether each method that it supports runs here; bytes are estimates."""
    verdict = placing.place(pair, machine, roles=())
    names = choosing.supported_methods(pair)
    methods = {name: choosing.place_method(pair, name, machine) for name in names}
    return {
        "id": pair.id,
        "title": pair.title,
        "family": pair.family,
        "target": pair.target.id,
        "licence": pair.target.licence,
        "params": pair.target.params,
        "drafters": {
            role: {"id": checkpoint.id, "licence": checkpoint.licence, "params": checkpoint.params}
            for role, checkpoint in pair.drafters.items()
        },
        "memory_bytes": {
            dtype: fitting.memory_needs(pair, fitting.LoadPlan(dtype)).total
            for dtype in get_args(Dtype)
        },
        **_placement_fields(verdict),
        "must_fetch": verdict.must_fetch,
        "methods": list(methods),
        "verdicts": {
            name: {
                **_placement_fields(verdict),
                "quantised": verdict.plan.quantised if verdict.ok else None,
                "needs_bytes": verdict.needs_bytes or None,
            }
            for name, verdict in methods.items()
        },
        "note": pair.note,
        "remarks": choosing.pair_remarks(pair),
    }


def _placement_fields(verdict: placing.Placement) -> JsonObject:
    device, dtype = (verdict.plan.device, verdict.plan.dtype) if verdict.ok else (None, None)
    return {"available": verdict.ok, "reason": verdict.reason, "device": device, "dtype": dtype}


def method_row(name: str) -> JsonObject:
    """Return a method with the parameters that `--set` accepts."""
    method = base.find(name)
    columns = ("name", "kind", "default", "low", "high", "choices", "help")
    return {
        "name": name,
        "title": method.title,
        "summary": method.summary,
        "lossless": method.lossless,
        "drafter": method.drafter.name,
        "reference": method.reference,
        "presets": list(method.presets),
        "parameters": [
            {key: getattr(param, key) for key in columns} for param in base.parameters(name)
        ],
    }
