"""Screenshots of the page for the README and docs/: desktop and phone, light and dark.

    python -m lab.screenshots [--out FOLDER]

Shows the first recorded race that ships, finished, with a token picked in a round of which most was
kept: no model runs. Needs the browser of the tests.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from playwright.sync_api import Page

from lab.drawing import opened
from specvl_demo.places import ROOT

SHOTS = {
    "page": (1440, 930, "light"),
    "page-dark": (1440, 930, "dark"),
    "page-phone": (390, 844, "light"),
    "page-phone-dark": (390, 844, "dark"),
}
"""Width and height of the window, and the theme."""
PHONE = 600
SETTLE_MS = 1500
"""Charts are drawn one a frame."""

PICK = """() => {
  specvl.replay.finish();
  const lane = specvl.race.focused;
  const branches = (round) => new Set(round.tree.parent).size < round.tree.parent.length;
  const kept = (round) => (branches(round) ? 100 : 0) + round.path.length;
  const best = lane.rounds.reduce((a, b) => (kept(b) > kept(a) ? b : a));
  specvl.race.select({lane: lane.name, token: lane.totalsAfter(best.index).n_tokens + 1});
}"""


def take(beside: Page, name: str, folder: Path) -> None:
    """Take a screenshot of the page in a window of its own, beside one that is open."""
    (width, height, theme), browser = SHOTS[name], beside.context.browser
    assert browser is not None
    context = browser.new_context(
        viewport={"width": width, "height": height}, reduced_motion="reduce"
    )
    page = context.new_page()
    page.add_init_script(f"localStorage['specvl-theme'] = '\"{theme}\"'")
    page.goto(beside.url)
    page.wait_for_function("window.specvl?.ready && specvl.race.list.length", timeout=120_000)
    page.evaluate(PICK)
    if width < PHONE:  # below the form, where the race is
        page.evaluate("scrollTo(0, document.querySelector('.vl-main').offsetTop)")
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=folder / f"{name}.png")
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs", help="where they go (default: docs/)"
    )
    options = parser.parse_args()
    with opened(ROOT / "app.py") as page:
        for name in SHOTS:
            take(page, name, options.out)


if __name__ == "__main__":
    main()
