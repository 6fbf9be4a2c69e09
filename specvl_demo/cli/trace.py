"""`trace check | show | html | figure`: saved races, without torch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from specvl_demo.cli.parse import InputError, file_error
from specvl_demo.records import LaneRecords
from specvl_demo.report import figure, html, tables, trace

DRAWN: dict[str, tuple[str, str, Callable[[Sequence[LaneRecords]], str]]] = {
    "html": (".html", "the page with this race", html.race_page),
    "figure": (".svg", "a figure, which browsers print as PDF,", figure.race_svg),
}
"""What each action writes of a race: the file's ending, its name, its content."""


def run_action(options: argparse.Namespace) -> int:
    """Run an action. `check` lists every problem; all fail on an invalid trace."""
    name = tables.one_line(Path(options.file).name)
    lanes, problems = trace.inspect_file(options.file)
    if problems:
        first, *further = problems
        if options.action == "check" and further:
            sys.stdout.writelines(f"{problem}\n" for problem in problems)
        more = f" ({len(further)} more)" if further else ""
        raise InputError(f"{name} is not a valid trace: {first}{more}.")
    if options.action == "show":
        sys.stdout.write(trace.summary(lanes) + "\n")
    elif options.action in DRAWN:
        suffix, what, content = DRAWN[options.action]
        out = Path(options.out)
        if out.suffix.lower() not in (suffix, suffix[:4]):
            raise InputError(f"--out {out} must end in {suffix}, since {what} is written.")
        try:
            out.write_text(content(lanes), "utf-8")
        except (OSError, ValueError) as fault:
            raise file_error("written", f"--out {out}", fault) from None
        sys.stdout.write(f"{out}\n")
    else:
        rounds = sum(len(lane.rounds) for lane in lanes)
        cut = [lane.begin.lane for lane in lanes if lane.end is None]
        sys.stdout.write(
            f"{name} is valid: {len(lanes)} lane{'s' * (len(lanes) != 1)},"
            f" {rounds} round{'s' * (rounds != 1)}, totals equal the sums over the rounds"
            + (f"; cut short: {tables.one_line(', '.join(cut))}" if cut else "")
            + ".\n"
        )
    return 0
