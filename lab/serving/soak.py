"""Random visitors against a running page for some minutes: who was served, refused, failed, what
leaked.

    python -m lab.serving.soak --minutes 30 [--url URL] [--pair ID] [--visitors 4] [--seed 0]
      [--workers 1]

Starts the page where no URL is given; prints one JSON document, exit code 1 where something failed
or leaked. No visitor begins after the time is over, none waits longer than the page's own limits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from lab.serving.visits import BUSY, KINDS, OUTCOMES, Tally, Visit, Wrong, refused_files
from specvl_demo import pairs
from specvl_demo.places import ROOT
from specvl_demo.serving import choosing
from tests.shared.server import Sample, listening, look, server
from tests.shared.visitor import Turned, Visitor

WARM_SHARE, WARM_MOST_S = 0.2, 300.0
"""What of the time passes before memory is judged: allocators and caches fill on first use."""
SETTLE_S = 5.0
LANES = 4
JUDGED = 100
"""Fewer visitors than this say nothing of growth."""
MAX_GROWTH = 0.03
SPARE = {"threads": 48, "files": 16}
"""How many more than at the start may be held at the end: the server's pool grows to 40."""


async def soak(
    url: str,
    pid: int | None,
    minutes: float,
    seed: int,
    visitors: int,
    pair: str,
    methods: list[str],
) -> dict[str, Any]:
    """Drive the page at `url` for some minutes; pid: of its server, None where it is not here.

    Before that every method runs once, so that all models are loaded, and the corpus is made.
    """
    refused_files()
    async with Visitor(url) as first:
        for at in range(0, len(methods), LANES):
            asked = {
                "pair": pair,
                "question": "?",
                "methods": methods[at : at + LANES],
                "max_new_tokens": 4,
            }
            async with aclosing(first.ask(asked)) as running:
                async for event in running:
                    if event["k"] == "error":
                        raise Turned(event["text"])
    started = time.monotonic()
    until = started + 60 * minutes
    tally, samples = Tally(), []
    quiet = look(pid) if pid is not None else None
    looking = asyncio.create_task(_watch(pid, samples))
    crowd = []
    for number in range(visitors):
        rng = random.Random(f"{seed}/{number}")
        given = partial(Visit, rng=rng, tally=tally, pair=pair, methods=methods, until=until)
        crowd.append(_visits(url, f"10.0.0.{number + 1}", given))
    await asyncio.gather(*crowd)
    await asyncio.sleep(SETTLE_S)
    looking.cancel()
    spent = time.monotonic() - started
    last = look(pid) if pid is not None else None
    memory = growth(samples, started + min(WARM_SHARE * spent, WARM_MOST_S))
    return {
        "seconds": round(spent, 1),
        "seed": seed,
        "visitors_at_once": visitors,
        "asked": sum(tally.kinds.values()),
        "kinds": dict(sorted(tally.kinds.items())),
        **{outcome: tally.outcomes[outcome] for outcome in OUTCOMES},
        "failed": tally.failed,
        "faults": tally.faults,
        "lossless_lanes_identical_to_ar": tally.identical,
        "tokens": tally.tokens,
        "most_rounds_of_a_lane_after_stop": tally.rounds_after_stop,
        "memory": memory,
        "load_average": round(os.getloadavg()[1], 1),
        "threads": _change(quiet, last, "threads"),
        "files": _change(quiet, last, "files"),
    }


