"""Screenshots of the page for the README and docs/: desktop and phone, light and dark.

    python -m lab.screenshots [--out FOLDER]

Shows the first recorded race that ships, finished, with a token picked in a round of which most was
kept: no model runs. Needs the browser of the tests.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests import browser as installed
from tests.page.conftest import ROOT, serve


@dataclass(frozen=True)
class Shot:
    """A picture of the page: file name, size of the window, colours."""

    name: str
    width: int
    height: int
    dark: bool


SHOTS = (
    Shot("page", 1440, 930, False),
    Shot("page-dark", 1440, 930, True),
    Shot("page-phone", 390, 844, False),
    Shot("page-phone-dark", 390, 844, True),
)
PHONE = 600
SETTLE_MS = 1500
"""Charts are drawn one a frame."""

PICK = """() => {
  specvl.view.player.finish();
  const lane = specvl.race.focused;
  const branches = (round) => new Set(round.tree.parent).size < round.tree.parent.length;
  const kept = (round) => (branches(round) ? 100 : 0) + round.path.length;
  const best = lane.rounds.reduce((a, b) => (kept(b) > kept(a) ? b : a));
  specvl.race.select({lane: lane.name, token: lane.at(best.index).tokens + 1});
}"""


def take(browser: Browser, url: str, shot: Shot, folder: Path) -> Path:
    """One screenshot of the page as it stands in the window."""
    size = {"width": shot.width, "height": shot.height}
    context = browser.new_context(viewport=size, reduced_motion="reduce")
    page = context.new_page()
    page.add_init_script(
        f"localStorage.setItem('specvl-theme', '{'dark' if shot.dark else 'light'}')"
    )
    page.goto(url)
    page.wait_for_function("window.specvl?.ready && specvl.race.list.length", timeout=120_000)
    page.evaluate(PICK)
    if shot.width < PHONE:  # below the form, where the race is
        page.evaluate("scrollTo(0, document.querySelector('.vl-main').offsetTop)")
    page.wait_for_timeout(SETTLE_MS)
    path = folder / f"{shot.name}.png"
    page.screenshot(path=path)
    context.close()
    return path


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs", help="where they go (default: docs/)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        serving = serve(ROOT / "app.py", Path(folder))
        url = next(serving)
        browser = play.chromium.launch(executable_path=installed.find(play), args=installed.FLAGS)
        for shot in SHOTS:
            take(browser, url, shot, options.out)
        browser.close()
        serving.close()


if __name__ == "__main__":
    main()
