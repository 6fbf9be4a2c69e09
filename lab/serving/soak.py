"""Random visitors against a running page for some minutes: who was served, refused, failed, what
leaked.

    python -m lab.serving.soak --minutes 30 [--url URL] [--pair ID] [--visitors 4] [--seed 0]
      [--workers 1] [--kill SECONDS]

Starts the page where no URL is given, and then tells too how late its event loop was; prints one
JSON document, exit code 1 where something failed or leaked. No visitor begins after the time is
over, none waits longer than the page's own limits. --kill: a process that computes is killed so
often, and those whose run it had must be told.
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
from contextlib import ExitStack, aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from lab.serving import late_app
from lab.serving.visits import (
    BUSY,
    DIED,
    KINDS,
    OUTCOMES,
    Tally,
    Visit,
    Wrong,
    refused_files,
)
from specvl_demo import pairs
from specvl_demo.serving import choosing
from tests.robustness.footprint import Sample, growth, listening, look
from tests.robustness.support import server
from tests.robustness.visitor import Turned, Visitor

WARM_SHARE, WARM_MOST_S = 0.2, 300.0
"""What of the time passes before memory is judged: allocators and caches fill on first use."""
SETTLE_S = 5.0
LANES = 4
JUDGED = 100
"""Fewer visitors than this say nothing of growth."""
MOST_GROWTH = 0.03
SPARE = {"threads": 48, "files": 16}
"""How many more than at the start may be held at the end: the web server's pool grows to 40
threads.
"""
LOGS_OF_A_KILLED = 2
"""Files more for each worker that was killed: Ray's log reader keeps its two logs open, up to a
limit that Ray sets.
"""


async def soak(
    url: str,
    pid: int | None,
    minutes: float,
    seed: int,
    visitors: int,
    pair: str,
    methods: list[str],
    late: Path | None = None,
    kill_s: float | None = None,
) -> dict[str, Any]:
    """Drive the page at `url` for some minutes; pid: of its server, None where it is not on this
    machine. late: where it writes how late its event loop is. kill_s: see --kill.

    Before the time begins every method runs once, so that all models are loaded, and the corpus is
    made: visitors that wait for it would be taken for such as do not go on.
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
    if late is not None:
        late.write_text("")
        late_app.steps(late).write_text("")
    looking = asyncio.create_task(_watch(pid, samples))
    killing = asyncio.create_task(_kill(pid, kill_s, random.Random(seed), tally))
    crowd = []
    for number in range(visitors):
        rng = random.Random(f"{seed}/{number}")
        given = partial(Visit, rng=rng, tally=tally, pair=pair, methods=methods, until=until)
        crowd.append(_visits(url, f"10.0.0.{number + 1}", given, kill_s is not None))
    await asyncio.gather(*crowd)
    killing.cancel()
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
        "event_loop_late_ms": lateness(late.read_text().split()) if late is not None else None,
        "event_loop_longest_steps": longest(late_app.steps(late)) if late is not None else None,
        "load_average": round(os.getloadavg()[1], 1),
        "killed": tally.killed,
        "threads": _change(quiet, last, "threads"),
        "files": _change(quiet, last, "files"),
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
    if grown is not None and report["asked"] >= JUDGED and grown > MOST_GROWTH:
        wrong.append(f"Memory grew by {grown:.1%} after the warm-up, more than {MOST_GROWTH:.0%}.")
    spares = {**SPARE, "files": SPARE["files"] + LOGS_OF_A_KILLED * report["killed"]}
    for what, spare in spares.items():
        change = report[what]
        if change is not None and change["end"] > change["start"] + spare:
            wrong.append(
                f"The server held {change['start']} {what} at the start and {change['end']} at the"
                " end."
            )
    return wrong


def lateness(lines: Sequence[str]) -> dict[str, float]:
    """Milliseconds by which what was due in an event loop came too late."""
    late = sorted(map(float, lines))
    share = statistics.quantiles(late, n=1000, method="inclusive")
    return {
        "p50": share[499],
        "p99": share[989],
        "p999": share[998],
        "max": late[-1],
        "looks": len(late),
    }


def longest(steps: Path) -> list[tuple[float, str]]:
    """The steps of an event loop that computed longest: milliseconds of processor time, and what
    each was.
    """
    told = (line.split(" ", 1) for line in steps.read_text().splitlines())
    found = sorted(((1000 * float(seconds), step[:200]) for seconds, step in told), reverse=True)
    return found[:3]


async def _kill(pid: int | None, every_s: float | None, rng: random.Random, tally: Tally) -> None:
    """Kill a process that computes, one after the other: the page's own, or an actor of Ray."""
    while pid is not None and every_s is not None:
        await asyncio.sleep(every_s)
        every = psutil.Process(pid).children(recursive=True)
        for one in rng.sample(every, len(every)):
            with suppress(psutil.Error):  # it has just ended
                command = " ".join(one.cmdline())
                own = one.ppid() == pid and "spawn_main" in command
                if own or command.startswith("ray::Actor"):
                    one.kill()
                    tally.killed += 1
                    break


async def _watch(pid: int | None, samples: list[Sample]) -> None:
    while pid is not None:
        samples.append(look(pid))
        await asyncio.sleep(1.0)


def _change(first: Sample | None, last: Sample | None, what: str) -> dict[str, int] | None:
    if first is None or last is None:
        return None
    return {"start": getattr(first, what), "end": getattr(last, what)}


async def _visits(url: str, address: str, given: partial[Visit], killed: bool) -> None:
    """One visitor after the other, until the time is over. killed: runs may end with the engine."""
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
            elif killed and DIED.search(str(fault)):
                tally.outcomes["told"] += 1
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
    parser.add_argument("--kill", type=float, metavar="SECONDS", help="kill one so often")
    asked = parser.parse_args(argv)
    methods = choosing.served(pairs.find(asked.pair))
    late = None
    with ExitStack() as stack:
        if asked.url is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="specvl-soak-")))
            late = folder / "late.txt"
            options = ("--late", late, "--pair", asked.pair, "--workers", asked.workers)
            url, pid = stack.enter_context(
                server(Path(late_app.__file__), folder, *map(str, options))
            )
        else:
            url, pid = asked.url.rstrip("/"), listening(urlsplit(asked.url).port or 80)
        report = asyncio.run(
            soak(
                url,
                pid,
                asked.minutes,
                asked.seed,
                asked.visitors,
                asked.pair,
                methods,
                late,
                asked.kill,
            )
        )
    wrong = verdict(report)
    sys.stdout.write(
        json.dumps(report | {"ok": not wrong, "wrong": wrong}, ensure_ascii=False) + "\n"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
