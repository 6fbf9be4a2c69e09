"""`bench`: measures a suite, then prints it as Markdown or JSON, writes it to a file, or compares
it with a record.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from specvl_demo.cli import progress
from specvl_demo.cli.answer import find_pair, load, pick, print_json
from specvl_demo.cli.parse import InputError, cannot_be
from specvl_demo.methods.base import METHODS, Choice
from specvl_demo.pairs import PairSpec
from specvl_demo.serving import choosing


def run(options: argparse.Namespace) -> int:
    for file in filter(None, (options.plots, options.report)):
        if not Path(file).parent.is_dir():
            raise InputError(f"{file} cannot be written: there is no folder {Path(file).parent}.")
    if options.recorded:
        return _show(options, _recorded("--from", options.recorded))
    pair = find_pair(options)
    before = _recorded("--guard", options.guard) if options.guard else None
    chosen = _choices(options, pair, before)
    from specvl_demo.bench import guard, suites

    recorded = guard.settings_of(before) if before is not None else {}
    name = options.action or (before or {}).get("suite") or options.suite
    settings = _bench_options(options, pair, chosen, name, recorded)
    try:
        report = {"suite": name, **suites.find(name).run(settings)}
    finally:
        progress.done()
    if before is None:
        return _show(options, report)
    findings = guard.compare(before, report)
    well = all(one.well for one in findings)
    if options.json:
        print_json({"well": well, "rows": [vars(one) for one in findings]})
    else:
        sys.stdout.write("".join(f"{one.sentence}\n" for one in findings))
    return int(not well)


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


def _choices(
    options: argparse.Namespace, pair: PairSpec, recorded: Mapping[str, Any] | None
) -> list[Choice]:
    """Return `ar`, then the named methods, all that the pair supports, or those of the record."""
    names = [name.strip() for name in options.methods.split(",") if name.strip()]
    names = choosing.served(pair, options.temperature) if names == ["all"] else names
    # Settings of the suite of steps do not belong to methods.
    settings = [] if options.suite == "steps" and not options.action else options.set
    if recorded is not None:
        names = [name for name in recorded["settings"].get("methods", ()) if name in METHODS]
    names = ["ar", *(name for name in dict.fromkeys(names) if name != "ar")]
    return pick(names, settings, pair, options.temperature)


def _bench_options(
    options: argparse.Namespace,
    pair: PairSpec,
    chosen: Sequence[Choice],
    name: str,
    recorded: Mapping[str, Any],
) -> Any:
    """Return what the suite is to do: by the options, else as in the record, else by the suite's
    defaults.
    """
    from specvl_demo.bench.guard import REPEATS
    from specvl_demo.bench.measure import BenchOptions
    from specvl_demo.bench.suites import find
    from specvl_demo.core.sampling import Sampling

    if options.temperature and name != "lossless":
        raise InputError(
            "--temperature needs --suite lossless: the other suites compare speeds of greedy"
            " answers."
        )
    suite = find(name)
    length = options.max_new_tokens or recorded.get("max_new_tokens") or suite.max_new_tokens
    return BenchOptions(
        pair=pair,
        choices=chosen,
        repeats=options.repeats or (REPEATS if recorded else suite.repeats),
        max_new_tokens=length,
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


def _recorded(option: str, path: str) -> dict[str, Any]:
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as fault:
        raise cannot_be("read", f"{option} {path}", fault) from None
    except ValueError:
        raise InputError(f"{option} {path} is not a JSON document.") from None
    if not isinstance(found, dict) or not {"suite", "machine", "settings", "rows"} <= set(found):
        raise InputError(f"{option} {path} is not a report of `bench --json`.")
    return found
