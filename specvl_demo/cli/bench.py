"""`bench`: methods measured beside each other, as a table or one JSON document."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from specvl_demo import registry
from specvl_demo.cli import progress
from specvl_demo.cli.answer import find_pair, pick
from specvl_demo.cli.parse import Refused
from specvl_demo.methods import Choice
from specvl_demo.pairs import Pair
from specvl_demo.report import tables


def run(options: argparse.Namespace) -> int:
    """Check, load, measure, print."""
    pair = find_pair(options.pair)
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
        loaded = registry.load(pair, list(dict.fromkeys(roles)), options.dtype, progress.tell)
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


def _trees(options: argparse.Namespace, pair: Pair, chosen: Sequence[Choice]) -> int:
    """Which tree pays here, for every method that grows one best first."""
    from specvl_demo.bench import suites, trees

    if not chosen:
        raise Refused("The suite trees needs a method that grows its tree best first, as eagle2 does.")
    try:
        cases = suites.find(options.suite)
        roles = [c.drafter.role for c in chosen if c.drafter.role is not None]
        loaded = registry.load(pair, list(dict.fromkeys(roles)), options.dtype, progress.tell)
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
