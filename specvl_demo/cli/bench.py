"""`bench`: methods measured beside each other, as a table or one JSON document."""

from __future__ import annotations

import argparse
import json
import sys

from specvl_demo import registry
from specvl_demo.cli import progress
from specvl_demo.cli.answer import find_pair, pick
from specvl_demo.cli.parse import Refused
from specvl_demo.report import tables


def run(options: argparse.Namespace) -> int:
    """Check, load, measure, print."""
    pair = find_pair(options.pair)
    names = [name.strip() for name in options.methods.split(",") if name.strip()]
    names = registry.served(pair) if names == ["all"] else names
    chosen = pick(["ar", *(name for name in dict.fromkeys(names) if name != "ar")], options.set, pair, 0.0)
    from specvl_demo.bench import measure, suites

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
