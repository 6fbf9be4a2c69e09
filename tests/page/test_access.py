"""Accessibility, checked by axe in every view, light and dark: nothing serious, nothing
critical.
"""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.page.test_race import drawn, finish_replay

BAD = ("serious", "critical")
RULES = {"resultTypes": ["violations"]}


def test_axe_finds_nothing_serious(opened):
    """Names, roles, contrast, keyboard: every view with a race on the page and everything unfolded.

    Light on a wide screen, dark on a phone.
    """
    opened.emulate_media(reduced_motion="reduce")  # nothing fades in while it is looked at
    finish_replay(opened)
    opened.evaluate("document.querySelectorAll('.vl details').forEach((d) => { d.open = true; })")
    opened.evaluate("specvl.race.select({lane: specvl.race.focus, token: 8})")
    found = {}
    for dark, width in ((False, 1440), (True, 390)):
        opened.set_viewport_size({"width": width, "height": 900})
        opened.evaluate("(on) => document.body.classList.toggle('dark', on)", dark)
        for view in ("race", "compare", "learn"):
            opened.evaluate("(name) => specvl.open(name)", view)
            drawn(opened)
            # What stands around a view is the same for all of them.
            result = Axe().run(opened, ".vl" if view == "race" else f"#vl-view-{view}", RULES)
            for fault in result.response["violations"]:
                if fault["impact"] in BAD:
                    where = f"{view}, {width}, {'dark' if dark else 'light'}: {fault['id']}"
                    found[where] = [node["html"][:160] for node in fault["nodes"]][:4]
    assert not found, found


def test_nothing_hangs_over_and_everything_is_reached(opened):
    """On a phone and at 200 % zoom (half the width): every view and its tab, the form unfolds."""
    finish_replay(opened)
    sizes = ((390, 844), (720, 450))
    for name in ("Compare", "Learn", "Race"):
        tab = opened.get_by_role("tab", name=name)
        for width, height in sizes:
            opened.set_viewport_size({"width": width, "height": height})
            box = tab.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width, name
            tab.click()
            assert opened.evaluate("document.documentElement.scrollWidth") <= width, name
    unfold = opened.get_by_role("button", name="Picture, question, methods")
    for width, height in sizes:
        opened.set_viewport_size({"width": width, "height": height})
        expect(opened.locator("#vl-question")).to_be_hidden()
        unfold.click()
        expect(opened.locator("#vl-question")).to_be_visible()
        expect(opened.locator("#vl-run")).to_be_in_viewport()
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
        unfold.click()
