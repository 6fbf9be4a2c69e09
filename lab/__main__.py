"""`python -m lab SUITE`: what somebody may want to measure again.

lossless    how often every lossless method differs from AR
heads       trained heads on equal terms
papers      the papers' claims with their controls
rows        what a step costs by how many nodes it scores at once
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from lab import heads, lossless, papers, rows
from lab.options import LabOptions
from specvl_demo import pairs
from specvl_demo.core.sampling import Sampling
from specvl_demo.pairs.fitting import Options
from specvl_demo.report import tables
from specvl_demo.serving import choosing, loader

SUITES: dict[str, Callable[[LabOptions], dict[str, Any]]] = {
    "lossless": lossless.report,
    "heads": heads.report,
    "papers": papers.report,
    "rows": rows.report,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m lab", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--pair", default="pocket")
    parser.add_argument("--methods", default="all", help="comma-separated")
    parser.add_argument("--data", help="a file of questions in place of the pair's own")
    parser.add_argument("--prompts", type=int, default=30, help="number of questions")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype")
    parser.add_argument("--heads", type=Path, help="a folder with a folder for each trained head")
    parser.add_argument("--claim", help="of papers: one of them")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    names = asked.methods.split(",")
    try:
        pair = pairs.find(asked.pair)
        if names == ["all"]:
            names = choosing.supported_methods(pair, asked.temperature)
        choices = [
            choosing.choose(pair, name, None, asked.temperature)
            for name in dict.fromkeys(["ar", *names])
        ]
    except ValueError as reason:
        parser.error(str(reason))
    options = LabOptions(
        pair=pair,
        choices=choices,
        repeats=asked.repeats,
        max_new_tokens=asked.max_new_tokens,
        prompts=asked.prompts,
        load=partial(loader.load_pair, pair, options=Options(asked.dtype)),
        tell=lambda text, share: _say(f"{share:4.0%} {text}", sys.stderr),
        data=asked.data,
        heads=asked.heads,
        claim=asked.claim,
        sampling=Sampling(asked.temperature, seed=asked.seed),
    )
    report = SUITES[asked.suite](options)
    if asked.json:
        _say(json.dumps(report, indent=1))
        return 0
    flat = [{k: v for k, v in row.items() if not isinstance(v, dict)} for row in report["rows"]]
    _say(tables.to_markdown(flat, list(flat[0])))
    for claim in report.get("claims", ()):
        _say(f"* {claim['paper']}: {claim['verdict']}")
    return 0


def _say(text: str, file: TextIO = sys.stdout) -> None:
    file.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
