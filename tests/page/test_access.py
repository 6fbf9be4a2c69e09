"""Accessibility, checked by axe in every view, light and dark: nothing serious, nothing critical."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.page.test_race import finish_replay

pytestmark = pytest.mark.ui
BAD = ("serious", "critical")


@pytest.mark.parametrize(
    ("dark", "width"), [(False, 1440), (True, 1440), (True, 390)], ids=["light", "dark", "phone"]
)
def test_axe_finds_nothing_serious(opened, dark: bool, width: int):
    """Names, roles, contrast, keyboard: every view with a race on the page and everything unfolded."""
    opened.set_viewport_size({"width": width, "height": 900})
    opened.evaluate("(on) => document.body.classList.toggle('dark', on)", dark)
    finish_replay(opened)
    opened.evaluate("document.querySelectorAll('.vl details').forEach((d) => { d.open = true; })")
    opened.evaluate("specvl.race.select({lane: specvl.race.focus, token: 8})")
    found = {}
    for view in ("race", "inspect", "compare", "replay", "learn"):
        opened.evaluate("(name) => specvl.open(name)", view)
        opened.wait_for_timeout(300)
        # What stands around a view is the same for all of them.
        result = Axe().run(opened, context=".vl" if view == "race" else f"#vl-view-{view}")
        for fault in result.response["violations"]:
            if fault["impact"] in BAD:
                found[f"{view}: {fault['id']}"] = [node["html"][:160] for node in fault["nodes"]][:4]
    assert not found, found


def test_nothing_moves_for_those_who_asked_for_stillness(page, url: str):
    """With reduced motion the recorded race stands finished instead of playing."""
    page.emulate_media(reduced_motion="reduce")
    page.goto(url)
    page.wait_for_function("window.specvl?.ready", timeout=60_000)
    assert page.evaluate("specvl.race.finished && !specvl.view.player.playing")


@pytest.mark.parametrize(("width", "height"), [(390, 844), (720, 450)], ids=["phone", "zoom"])
def test_nothing_hangs_over_and_everything_is_reached(opened, width: int, height: int):
    """On a phone and at 200 % zoom (half the width): every view and its tab, the form unfolds."""
    opened.set_viewport_size({"width": width, "height": height})
    finish_replay(opened)
    for name in ("Inspect", "What if", "Compare", "Replay", "Learn", "Race"):
        tab = opened.get_by_role("tab", name=name)
        box = tab.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, name
        tab.click()
        assert opened.evaluate("document.documentElement.scrollWidth") <= width, name
    expect(opened.locator("#vl-question")).to_be_hidden()
    opened.get_by_role("button", name="Picture, question, methods").click()
    expect(opened.locator("#vl-question")).to_be_visible()
    expect(opened.locator("#vl-run")).to_be_in_viewport()
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
