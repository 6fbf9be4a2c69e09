"""`bench`: measures a suite, then prints it as Markdown or JSON, or writes it to a file."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from specvl_demo.cli import progress
from specvl_demo.cli.answer import find_pair, load, pick, print_json
from specvl_demo.cli.parse import InputError, cannot_be
from specvl_demo.methods.base import Choice
from specvl_demo.pairs import PairSpec
from specvl_demo.serving import choosing


def run(options: argparse.Namespace) -> int:
    for file in filter(None, (options.plots, options.report)):
        if not Path(file).parent.is_dir():
            raise InputError(f"{file} cannot be written: there is no folder {Path(file).parent}.")
    if options.recorded:
        return _show(options, _recorded(options.recorded))
    pair = find_pair(options)
    settings = _bench_options(options, pair, _choices(options, pair))
    from specvl_demo.bench import suites

    try:
        report = {"suite": options.suite, **suites.find(options.suite).run(settings)}
    finally:
        progress.done()
    return _show(options, report)


def _show(options: argparse.Namespace, report: dict[str, Any]) -> int:
    """Show the report as JSON, as Markdown, as charts, in sections of files; without ratios if the
    machine was busy.
    """
    from specvl_demo.bench import pages, suites
    from specvl_demo.report import answers

    shown = report if options.busy else answers.held_back(report)
    try:
        page = suites.find(report["suite"]).page(shown)
        for file in options.write:
            pages.write(page, Path(file), report["suite"])
        if options.plots:
            pages.draw(shown, Path(options.plots))
        if options.report:
            Path(options.report).write_text(page.markdown(), encoding="utf-8")
    except OSError as fault:
        raise cannot_be("written", fault.filename, fault) from None
    if options.json:
        print_json(report)
    elif not (options.write or options.plots or options.report):
        sys.stdout.write(page.markdown())
    return 0


def _choices(options: argparse.Namespace, pair: PairSpec) -> list[Choice]:
    """Return `ar`, then the named methods, or all that the pair supports."""
    names = [name.strip() for name in options.methods.split(",") if name.strip()]
    names = choosing.served(pair, options.temperature) if names == ["all"] else names
    names = ["ar", *(name for name in dict.fromkeys(names) if name != "ar")]
    return pick(names, options.set, pair, options.temperature)


def _bench_options(options: argparse.Namespace, pair: PairSpec, chosen: Sequence[Choice]) -> Any:
    """Return what the suite is to do: by the options, else by the suite's defaults."""
    from specvl_demo.bench.measure import BenchOptions
    from specvl_demo.bench.suites import find
    from specvl_demo.core.sampling import Sampling

    if options.temperature and options.suite != "lossless":
        raise InputError(
            "--temperature needs --suite lossless: the other suites compare speeds of greedy"
            " answers."
        )
    suite = find(options.suite)
    return BenchOptions(
        pair=pair,
        choices=chosen,
        repeats=options.repeats or suite.repeats,
        max_new_tokens=options.max_new_tokens or suite.max_new_tokens,
        prompts=options.prompts or suite.prompts,
        load=partial(load, options, pair),
        tell=progress.tell,
        peers=options.peers,
        busy=options.busy,
        dtype=options.dtype,
        data=options.data,
        media=Path(options.media) if options.media else None,
        claim=options.claim,
        heads=Path(options.heads) if options.heads else None,
        settings=dict(options.set),
        sampling=Sampling(options.temperature, options.top_p, seed=options.seed),
    )


def _recorded(path: str) -> dict[str, Any]:
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as fault:
        raise cannot_be("read", f"--from {path}", fault) from None
    except ValueError:
        raise InputError(f"--from {path} is not a JSON document.") from None
    if not isinstance(found, dict) or not {"suite", "machine", "settings", "rows"} <= set(found):
        raise InputError(f"--from {path} is not a report of `bench --json`.")
    return found
