"""`trace check | show | html | plot | import | schema`: saved races, without torch."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from specvl_demo import records
from specvl_demo.cli.parse import InputError
from specvl_demo.report import imported, tables, trace


def run(options: argparse.Namespace) -> int:
    """Check lists every problem and refuses with the first; the others refuse a trace that is not
    sound.
    """
    if options.action == "schema":
        sys.stdout.write(json.dumps(records.schema(), indent=1) + "\n")
        return 0
    name = tables.one_line(Path(options.file).name)
    if options.action == "import":
        out = Path(options.out or Path(options.file).with_suffix(".trace.jsonl"))
        try:
            records.write(out, imported.from_vllm(trace.read(Path(options.file))))
        except records.RecordError as fault:
            raise InputError(f"{name} {fault}.") from None
        except OSError as fault:
            raise InputError(f"--out {out} cannot be written: {fault.strerror or fault}.") from None
        sys.stdout.write(f"{out}\n")
        return 0
    lanes, problems = trace.inspect(options.file)
    if problems:
        if options.action == "check" and problems[0].line is not None:
            sys.stdout.writelines(f"{problem}\n" for problem in problems)
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        raise InputError(f"{name} is not a sound trace: {problems[0]}{more}.")
    if options.action == "show":
        sys.stdout.write(trace.summary(lanes) + "\n")
    elif options.action in ("html", "plot"):
        from specvl_demo.report import html, plots

        out = Path(options.out or Path(options.file).with_suffix(".plots.html"))
        if out.suffix.lower() not in (".html", ".htm"):
            raise InputError(
                f"--out {out} must end in .html: a page with its charts is written, no picture."
            )
        text = (
            html.page(lanes) if options.action == "html" else html.file(plots.figures(lanes), name)
        )
        try:
            out.write_text(text, encoding="utf-8")
        except (OSError, ValueError) as fault:
            raise InputError(
                f"--out {out} cannot be written: {getattr(fault, 'strerror', None) or fault}."
            ) from None
        sys.stdout.write(f"{out}\n")
    else:
        rounds = sum(len(lane.rounds) for lane in lanes)
        cut = [lane.begin.lane for lane in lanes if lane.end is None]
        sys.stdout.write(
            f"{name} is sound: {len(lanes)} lanes, {rounds} rounds, totals equal the sums over the"
            " rounds" + (f"; cut short: {tables.one_line(', '.join(cut))}" if cut else "") + ".\n"
        )
    return 0
