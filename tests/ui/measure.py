"""Measurements of the page, to be run by hand on a machine with nothing else to do.

    python -m tests.ui.measure stream       made-up lanes at 60 rounds a second: from engine event to paint
    python -m tests.ui.measure observer     the engine's speed with a page watching over its speed without one
    python -m tests.ui.measure shares       CPU time of engine, server and browser, a race, watched and not

Each prints one JSON document. Needs the browser of the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from gradio_client import Client, handle_file
from playwright.sync_api import Page, sync_playwright

from specvl_demo.bench.footprint import listening
from tests.ui.conftest import FLAGS, ROOT, SYSTEM_BROWSER, serve
from tests.ui.test_race import SHOWN

ROUNDS_PER_S = 60
LANES = ("tabed", "sage")
TOKENS = 600
REPEATS = 5
PAIRS = 15
SETTLE_MS = 1000
POLL_MS = 250

# Notes when each round came from the engine and when the frame that shows it was on screen.
WATCH = """() => {
  const late = [], waiting = [];
  const record = specvl.runner.record.bind(specvl.runner);
  specvl.runner.record = (e) => { record(e); if (e.at) waiting.push(e.at); };
  const tasks = [];
  const note = (list) => list.getEntries().forEach((e) => tasks.push(e.duration));
  new PerformanceObserver(note).observe({type: 'longtask'});
  const frame = () => {
    const shown = waiting.splice(0);
    setTimeout(() => { const now = Date.now(); shown.forEach((at) => late.push(now - at)); });
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
  window.measured = {late, tasks};
}"""

ASK = """([methods, tokens]) => {
  specvl.ask.request.methods = methods;
  specvl.ask.request.sampling.max_new_tokens = tokens;
  specvl.ask.show();
  specvl.ask.run();
}"""


@contextmanager
def browser_page(url: str) -> Iterator[Page]:
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=SYSTEM_BROWSER, args=FLAGS)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(url)
        page.wait_for_function("window.specvl?.ready", timeout=120_000)
        yield page
        browser.close()


def watch_race(page: Page) -> None:
    """One race of what the page asks, to its end."""
    page.locator("#vl-run").click()
    page.wait_for_function("specvl.ask.running")
    # Seldom: asked in every frame, as is the standard, the question itself would keep the page painting.
    page.wait_for_function("!specvl.ask.running", polling=POLL_MS, timeout=300_000)


def run_alone(client: Client, names: list[str], picture: Path) -> dict[str, Any]:
    """The same race for a program: nothing is streamed, nothing painted."""
    return client.predict(
        prompt="Describe the picture in detail.",
        methods=",".join(names),
        image=[handle_file(str(picture))],
        api_name="/race",
    )


def stream() -> dict[str, Any]:
    """Three lanes at 60 rounds a second in all: engine event to paint, longest task, last state."""
    with tempfile.TemporaryDirectory() as folder:
        script = ROOT / "tests" / "ui" / "synthetic_app.py"
        serving = serve(script, Path(folder), "--folder", folder, "--pace", str(ROUNDS_PER_S))
        url = next(serving)
        with browser_page(url) as page:
            page.evaluate(WATCH)
            page.evaluate(ASK, [list(LANES), TOKENS])
            page.wait_for_function("specvl.ask.running")
            started = time.perf_counter()
            page.wait_for_function("!specvl.ask.running", timeout=300_000)
            seconds = time.perf_counter() - started
            told = page.evaluate("window.measured")
            whole = page.evaluate(
                f"{SHOWN} === specvl.race.list.reduce((n, lane) => n + lane.end.totals.n_tokens, 0)"
            )
        serving.close()
    late = sorted(told["late"])
    return {
        "rounds": len(late),
        "rounds_per_s": len(late) / seconds,
        "event_to_paint_ms": {"median": statistics.median(late), "p95": late[int(0.95 * (len(late) - 1))]},
        "longest_task_ms": max(told["tasks"], default=0.0),
        "last_state_shown": whole,
    }


def _served(folder: Path) -> tuple[Iterator[str], str, psutil.Process, Client]:
    """The demo's page on the shipped pair: what ends it, its address, its process, a program's way in."""
    serving = serve(ROOT / "app.py", folder)
    url = next(serving)
    return serving, url, psutil.Process(listening(int(url.rsplit(":", 1)[1]))), Client(url, verbose=False)


def observer() -> dict[str, Any]:
    """Decode tokens a second of the shipped pair, races with a page watching and without, in turns.

    The engine, which computes on one thread, has the first core; browser and page server share the last one,
    as the visitor's machine is another one than the server's. What the ratio holds is thus what streaming
    costs the engine itself, keeping what a follow-up needs, which only a page asks for, and whatever caches
    and memory the other core takes away. ratio: median of the ratios of neighbouring races; spread: their
    interquartile range. pinned: whether all could be held to their cores.
    """
    picture = ROOT / "examples" / "scene.png"
    with tempfile.TemporaryDirectory() as folder:
        serving, url, server, client = _served(Path(folder))
        alone, watched = [], []
        with browser_page(url) as page:
            pinned = _to_one_core([*_browsers(), server], max)
            pinned = pinned and _to_one_core(server.children(recursive=True), min)
            page.locator("[data-example=scene]").click()
            for _ in range(PAIRS + 1):
                watch_race(page)
                totals = page.evaluate("specvl.race.list.map((lane) => lane.end.totals)")
                watched.append(_speeds(totals))
                names = page.evaluate("specvl.race.list.map((lane) => lane.name)")
                told = run_alone(client, names, picture)
                alone.append([lane["tokens_per_s"] for lane in told["lanes"]])
        serving.close()
    lanes = range(len(names))
    without, beside = (
        [statistics.median(run[i] for run in runs[1:]) for i in lanes] for runs in (alone, watched)
    )
    ratios = [sorted(b[i] / a[i] for a, b in zip(alone[1:], watched[1:], strict=True)) for i in lanes]
    quarters = [statistics.quantiles(one, n=4) for one in ratios]
    return {
        "pinned": pinned,
        "lanes": names,
        "tokens_per_s_alone": without,
        "tokens_per_s_watched": beside,
        "ratio": [middle for _, middle, _ in quarters],
        "spread": [high - low for low, _, high in quarters],
    }


def _to_one_core(processes: list[psutil.Process], which: Callable[[set[int]], int]) -> bool:
    """Hold every thread of these to one of the cores there are; False where the system cannot."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    core = which(os.sched_getaffinity(0))
    for thread in (thread for one in processes for thread in one.threads()):
        with suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(thread.id, {core})
    return True


def shares() -> dict[str, Any]:
    """CPU milliseconds a race, by process, with a page watching and without: who could slow the engine down.

    CPU time, unlike speed, can be compared on a machine that is busy with something else. browser: its own
    process, its renderers and what paints for them, one by one.
    """
    picture = ROOT / "examples" / "scene.png"
    with tempfile.TemporaryDirectory() as folder:
        serving, url, server, client = _served(Path(folder))
        spent: dict[str, list[dict[str, float]]] = {"alone": [], "watched": []}
        with browser_page(url) as page:
            page.locator("[data-example=scene]").click()
            browsers = _browsers()
            names: list[str] = []
            for _ in range(REPEATS + 1):
                before = _cpu(server, browsers)
                watch_race(page)
                names = page.evaluate("specvl.race.list.map((lane) => lane.name)")
                page.wait_for_timeout(SETTLE_MS)
                spent["watched"].append(_since(before, _cpu(server, browsers)))
                before = _cpu(server, browsers)
                run_alone(client, names, picture)
                page.wait_for_timeout(SETTLE_MS)
                spent["alone"].append(_since(before, _cpu(server, browsers)))
        serving.close()
    return {
        "lanes": names,
        "cpu_ms": {
            how: {who: round(statistics.fmean(one[who] for one in runs[1:]), 1) for who in runs[0]}
            for how, runs in spent.items()
        },
    }


def _browsers() -> list[psutil.Process]:
    """The processes of the browser that was started here."""
    return [one for one in psutil.Process().children(recursive=True) if "chrom" in one.name()]


def _cpu(server: psutil.Process, browsers: list[psutil.Process]) -> dict[str, float]:
    """CPU milliseconds so far. The engine is the process that the server has started."""
    told = {"server": _spent_ms(server)}
    told["engine"] = sum(_spent_ms(child) for child in server.children(recursive=True))
    for one in browsers:
        kind = re.search(r"--type=([\w-]+)", " ".join(one.cmdline()))
        who = f"browser {kind[1]}" if kind else "browser"
        told[who] = told.get(who, 0.0) + _spent_ms(one)
    return told


def _spent_ms(process: psutil.Process) -> float:
    times = process.cpu_times()
    return 1000 * (times.user + times.system)


def _since(before: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    return {who: now[who] - ms for who, ms in before.items()}


def _speeds(totals: list[dict[str, float]]) -> list[float]:
    phases = ("draft_s", "verify_s", "commit_s", "other_s")
    return [lane["n_tokens"] / sum(lane[phase] for phase in phases) for lane in totals]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("stream", "observer", "shares"))
    options = parser.parse_args()
    load = os.getloadavg()[0]
    told = {"stream": stream, "observer": observer, "shares": shares}[options.what]()
    sys.stdout.write(
        json.dumps({"what": options.what, "load_before": load, "cpus": os.cpu_count(), **told}) + "\n"
    )


if __name__ == "__main__":
    main()
