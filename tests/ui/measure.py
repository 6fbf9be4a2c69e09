"""Measurements of the page, to be run by hand on a machine with nothing else to do.

    python -m tests.ui.measure stream       made-up lanes at 60 rounds a second: from engine event to paint
    python -m tests.ui.measure observer     the engine's speed with a page watching over its speed without one

Each prints one JSON document. Needs the browser of the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradio_client import Client, handle_file
from playwright.sync_api import Page, sync_playwright

from tests.ui.conftest import FLAGS, ROOT, SYSTEM_BROWSER, serve
from tests.ui.test_race import SHOWN

ROUNDS_PER_S = 60
LANES = ("tabed", "sage")
TOKENS = 600
REPEATS = 5

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


def observer() -> dict[str, Any]:
    """Decode tokens a second of the shipped pair, races with a page watching and without, in turns."""
    picture = ROOT / "examples" / "scene.png"
    with tempfile.TemporaryDirectory() as folder:
        serving = serve(ROOT / "app.py", Path(folder))
        url = next(serving)
        client = Client(url, verbose=False)
        alone, watched = [], []
        with browser_page(url) as page:
            page.locator("[data-example=scene]").click()
            for _ in range(REPEATS + 1):
                page.locator("#vl-run").click()
                page.wait_for_function("specvl.ask.running")
                page.wait_for_function("!specvl.ask.running", timeout=300_000)
                totals = page.evaluate("specvl.race.list.map((lane) => lane.end.totals)")
                watched.append(_speeds(totals))
                names = page.evaluate("specvl.race.list.map((lane) => lane.name)")
                told = client.predict(
                    prompt="Describe the picture in detail.",
                    methods=",".join(names),
                    image=[handle_file(str(picture))],
                    api_name="/race",
                )
                alone.append([lane["tokens_per_s"] for lane in told["lanes"]])
        serving.close()
    without, beside = (
        [statistics.median(run[i] for run in runs[1:]) for i in range(len(names))]
        for runs in (alone, watched)
    )
    return {
        "lanes": names,
        "tokens_per_s_alone": without,
        "tokens_per_s_watched": beside,
        "ratio": [b / a for a, b in zip(without, beside)],
    }


def _speeds(totals: list[dict[str, float]]) -> list[float]:
    phases = ("draft_s", "verify_s", "commit_s", "other_s")
    return [lane["n_tokens"] / sum(lane[phase] for phase in phases) for lane in totals]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("stream", "observer"))
    options = parser.parse_args()
    load = os.getloadavg()[0]
    told = {"stream": stream, "observer": observer}[options.what]()
    sys.stdout.write(
        json.dumps({"what": options.what, "load_before": load, "cpus": os.cpu_count(), **told}) + "\n"
    )


if __name__ == "__main__":
    main()
