"""The suites of `bench` as a table: what each measures, how it runs, how its report is shown.

To add a suite, write it in a file and add one row to SUITES.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specvl_demo.bench import ablations, device, lossless, measure, pages, papers, steps
from specvl_demo.bench.measure import BenchOptions
from specvl_demo.bench.pages import Page, Report
from specvl_demo.methods.base import Choice
from specvl_demo.options import NEW_TOKENS, Quantised
from specvl_demo.pairs import PAIRS, PairSpec
from specvl_demo.pairs.machine import Gpu, Machine
from specvl_demo.serving import availability, ceilings, choosing
from specvl_demo.serving.ceilings import Device

WAYS: tuple[tuple[Quantised, float], ...] = (
    ("none", 2.0),
    ("4bit", availability.QUANTISED_BYTES["4bit"]),
)
"""How a target's weights may be stored on a device, and bytes per number."""


def derived() -> Report:
    """Return `machine, settings, rows`: for every pair the lossless method with the highest ceiling
    on every device, at the assumed acceptance and, where one was published, at that.

    Derived from data sheets; nothing is measured.
    """
    rows = []
    for pair in (pair for pair in PAIRS if not pair.shipped):
        served = (choosing.choose(pair, name) for name in choosing.served(pair) if name != "ar")
        choices = [choice for choice in served if choice.lossless]
        for published in (True, False) if pair.accepted else (False,):
            row: dict[str, str | None] = {
                "pair": pair.id,
                "acceptance": "published" if published else f"{ceilings.ACCEPTANCE:.0%}",
            }
            best = {one.name: _best(pair, choices, one, published) for one in ceilings.DEVICES}
            rows.append(row | best)
    acceptance = {"lookup": ceilings.LOOKUP_ACCEPTANCE, "drafter": ceilings.ACCEPTANCE}
    sources = {
        pair.id: {name: f"{tau:g} ({where})" for name, (tau, where) in pair.accepted.items()}
        for pair in PAIRS
        if pair.accepted
    }
    settings = {"acceptance": acceptance, "published": sources}
    return {"machine": {}, "settings": settings, "rows": rows}


def _best(pair: PairSpec, choices: Sequence[Choice], device: Device, published: bool) -> str | None:
    """Return the highest ceiling with its method; None if the pair does not fit."""
    found = []
    for choice in choices:
        roles = [role for role in pair.drafters if role == choice.drafter.role]
        machine = Machine(1, 0, "", (Gpu(device.name, int(device.memory_bytes)),))
        for quantised, size in WAYS:
            needs = availability.needs_bytes(pair, "bfloat16", roles, quantised, machine.device)
            if needs <= device.memory_bytes * availability.USABLE_SHARE:
                at_most = ceilings.ceiling(pair, choice, device, target_bytes=size)
                speedup = at_most.published if published else at_most.speedup
                if speedup is None:
                    break
                packed = "" if quantised == "none" else ", 4-bit"
                found.append((speedup, f"{speedup:.1f} {choice.method.name}{packed}"))
                break
    return max(found, key=lambda one: one[0])[1] if found else None


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
    "steps": Suite(steps.report, pages.steps, repeats=20),
    "lossless": Suite(lossless.report, pages.differences, max_new_tokens=64, prompts=60),
    "device": Suite(device.report, pages.device, max_new_tokens=64, prompts=40),
    "ceilings": Suite(lambda options: derived(), pages.ceilings),
    "papers": Suite(papers.report, pages.papers, max_new_tokens=80, prompts=30),
}


def find(name: str) -> Suite:
    if name not in SUITES:
        raise ValueError(f"There is no suite {name!r}; known: {', '.join(SUITES)}.")
    return SUITES[name]
