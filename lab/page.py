"""Measures what the page costs: the time from an engine's event to the paint that shows it, and how
much a watching page slows the engine.

    python -m lab.page stream      made-up lanes at 100 rounds per second, trees of 64 nodes
    python -m lab.page observer    the engine's speed with a watching page over that without

For an otherwise idle machine, with the browser of the tests. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
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

from tests import browser
from tests.page.conftest import FAKE_PAGE, ROOT, serve
from tests.page.test_race import SHOWN
from tests.robustness.footprint import listening

ROUNDS_PER_S, TOKENS, PAIRS = 100, 400, 15
QUESTION = "Describe the picture in detail."
# Notes when each round came from the engine and when the frame that shows it was on screen.
WATCH = """() => {
  const late = [], waiting = [], tasks = [];
  const record = specvl.runner.record.bind(specvl.runner);
  specvl.runner.record = (e) => { record(e); if (e.at) waiting.push(e.at); };
  new PerformanceObserver((list) => list.getEntries().forEach((e) => tasks.push(e.duration)))
    .observe({type: 'longtask'});
  const frame = () => {
    const shown = waiting.splice(0);
    setTimeout(() => { const now = Date.now(); shown.forEach((at) => late.push(now - at)); });
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
  window.measured = {late, tasks};
}"""


@contextmanager
def opened(url: str) -> Iterator[Page]:
    """Open the page, without replaying races."""
    with sync_playwright() as play:
        path = browser.find(play)
        if path is None:
            sys.exit(browser.MISSING)
        chromium = play.chromium.launch(executable_path=path, args=browser.FLAGS)
        page = chromium.new_page(viewport={"width": 1440, "height": 900})
        page.goto(url)
        page.wait_for_function("window.specvl?.ready", timeout=120_000)
        page.emulate_media(reduced_motion="reduce")  # nothing is played back
        yield page
        chromium.close()


def watch_race(page: Page) -> list[Any]:
    """Run one race of what the page asks, to its end; return its lanes' names and totals."""
    page.evaluate("() => { window.before = specvl.race.meta; }")
    page.locator("#vl-run").click()
    page.wait_for_function(
        "specvl.race.meta !== window.before && specvl.race.meta.source === 'live'"
    )
    # Polled seldom: the default, once per frame, would itself keep the page painting.
    page.wait_for_function(
        "!specvl.ask.running && specvl.race.finished", polling=250, timeout=300_000
    )
    lanes: list[Any] = page.evaluate("specvl.race.list.map((lane) => [lane.name, lane.end.totals])")
    return lanes


def stream() -> dict[str, Any]:
    """Measure three lanes at 100 rounds per second in all, all of it drawn, as for a GPU elsewhere:
    engine event to paint, longest task, last state.
    """
    with tempfile.TemporaryDirectory() as folder:
        serving = serve(FAKE_PAGE, Path(folder), "--folder", folder, "--pace", str(ROUNDS_PER_S))
        with opened(next(serving)) as page:
            page.evaluate(WATCH)
            page.evaluate(
                """(tokens) => {
                  specvl.drawing.name = 'full';
                  specvl.ask.request.methods = ['tabed', 'dream'];
                  specvl.ask.request.sampling.max_new_tokens = tokens;
                  specvl.ask.show();
                }""",
                TOKENS,
            )
            began = time.perf_counter()
            lanes = watch_race(page)
            seconds = time.perf_counter() - began
            told = page.evaluate("window.measured")
            shown = page.evaluate(SHOWN)
        serving.close()
    late = sorted(told["late"])
    median, p95 = statistics.median(late), late[int(0.95 * (len(late) - 1))]
    return {
        "rounds": len(late),
        "rounds_per_s": len(late) / seconds,
        "event_to_paint_ms": {"median": median, "p95": p95},
        "longest_task_ms": max(told["tasks"], default=0.0),
        "last_state_shown": shown == sum(totals["n_tokens"] for _, totals in lanes),
    }


def observer() -> dict[str, Any]:
    """Decode tokens a second of the pocket pair, races with a page watching and without, in turns.

    The engine has the first core, browser and page server share the last one, as a visitor's
    machine is another one than the server's. ratio: median of the ratios of neighbouring races;
    spread: their interquartile range. pinned: whether all could be held to their cores.
    """
    with tempfile.TemporaryDirectory() as folder:
        serving = serve(ROOT / "app.py", Path(folder))
        url = next(serving)
        server = psutil.Process(listening(int(url.rsplit(":", 1)[1])))
        client = Client(url, verbose=False)
        alone, watched = [], []
        with opened(url) as page:
            page.locator("[data-example=scene]").click()
            watch_race(page)
            started = psutil.Process().children(recursive=True)
            browsers = [one for one in started if "chrom" in one.name()]
            pinned = _held([*browsers, server], max) and _held(server.children(recursive=True), min)
            for _ in range(PAIRS):
                lanes = watch_race(page)
                names = [name for name, _ in lanes]
                watched.append([_speed(totals) for _, totals in lanes])
                told = client.predict(
                    prompt=QUESTION,
                    pair="pocket",
                    methods=",".join(names),
                    image=[handle_file(str(ROOT / "examples" / "scene.png"))],
                    api_name="/race",
                )
                alone.append([lane["tokens_per_s"] for lane in told["lanes"]])
        serving.close()
    columns = [
        [b / a for a, b in zip(*pair, strict=True)] for pair in zip(zip(*alone), zip(*watched))
    ]
    quarters = [statistics.quantiles(ratios, n=4) for ratios in columns]
    return {
        "pinned": pinned,
        "lanes": names,
        "tokens_per_s_alone": [statistics.median(column) for column in zip(*alone)],
        "tokens_per_s_watched": [statistics.median(column) for column in zip(*watched)],
        "ratio": [middle for _, middle, _ in quarters],
        "spread": [high - low for low, _, high in quarters],
    }


def _held(processes: list[psutil.Process], which: Callable[[set[int]], int]) -> bool:
    """Pin every thread of these to one of the cores; return False if the system cannot."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    core = which(os.sched_getaffinity(0))
    for thread in (thread for process in processes for thread in process.threads()):
        with suppress(ProcessLookupError):  # it has already ended
            os.sched_setaffinity(thread.id, {core})
    return True


def _speed(totals: dict[str, float]) -> float:
    phases = ("draft_s", "verify_s", "commit_s", "other_s")
    return totals["n_tokens"] / sum(totals[phase] for phase in phases)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument("what", choices=("stream", "observer"))
    what = options.parse_args().what
    load = os.getloadavg()[0]
    told = {"stream": stream, "observer": observer}[what]()
    print(json.dumps({"what": what, "load_before": load, **told}))  # noqa: T201


if __name__ == "__main__":
    main()
