"""The other views: inspect, replay, compare, learn; conversation, links, custom methods,
settings.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from playwright.sync_api import expect

from tests.page.conftest import ready
from tests.page.test_race import finish_replay, unfold


def open_tab(page, name: str) -> None:
    page.get_by_role("tab", name=name).click()
    expect(page.get_by_role("tabpanel", name=name)).to_be_visible()


def test_inspect_shows_all_rounds_and_every_chart_the_records_fill(opened):
    """The lane in full: a row a round, a click on a row opens it, declared and common charts
    together.
    """
    finish_replay(opened)
    open_tab(opened, "Inspect")
    view = opened.locator(".vl-inspect")
    rounds = opened.evaluate("specvl.race.focused.rounds.length")
    expect(view.locator(".vl-rounds tbody tr")).to_have_count(rounds)
    view.get_by_role("button", name="Round 4", exact=True).click()
    expect(view.locator(".vl-facts")).to_contain_text("round 4 ")
    expect(view.locator(".vl-rounds tr.current th")).to_have_text("4")
    for chart in ("weights", "per-round", "by-depth", "phases", "speedup"):
        expect(view.locator(f"[data-chart={chart}]")).to_have_count(1)


def test_compare_sums_races_and_exports(opened):
    """Two methods on two examples: a row each and the plain model's, from sums; exported;
    stopped.
    """
    open_tab(opened, "Compare")
    view = opened.locator(".vl-compare")
    view.get_by_label("SAGE").check()
    opened.locator("#vl-c-run").click()
    expect(view.locator("[role=status]")).to_have_text("2 races done.", timeout=60_000)
    rows = view.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text("all 2")
    expect(rows.nth(1)).to_contain_text(
        re.compile(r"\d+\.\d\d \+ \d+\.\d\d \+ \d+\.\d\d")
    )  # ρ, split
    expect(rows.nth(1)).to_contain_text("1.74×")  # the paper's own figure, in its own column
    expect(view.locator("[data-chart=scatter] .plot-container").first).to_be_visible(timeout=20_000)
    with opened.expect_download() as saved:
        view.get_by_role("button", name="Table as CSV").click()
    table = list(csv.DictReader(io.StringIO(Path(saved.value.path()).read_text())))
    assert [row["method"] for row in table] == ["ar", "tabed", "sage"]
    assert all(row["races"] == "2" and float(row["speed"]) > 0 for row in table)
    assert float(table[0]["speedup"]) == 1.0 and float(table[1]["speedup"]) <= float(
        table[1]["tau"]
    )
    with opened.expect_download() as saved:
        view.get_by_role("button", name="Chart as PNG").click()
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")
    opened.evaluate("""() => {
      for (const lane of specvl.race.list) lane.end = {...lane.end, load: 0.9};
      specvl.compare.tally.take(specvl.race);
      specvl.compare.draw();
    }""")
    expect(rows.nth(1)).to_contain_text("not meaningful: timing disturbed in 1 of 3 races")
    view.get_by_label("The question in the form").check()
    opened.locator("#vl-c-run").click()
    expect(rows.first.locator("td").first).to_have_text("1", timeout=60_000)
    opened.locator("#vl-c-stop").click()
    expect(view.locator("[role=status]")).to_have_text(
        "Stopped. The table holds what was finished."
    )
    expect(rows).to_have_count(3)


def test_settings_stand_out_and_can_be_put_back(opened):
    """A changed value is marked and counted; one press puts it back. Bounds hold."""
    unfold(opened)
    panel = opened.locator(".vl-settings details").first
    panel.locator("summary").click()
    gamma = panel.get_by_label("draft length γ", exact=True)
    preset = gamma.input_value()
    gamma.fill(str(int(preset) + 1))
    gamma.blur()
    expect(panel.locator(".vl-param.changed")).to_have_count(1)
    expect(panel.locator(".vl-changed")).to_have_text("1 changed")
    gamma.fill("100000")
    gamma.blur()
    most = gamma.get_attribute("max")
    assert most != preset
    expect(gamma).to_have_value(most)
    panel.get_by_role("button", name="Put draft length γ back").click()
    expect(gamma).to_have_value(preset)
    expect(panel.locator(".vl-param.changed")).to_have_count(0)


def test_learn_has_a_lesson_for_every_method(opened):
    """Idea, picture, formula, what to look for and the paper for each method of the table."""
    open_tab(opened, "Learn")
    methods = opened.evaluate("specvl.catalog.methods.map((m) => m.name)")
    for name in methods:
        lesson = opened.locator(f"#lesson-{name}")
        expect(lesson.get_by_role("heading", level=2)).to_have_count(1)
        expect(lesson.locator("svg.vl-diagram")).to_have_count(1)
        expect(lesson).to_contain_text("What to look for")
    assert opened.locator(".vl-lesson math").count() >= len(methods) - 1


def test_tabs_take_arrow_keys_and_dark_or_light_is_remembered(opened):
    """Arrow keys walk through the tabs; the button turns the page dark, and a reload keeps it."""
    opened.get_by_role("tab", name="Race").focus()
    opened.keyboard.press("ArrowRight")
    expect(opened.get_by_role("tab", name="Inspect")).to_be_focused()
    expect(opened.get_by_role("tab", name="Inspect")).to_have_attribute("aria-selected", "true")
    before = opened.evaluate("document.body.classList.contains('dark')")
    opened.get_by_role("button", name="Light or dark").click()
    assert opened.evaluate("document.body.classList.contains('dark')") is not before
    opened.reload()
    ready(opened)
    assert opened.evaluate("document.body.classList.contains('dark')") is not before
