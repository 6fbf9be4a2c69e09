"""Measures what the page takes from the race that it shows, on one idle machine with its browser.

    python -m lab.drawing [--pairs pocket,photo] [--races 10]
    python -m lab.drawing --stream

For each pair, one question is raced by the command line and by a page that a browser shows, in
turns: AR's tokens per second by both, how many of the page's races give a speedup, and how far
these are from the command line's; also what the browser takes while a page rests. `--stream`: the
time from an engine's event to the paint that shows it, of three made-up lanes at 100 rounds per
second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Page, sync_playwright

from specvl_demo.places import EXAMPLES, ROOT
from tests.shared.server import FAKE_PAGE, SHOWN, run_python, server
from tools import browser

REST_S = 20.0
ROUNDS_PER_S, TOKENS = 100, 400
ASKED = {"pocket": ("scene.png", "sage"), "photo": ("cat.jpg", "chain")}
"""The picture and the method of each pair's race."""
QUESTION = "Describe the picture in detail."
TAKE = """([picture, question, method]) => {
  const example = specvl.catalog.examples.find((e) => e.media.some((m) => m.name === picture));
  Object.assign(specvl.form.request, specvl.form.of(example), {question, methods: [method],
    settings: {}, media: specvl.form.of(example).media.filter((m) => m.name === picture)});
  specvl.form.update();
  window.before = specvl.race.meta;
}"""
ENDED = (
    "specvl.race.meta !== window.before && specvl.race.meta.source === 'live' &&"
    " !specvl.form.running"
)
FIGURES = """() => {
  const [ar, lane] = specvl.race.list;
  const [a, b] = [ar, lane].map((one) => one.totalsAfter(Infinity).tokens_per_s);
  return {ar: a, speedup: b / a, pace: specvl.drawing.name, load: lane.end.load,
    watching: lane.end.watching, doubt: specvl.race.meta.compared.lanes[lane.name].doubt?.sentence};
}"""
# Notes when each round came from the engine and when the frame that shows it was on screen.
WATCH = """(tokens) => {
  const late = [], waiting = [], tasks = [];
  const on = specvl.runner.stream.on, record = on.record;
  on.record = (e) => { record(e); if (e.at) waiting.push(e.at); };
  new PerformanceObserver((list) => list.getEntries().forEach((e) => tasks.push(e.duration)))
    .observe({type: 'longtask'});
  const frame = () => {
    const shown = waiting.splice(0);
    setTimeout(() => { const now = Date.now(); shown.forEach((at) => late.push(now - at)); });
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
  window.measured = {late, tasks};
  window.before = specvl.race.meta;
  specvl.drawing.name = 'full';
  specvl.form.request.methods = ['tabed', 'dream'];
  specvl.form.request.sampling.max_new_tokens = tokens;
  specvl.form.update();
}"""


@dataclass(frozen=True)
class Race:
    """AR's tokens per second, the method's speedup, and why the page gives none ('' if it does)."""

    ar: float
    speedup: float
    doubt: str = ""
    pace: str = ""


def by_command(pair: str) -> Race:
    picture, method = ASKED[pair]
    words = ["race", "--pair", pair, "--methods", method, "--image", EXAMPLES / picture]
    done = run_python("-m", "specvl_demo", *words, "--prompt", QUESTION, "--json")
    done.check_returncode()
    ar, lane = json.loads(done.stdout)["lanes"]
    return Race(ar["tokens_per_s"], lane["speedup_decode"])