def growth(samples: Sequence[Sample], settled_at: float) -> dict[str, Any]:
    """How memory developed after `settled_at` (monotonic seconds).

    Counted are the processes that were there throughout; decoders of clips come and go. start_mb
    and end_mb are medians of the first and the last fifth, slope_mb_per_min is that of a
    least-squares line. All None where there are too few samples to say.
    """
    after = [sample for sample in samples if sample.at >= settled_at]
    steady = set.intersection(*(set(sample.rss) for sample in after)) if len(after) >= 10 else ()
    if not steady:
        names = ("start_mb", "end_mb", "growth", "slope_mb_per_min")
        return {**dict.fromkeys(names), "processes": 0}
    sums = [sum(sample.rss[pid] for pid in steady) / 2**20 for sample in after]
    fifth = len(sums) // 5
    start, end = statistics.median(sums[:fifth]), statistics.median(sums[-fifth:])
    minutes = [(sample.at - after[0].at) / 60 for sample in after]
    slope = statistics.linear_regression(minutes, sums).slope
    return {
        "start_mb": round(start, 1),
        "end_mb": round(end, 1),
        "growth": round(end / start - 1, 4),
        "slope_mb_per_min": round(slope, 2),
        "processes": len(steady),
    }


def verdict(report: dict[str, Any]) -> list[str]:
    """What is wrong, in sentences; empty where all is well."""
    wrong = []
    if report["failed"]:
        wrong.append(
            f"{report['failed']} of {report['asked']} visitors did not get what they must."
        )
    if not report["served"]:
        wrong.append("Nobody was served.")
    grown = report["memory"]["growth"]
    if grown is not None and report["asked"] >= JUDGED and grown > MAX_GROWTH:
        wrong.append(f"Memory grew by {grown:.1%} after the warm-up, more than {MAX_GROWTH:.0%}.")
    for what, spare in SPARE.items():
        change = report[what]
        if change is not None and change["end"] > change["start"] + spare:
            wrong.append(
                f"The server held {change['start']} {what} at the start and {change['end']} at the"
                " end."
            )
    return wrong


async def _watch(pid: int | None, samples: list[Sample]) -> None:
    while pid is not None:
        samples.append(look(pid))
        await asyncio.sleep(1.0)


def _change(first: Sample | None, last: Sample | None, what: str) -> dict[str, int] | None:
    if first is None or last is None:
        return None
    return {"start": getattr(first, what), "end": getattr(last, what)}


async def _visits(url: str, address: str, given: partial[Visit]) -> None:
    """One visitor after the other, until the time is over."""
    tally: Tally = given.keywords["tally"]
    while time.monotonic() < given.keywords["until"]:
        kind = given.keywords["rng"].choices(list(KINDS), [weight for weight, _ in KINDS.values()])[
            0
        ]
        tally.kinds[kind] += 1
        try:
            async with Visitor(url, address=address) as visitor:
                outcome = await KINDS[kind][1](given(visitor))
                await visitor.leave()
                tally.outcomes[outcome] += 1
        except (Wrong, Turned, httpx.HTTPError, ValueError) as fault:
            if isinstance(fault, Turned) and BUSY.search(str(fault)):
                tally.outcomes["busy"] += 1
                await asyncio.sleep(1.0)
            else:
                where = fault.request.url.path if isinstance(fault, httpx.RequestError) else ""
                tally.fault(f"{kind}: {type(fault).__name__} {where}: {fault}")


def main(argv: Sequence[str] | None = None) -> int:
    """Drive the page, print the report; 1 where it shows a fault."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--url", help="a page on this machine (default: one started for this)")
    parser.add_argument("--pair", default="pocket")
    parser.add_argument("--visitors", type=int, default=4, help="at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="above 1: actors of Ray")
    asked = parser.parse_args(argv)
    methods = choosing.supported_methods(pairs.find(asked.pair))
    with ExitStack() as stack:
        if asked.url is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="specvl-soak-")))
            options = ("--pair", asked.pair, "--workers", str(asked.workers))
            url, pid = stack.enter_context(server(ROOT / "app.py", folder, *options))
        else:
            url, pid = asked.url.rstrip("/"), listening(urlsplit(asked.url).port or 80)
        run = asked.minutes, asked.seed, asked.visitors, asked.pair, methods
        report = asyncio.run(soak(url, pid, *run))
    wrong = verdict(report)
    sys.stdout.write(
        json.dumps(report | {"ok": not wrong, "wrong": wrong}, ensure_ascii=False) + "\n"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
