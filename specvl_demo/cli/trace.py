"""`trace check` and `trace show`: saved races, without torch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from specvl_demo.cli.parse import Refused
from specvl_demo.report import tables, trace


def run(options: argparse.Namespace) -> int:
    """Check: list every problem, refuse with the first. Show: sum up, or refuse."""
    name = tables.one_line(Path(options.file).name)
    lanes, problems = trace.inspect(options.file)
    if problems:
        if options.action == "check" and problems[0].line is not None:
            sys.stdout.writelines(f"{problem}\n" for problem in problems)
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        raise Refused(f"{name} is not a sound trace: {problems[0]}{more}.")
    if options.action == "show":
        sys.stdout.write(trace.summary(lanes) + "\n")
    else:
        rounds = sum(len(lane.rounds) for lane in lanes)
        cut = [lane.begin.lane for lane in lanes if lane.end is None]
        sys.stdout.write(
            f"{name} is sound: {len(lanes)} lanes, {rounds} rounds, totals equal the sums over the rounds"
            + (f"; cut short: {tables.one_line(', '.join(cut))}" if cut else "")
            + ".\n"
        )
    return 0
