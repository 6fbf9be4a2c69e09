"""Words from strangers in the browser: markup in a trace and formulas in a table stay words."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import msgspec
import pytest

from specvl_demo.report import trace
from tests.page.synthetic import race_records
from tests.robustness.test_text import MARKUP

pytestmark = pytest.mark.ui


def hostile(path: Path) -> Path:
    """A sound trace in which every text that a stranger may choose is markup that runs a script."""
    lines = []
    for record in race_records(["ar", "tabed", "lvspec"], n_tokens=30):
        data = msgspec.to_builtins(record)
        lane = f"{MARKUP.format(where='lane')}{data['lane']}"
        data["lane"] = lane
        if data["kind"] == "begin":
            for key in ("title", "pair", "prompt", "device", "dtype", "request"):
                data[key] = MARKUP.format(where=key)
            data["versions"] = data["models"] = {
                MARKUP.format(where="versions"): MARKUP.format(where="version")
            }
            data["settings"] = {MARKUP.format(where="setting"): MARKUP.format(where="value")}
            for seen in data["seen"]:
                seen["view"] = seen["words"] = MARKUP.format(where="view")
            frames = [
                MARKUP.format(where="frame"),
                "javascript:hit=1",
                "data:text/html,<script>hit=1</script>",
            ]
            frames.append("data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' onload='hit=1'/>")
            data["notes"] = {
                "question": MARKUP.format(where="asked"),
                "media": [
                    {
                        "name": MARKUP.format(where="file"),
                        "frames": [*frames, *data["notes"]["media"][0]["frames"]],
                    }
                ],
            }
            data["method"] = "ar" if data["method"] == "ar" else MARKUP.format(where="method")
            for span in data["spans"]:
                span["frame"] = 4
        elif data["kind"] == "round":
            for token in data["tokens"]:
                token["text"] = MARKUP.format(where="token")
            data["tree"]["texts"] = [MARKUP.format(where="node")] * len(data["tree"]["texts"])
            lists = [data["candidates"], *(data["views"] or {}).values()]
            for candidate in (c for each in lists for few in each for c in few):
                candidate["text"] = MARKUP.format(where="candidate")
            if data["views"]:
                data["views"] = {
                    MARKUP.format(where=f"column{i}"): v for i, v in enumerate(data["views"].values())
                }
            data["notes"] |= {
                "weights": {MARKUP.format(where="series"): 0.5, "b": 0.5},
                "heat": [MARKUP.format(where="heat")] * len(data["tokens"]),
                MARKUP.format(where="key"): [MARKUP.format(where="list")],
            }
        else:
            data["message"], data["stop"] = MARKUP.format(where="message"), "error"
        lines.append(json.dumps(data))
    path.write_text("\n".join(lines))
    assert trace.inspect(path)[1] == []
    return path


def test_a_strangers_trace_runs_no_script(opened, tmp_path: Path) -> None:
    """Opened in the page and looked at in every view, its markup is text: nothing runs or is made of it.

    The fixture also fails on any console error, script fault, or request that leaves this machine.
    """
    page = opened
    path = hostile(tmp_path / "<img src=x onerror=hit=1>.jsonl")
    page.get_by_role("tab", name="Replay").click()
    page.locator("#vl-trace").set_input_files(path)
    page.wait_for_function("specvl.race.lanes.size === 3 && specvl.race.list[0].name.startsWith('<img')")
    page.evaluate("specvl.race.setHead(null)")
    for tab in ("Race", "Inspect", "Compare", "Replay", "Learn", "Race"):
        page.get_by_role("tab", name=tab).click()
        page.evaluate(
            """async () => {
              const drawn = () => new Promise((done) => setTimeout(() => requestAnimationFrame(done), 50));
              for (const { name } of specvl.race.list) {
                for (const part of [{ token: 3 }, { round: 1 }]) {
                  specvl.race.select({ lane: name, ...part });
                  await drawn();
                }
              }
            }"""
        )
    page.wait_for_timeout(500)  # what was made of markup has had time to load and to run
    assert page.evaluate("window.hit") is None
    grown = page.evaluate(
        "[...document.querySelectorAll('#specvl img[src=x], #specvl script, #specvl a[href^=javascript], "
        "#specvl [onerror], #specvl [onload], #specvl iframe')].map((node) => node.outerHTML)"
    )
    assert grown == []
    assert "<script>" in page.locator(".vl-lane .vl-text").first.inner_text()
    sources = page.evaluate(
        "[...document.querySelectorAll('#specvl img')].map((node) => node.getAttribute('src'))"
    )
    assert not any(s and s.startswith(("javascript:", "data:text", "data:image/svg")) for s in sources)


def test_the_pages_own_table_holds_no_formulas(opened) -> None:
    """The comparison's CSV: words that begin like a formula are text, negative numbers stay numbers."""
    said = opened.evaluate(
        """async () => {
          const scripts = [...document.querySelectorAll('link[rel=modulepreload]')];
          const at = scripts.find((l) => l.href.endsWith('/compare.js'));
          const { csv } = await import(at.href);
          const row = {method: '=HYPERLINK("http://x","y")', races: 1, tau: -1.5, rho: {}};
          return csv([row, {...row, method: '@x'}, {...row, method: '-x'}], () => null);
        }"""
    )
    rows = list(csv.reader(io.StringIO(said)))[1:]
    assert [row[0] for row in rows] == ['\'=HYPERLINK("http://x","y")', "'@x", "'-x"]
    assert rows[0][2] == "-1.5"
