"""`bench`: measures methods side by side on many questions, and prints tables or JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from specvl_demo.cli import progress
from specvl_demo.cli.answer import find_pair, load, pick, print_json
from specvl_demo.methods.base import Choice
from specvl_demo.options import NEW_TOKENS
from specvl_demo.pairs import PairSpec
from specvl_demo.serving import choosing

REPEATS, QUESTIONS = 5, 1000


def run(options: argparse.Namespace) -> int:
    pair = find_pair(options)
    choices = _choices(options, pair)
    from specvl_demo.compare import measure
    from specvl_demo.compare.page import page_of
    from specvl_demo.report import answers

    bench_options = measure.BenchOptions(
        pair=pair,
        choices=choices,
        repeats=options.repeats or REPEATS,
        max_new_tokens=options.max_new_tokens or NEW_TOKENS.default,
        prompts=options.prompts or QUESTIONS,
        load=partial(load, options, pair),
        tell=progress.tell,
        peers=options.peers,
        data=options.data,
    )
    try:
        report = measure.answers(bench_options)
    finally:
        progress.done()
    if options.json:
        print_json(report)
    else:
        rows = report if options.busy else answers.held_back(report)
        sys.stdout.write(page_of(rows).markdown())
    return 0


def _choices(options: argparse.Namespace, pair: PairSpec) -> Sequence[Choice]:
    """Return `ar`, then the named methods, or all that the pair supports."""
    names = [name.strip() for name in options.methods.split(",") if name.strip()]
    names = choosing.served(pair) if names == ["all"] else names
    return pick(list(dict.fromkeys(["ar", *names])), options.set, pair, 0.0)