@contextmanager
def opened(script: Path, *options: str, threads: int | None = None) -> Iterator[Page]:
    """Serve a page and open it in a browser of this machine."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        play = stack.enter_context(sync_playwright())
        path = browser.find(play)
        if path is None:
            sys.exit(browser.MISSING)
        url, _ = stack.enter_context(server(script, Path(folder), *options, threads=threads))
        chromium = play.chromium.launch(executable_path=path, args=browser.FLAGS)
        page = chromium.new_page(viewport={"width": 1440, "height": 900})
        page.goto(url)
        page.wait_for_function("window.specvl?.ready", timeout=120_000, polling=250)
        yield page
        chromium.close()


def by_page(page: Page, pair: str) -> Race:
    picture, method = ASKED[pair]
    rested(page)
    page.evaluate(TAKE, [picture, QUESTION, method])
    run(page)
    told = page.evaluate(FIGURES)
    return Race(told["ar"], told["speedup"], told["doubt"] or "", told["pace"])


def run(page: Page) -> None:
    """Race what the page asks, to its end. Polled seldom: once a frame would keep it painting."""
    page.locator("#vl-run").click()
    page.wait_for_function(ENDED, polling=250, timeout=300_000)


def rested(page: Page) -> None:
    """Wait until nothing is played any more."""
    page.wait_for_function("!specvl.replay.playing", polling=250, timeout=120_000)


def resting_share(page: Page) -> float:
    """Return the share of a core that the browser takes while its page rests."""
    rested(page)
    time.sleep(8)  # Gradio's loader comes to rest
    processes = [one for one in psutil.Process().children(recursive=True) if "chrom" in one.name()]
    before = _seconds(processes)
    time.sleep(REST_S)
    return (_seconds(processes) - before) / REST_S


def _seconds(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes if process.is_running()]
    return sum(spent.user + spent.system for spent in times)


def measured(pair: str, races: int) -> dict[str, Any]:
    with opened(ROOT / "app.py", "--pair", pair) as page:
        rest = resting_share(page)
        by_page(page, pair)  # loads what the first race needs
        found = [(by_command(pair), by_page(page, pair)) for _ in range(races)]
    commands, pages = zip(*found, strict=True)
    given = [one.speedup for one in pages if not one.doubt]
    command = statistics.median(one.speedup for one in commands)
    return {
        "resting_share_of_a_core": rest,
        "ar_tokens_per_s": {
            "command": statistics.median(one.ar for one in commands),
            "page": statistics.median(one.ar for one in pages),
            "ratio": statistics.median(b.ar / a.ar for a, b in found),
        },
        "speedup": {
            "command": command,
            "page": statistics.median(given) if given else None,
            "given": f"{len(given)} of {races}",
            "apart": abs(statistics.median(given) / command - 1) if given else None,
        },
        "doubts": sorted({one.doubt for one in pages if one.doubt}),
        "paces": sorted({one.pace for one in pages}),
    }


def stream() -> dict[str, Any]:
    """Return ms from event to paint as for a GPU elsewhere, the longest task, and whether
    the last state was shown.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        opened(FAKE_PAGE, "--folder", folder, "--pace", str(ROUNDS_PER_S), threads=1) as page,
    ):
        page.emulate_media(reduced_motion="reduce")  # nothing is played back
        page.evaluate(WATCH, TOKENS)
        began = time.perf_counter()
        run(page)
        seconds = time.perf_counter() - began
        measured = page.evaluate("window.measured")
        tokens = page.evaluate("specvl.race.list.reduce((n, lane) => n + lane.tokens.length, 0)")
        whole = page.evaluate(SHOWN) == tokens
    late = sorted(measured["late"])
    return {
        "rounds": len(late),
        "rounds_per_s": len(late) / seconds,
        "event_to_paint_ms": statistics.median(late),
        "event_to_paint_ms_p95": late[int(0.95 * len(late))],
        "longest_task_ms": max(measured["tasks"], default=0.0),
        "last_state_shown": whole,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", default="pocket,photo")
    parser.add_argument("--races", type=int, default=10)
    parser.add_argument("--stream", action="store_true")
    options = parser.parse_args()
    if options.stream:
        report = stream()
    else:
        report = {pair: measured(pair, options.races) for pair in options.pairs.split(",")}
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
