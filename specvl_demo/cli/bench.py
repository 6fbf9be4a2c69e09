"""`bench`: a suite measured, then printed as Markdown or JSON, put into a file, or held against a record."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specvl_demo import registry
from specvl_demo.cli import progress
from specvl_demo.cli.answer import find_pair, load_options, pick, served
from specvl_demo.cli.parse import Refused
from specvl_demo.methods import METHODS, Choice
from specvl_demo.pairs import Pair
from specvl_demo.registry import Loaded

OWN_SETTINGS = ("steps",)
"""Suites whose --set is not about methods."""


def run(options: argparse.Namespace) -> int:
    """Check, load, measure, print."""
    if options.recorded:
        return _show(options, _recorded("--from", options.recorded))
    pair = find_pair(options)
    before = _recorded("--guard", options.guard) if options.guard else None
    chosen = _choices(options, pair, before)
    from specvl_demo.bench import guard, suites

    try:
        if before is not None:
            guard.settings_of(before)
        suite = suites.find(options.action or (before or {}).get("suite") or options.suite)
        report = {"suite": suite.name, **suite.run(_asked(options, pair, chosen, suite, before))}
        findings = guard.compare(before, report) if before is not None else None
    except ValueError as reason:
        raise Refused(str(reason)) from None
    finally:
        progress.done()
    return _show(options, report) if findings is None else _say(findings, options.json)


def _show(options: argparse.Namespace, report: dict[str, Any]) -> int:
    """The report as JSON, as Markdown, or in sections of files; without ratios where those mean little."""
    if options.json and not options.write:
        _print_json(report)
        return 0
    from specvl_demo.bench import measure, pages, suites

    try:
        page_of = suites.find(report["suite"]).page
        page = page_of(report if options.busy else measure.held_back(report))
        if measure.is_busy(report) and not options.busy and page_of is pages.answers:
            page.before.append(measure.busy_sentence(report["machine"]))
        for file in options.write:
            pages.write(page, Path(file), report["suite"])
    except ValueError as reason:
        raise Refused(str(reason)) from None
    if not options.write:
        sys.stdout.write(page.markdown())
    return 0


def _choices(options: argparse.Namespace, pair: Pair, recorded: Mapping[str, Any] | None) -> list[Choice]:
    """`ar`, then the methods that were named, all that the pair serves, or those of the record."""
    names = [name.strip() for name in options.methods.split(",") if name.strip()]
    names = served(pair) if names == ["all"] else names
    settings = [] if options.suite in OWN_SETTINGS and not options.action else options.set
    if recorded is not None:
        names = [name for name in recorded["settings"]["methods"] if name in METHODS]
    return pick(["ar", *(name for name in dict.fromkeys(names) if name != "ar")], settings, pair, 0.0)


def _asked(
    options: argparse.Namespace,
    pair: Pair,
    chosen: Sequence[Choice],
    suite: Any,
    recorded: Mapping[str, Any] | None,
) -> Any:
    """What the suite is to do: as the options say, else as the record was made, else as the suite does."""
    from specvl_demo.bench.suites import Asked

    before = recorded["settings"] if recorded is not None else {}

    def number(name: str) -> int:
        return getattr(options, name) or before.get(name) or getattr(suite, name)

    def load(roles: Sequence[str]) -> Loaded:
        return registry.load(pair, list(roles), None, progress.tell, load_options(options))

    return Asked(
        pair=pair,
        choices=chosen,
        named=options.methods != "all",
        repeats=number("repeats"),
        max_new_tokens=number("max_new_tokens"),
        prompts=number("prompts"),
        load=load,
        tell=progress.tell,
        peers=options.peers or len(before.get("rivals", ())) > 1,
        busy=options.busy,
        dtype=options.dtype,
        data=options.data,
        media=Path(options.media) if options.media else None,
        settings=dict(options.set),
    )


def _recorded(option: str, path: str) -> dict[str, Any]:
    """A report that `bench --json` once printed."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as fault:
        raise Refused(f"{option} {path} cannot be read: {fault.strerror or fault}.") from None
    except ValueError:
        raise Refused(f"{option} {path} is no JSON document.") from None
    if not isinstance(found, dict) or not {"suite", "machine", "settings", "rows"} <= set(found):
        raise Refused(f"{option} {path} is no report of `bench --json`.")
    return found


def _say(findings: Sequence[Any], as_json: bool) -> int:
    """A sentence a row; exit code 1 where any is worse."""
    if as_json:
        _print_json({"well": all(one.well for one in findings), "rows": [vars(one) for one in findings]})
    else:
        sys.stdout.write("".join(f"{one.sentence}\n" for one in findings))
    return int(not all(one.well for one in findings))


def _print_json(document: object) -> None:
    sys.stdout.write(json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")
