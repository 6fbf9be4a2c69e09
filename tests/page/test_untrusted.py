"""Words from strangers in the browser: markup in a trace stays words."""

import json
from pathlib import Path
from typing import Any

import msgspec
from playwright.sync_api import expect

from specvl_demo.report import html, trace
from tests.contract.test_text import MARKUP
from tests.page.conftest import save
from tests.page.made_up import race_records

TEMPLATE = "${window.hit='template'}"
"""What an engine of templates would run."""


LINK = '<a href="http://127.0.0.1:7999/">Log in</a><b style="font-size:60px">!</b>'
"""What Plotly would make a link and a large word of."""

CHECKED = ("kind", "origin", "stop", "draws", "lane")
"""What a trace is refused for if it is not one of a few words; lanes differ by their names."""
FRAMES = [
    "javascript:hit=1",
    "data:text/html,<script>hit=1</script>",
    "data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' onload='hit=1'/>",
]


def spoiled(value: Any, where: str) -> Any:
    """A record's data in which every text of a stranger's choice is markup that runs a script."""
    if isinstance(value, str):
        return MARKUP.format(where=where) + TEMPLATE
    if isinstance(value, list):
        return [spoiled(item, where) for item in value]
    if isinstance(value, dict):
        return {key: item if key in CHECKED else spoiled(item, key) for key, item in value.items()}
    return value


def hostile(path: Path) -> Path:
    """A sound trace of markup, names of series and columns too."""
    lines = []
    for record in race_records(["ar", "tabed", "lvspec"], n_tokens=30):
        sound = msgspec.to_builtins(record)
        data = spoiled(sound, "record")
        data["lane"] = f"{MARKUP.format(where='lane')}{sound['lane']}"
        if data["kind"] == "begin":
            data["method"] = "ar" if sound["method"] == "ar" else data["method"]
            for name in ("versions", "models", "settings"):
                data[name] = {MARKUP.format(where=name): MARKUP.format(where="value")}
            media = data["notes"]["media"][0]
            media["frames"] += [*FRAMES, *sound["notes"]["media"][0]["frames"]]
            data["spans"] = [{**span, "frame": len(FRAMES) + 1} for span in sound["spans"]]
            data["charts"] = sound["charts"]
            for chart in data["charts"]:
                chart["y"] = chart["y_right"] = f"{LINK}{MARKUP.format(where='axis')}"
        elif data["kind"] == "round":
            if data["views"]:
                columns = enumerate(data["views"].values())
                data["views"] = {MARKUP.format(where=f"column{i}"): column for i, column in columns}
            data["notes"] |= {
                "weights": {MARKUP.format(where="series"): 0.5, "b": 0.5},
                MARKUP.format(where="key"): [MARKUP.format(where="list")],
            }
        else:
            data["message"], data["stop"] = MARKUP.format(where="message"), "error"
        lines.append(json.dumps(data))
    path.write_text("\n".join(lines))
    assert trace.inspect_file(path)[1] == []
    return path


def test_a_strangers_trace_runs_no_script(opened, tmp_path: Path):
    """Opened in the page and looked at in every view, its markup is text: nothing runs or is made
    of it.

    The fixture also fails on any console error, script fault, or request that leaves this machine.
    """
    page = opened
    path = hostile(tmp_path / "<img src=x onerror=hit=1>.jsonl")
    page.locator("#vl-trace").set_input_files(path)
    page.wait_for_function(
        "specvl.race.lanes.size === 3 && specvl.race.list[0].name.startsWith('<img')"
    )
    page.evaluate("specvl.race.setHead(null)")
    for tab in ("Race", "Compare", "Learn", "Race"):
        page.get_by_role("tab", name=tab).click()
        page.evaluate("""async () => {
              const drawn = () =>
                new Promise((done) => setTimeout(() => requestAnimationFrame(done), 50));
              for (const { name } of specvl.race.list) {
                for (const part of [{ token: 3 }, { round: 1 }]) {
                  specvl.race.select({ lane: name, ...part });
                  await drawn();
                  for (const at of document.querySelectorAll('.tk, .vl-tree .node, .vl-info')) {
                    if (at.checkVisibility?.() && !at.closest('.vl-words'))
                      at.dispatchEvent(new PointerEvent('pointerover', { bubbles: true }));
                  }
                  for (const plot of document.querySelectorAll('.js-plotly-plot')) {
                    if (plot.checkVisibility()) {
                      Plotly.Fx.hover(plot, [{ curveNumber: 0, pointNumber: 0 }]);
                      Plotly.Fx.unhover(plot);
                    }
                  }
                }
              }
            }""")
        assert page.locator("#specvl svg a, #specvl svg tspan[style*='60px']").count() == 0
    page.wait_for_timeout(500)  # what was made of markup has had time to load and to run
    assert page.evaluate("window.hit") is None
    grown = page.evaluate(
        "[...document.querySelectorAll('#specvl img[src=x], #specvl script, #specvl"
        " a[href^=javascript], #specvl [onerror], #specvl [onload], #specvl iframe')].map((node) =>"
        " node.outerHTML)"
    )
    assert grown == []
    assert "<script>" in page.locator(".vl-lane .vl-text").first.inner_text()
    expect(page.locator(".vl-question")).to_have_text(MARKUP.format(where="question") + TEMPLATE)
    sources = page.evaluate(
        "[...document.querySelectorAll('#specvl img')].map((node) => node.getAttribute('src'))"
    )
    assert not any(
        s and s.startswith(("javascript:", "data:text", "data:image/svg")) for s in sources
    )


def test_a_shared_race_runs_its_charts_and_nothing_else(page, tmp_path: Path):
    """The file of a hostile trace, opened from disk: charts are drawn, no markup runs."""
    faults = []
    lanes, _ = trace.inspect_file(hostile(tmp_path / "hostile.jsonl"))
    path = tmp_path / "race.html"
    path.write_text(html.race_page(lanes), encoding="utf-8")
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    page.goto(path.as_uri())
    expect(page.locator(".vl-race-head .vl-badge")).to_have_text("Saved race")
    expect(page.locator(".vl-track caption")).to_contain_text("Lanes take turns")
    page.locator(".vl-charts .vl-chart").last.scroll_into_view_if_needed()
    expect(page.locator(".js-plotly-plot svg.main-svg").first).to_be_visible()
    assert "<script>" in page.locator(".vl-lane .vl-text").first.inner_text()
    expect(page.get_by_role("button", name="Play the race again")).to_be_visible()
    with page.expect_download() as saved:
        save(page, "A trace (JSON lines)")
    assert trace.inspect_file(saved.value.path()) == (lanes, [])
    assert faults == [] and page.locator("svg a").count() == 0
    page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hit=1\">')"
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.hit") is None and any("Content Security" in f for f in faults)
