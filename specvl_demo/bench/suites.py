"""The suites of `bench` as a table: what each measures, how it runs, how its report is shown.

To add a suite, write it in a file and add one row to SUITES.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specvl_demo.bench import ablations, lossless, measure, pages, papers
from specvl_demo.bench.measure import BenchOptions
from specvl_demo.bench.pages import Page, Report
from specvl_demo.options import NEW_TOKENS


@dataclass(frozen=True)
class Suite:
    """One row of the table. repeats, max_new_tokens, prompts: the defaults."""

    run: Callable[[BenchOptions], Report]
    page: Callable[[Report], Page]
    repeats: int = 5
    max_new_tokens: int = NEW_TOKENS.default
    prompts: int = 20


SUITES: dict[str, Suite] = {
    "pocket": Suite(measure.answers, pages.answers),
    "ablations": Suite(ablations.report, pages.ablations, repeats=3),
    "lossless": Suite(lossless.report, pages.differences, max_new_tokens=64, prompts=60),
    "papers": Suite(papers.report, pages.papers, max_new_tokens=80, prompts=30),
}


def find(name: str) -> Suite:
    if name not in SUITES:
        raise ValueError(f"There is no suite {name!r}; known: {', '.join(SUITES)}.")
    return SUITES[name]
