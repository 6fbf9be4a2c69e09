"""What goes out of the page and comes back: traces, links, named combinations, files."""

import json
import re
from pathlib import Path

from playwright.sync_api import expect

from specvl_demo.places import ROOT
from tests.page.conftest import press, ready, reload, save
from tests.page.test_race import finish_replay, run_race, unfold

PNG = (
    "89504e470d0a1a0a0000000d494844520000000100000001080200000090775"
    "3de0000000c4944415478da63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)


def test_a_downloaded_race_comes_back_from_a_file(opened, tmp_path: Path):
    """Save a live race as a trace, open it: the same lanes, numbers and pictures, no model."""
    run_race(opened)
    lanes = "specvl.race.list.map((l) => [l.begin.title, l.text, l.totalsAfter(Infinity).tau])"
    figures = opened.evaluate(lanes)
    with opened.expect_download() as saved:
        save(opened, "A trace (JSON lines)")
    path = tmp_path / "race.trace.jsonl"
    saved.value.save_as(path)
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds.count("begin") == 2 and kinds.count("end") == 2
    opened.locator("#vl-trace").set_input_files(path)
    expect(opened.locator(".vl-race-head .vl-badge")).to_have_text("From a file")
    finish_replay(opened)
    assert opened.evaluate(lanes) == figures
    expect(opened.locator(".vl-question-media img")).to_have_count(1)


def test_a_file_that_is_no_trace_is_refused_with_its_line(opened, tmp_path: Path):
    """The page says what is wrong, in the program's words, and keeps what it shows."""
    (tmp_path / "bad.jsonl").write_text('{"kind": "round", "lane": "x"}\n')
    opened.locator("#vl-trace").set_input_files(tmp_path / "bad.jsonl")
    sentence = "line 1: Object missing required field `index`"
    expect(opened.locator(".vl-mine .wrong")).to_contain_text(sentence)
    assert opened.evaluate("specvl.race.lanes.size") == 2


def test_shipped_traces_open_without_a_model(opened):
    """Recorded races that ship, with pictures, what the drafter saw, and what a head drafted."""
    for name in ("scene", "chart", "clip", "falls"):
        expect_opened(opened, name)
    heads = opened.locator(".vl-race .vl-candidates thead th")
    expect(heads).to_have_text(["candidate", "target", "drafter"])
    row = opened.locator(".vl-race .vl-candidates tr.chosen td").last
    drafted = opened.evaluate("""() => {
      const [, lane] = specvl.race.list;
      const { round, at } = lane.tokens[5];
      const { tree, path } = lane.rounds[round];
      return Math.exp(tree.draft_logp[path[at + 1]]);
    }""")
    number = "1.00" if drafted >= 0.9995 else f"{drafted:.3f}".lstrip("0")
    expect(row).to_have_text(re.compile(rf"^0?{re.escape(number)}$"))
    depths = opened.locator(".vl-race [data-chart=by-depth] .vl-plot")
    depths.scroll_into_view_if_needed()
    expect(depths).to_have_attribute("aria-label", re.compile(r"^Kept at depth 1: \d+ %, 2: "))


def expect_opened(opened, name: str) -> None:
    path = ROOT / "examples" / f"{name}.trace.jsonl"
    question = json.loads(path.open(encoding="utf-8").readline())["notes"]["question"]
    opened.locator("#vl-trace").set_input_files(path)
    opened.wait_for_function("name => specvl.race.meta.file === name", arg=path.name)
    expect(opened.locator(".vl-question")).to_have_text(question)
    expect(opened.locator(".vl-lane")).to_have_count(2)
    finish_replay(opened)
    expect(opened.locator(".vl-says .vl-headline")).to_contain_text("were guessed by a small model")
    expect(opened.locator(".vl-verdict")).to_contain_text("same answer, token for token")
    spans, seen = opened.evaluate("""() => {
      const { spans, seen } = specvl.race.list[1].begin;
      return [spans.length, seen.length];
    }""")
    opened.evaluate("specvl.race.select({lane: specvl.race.list[1].name, token: 5})")
    card = opened.locator(".vl-race .vl-inspector")
    if name == "clip":
        assert spans > 1
        expect(card.get_by_role("img", name=re.compile("frame 2$"))).to_be_visible()
    expect(card.locator("header")).to_contain_text("token 6")
    menu = card.locator(".vl-sight select")
    if menu.count():
        menu.select_option(index=menu.locator("option").count() - 1)
    if seen:
        expect(card.locator("canvas.hidden")).to_have_count(spans)
        expect(card.locator("figcaption")).to_have_text(
            re.compile(r"The drafter saw (all \d+|.*\d+ (of|instead of) \d+)")
        )


def test_a_link_restores_the_settings(opened):
    """Change the form, copy the link, open it: same methods, values, question and picture.

    A changed value is marked and counted; one press puts it back. Bounds hold.
    """
    question = opened.locator("#vl-question")
    question.fill("Wie viele Sterne? ★")
    opened.locator("[data-method=sage] input").check()
    unfold(opened)
    panel = opened.locator(".vl-settings details").first
    panel.locator("summary", has_text="TABED parameters").click()
    gamma = panel.get_by_label("draft length γ", exact=True)
    preset = gamma.input_value()
    gamma.fill("100000")
    gamma.blur()
    expect(gamma).to_have_value(gamma.get_attribute("max"))
    expect(panel.locator(".vl-param.changed")).to_have_count(1)
    press(panel, "Reset draft length γ")
    expect(gamma).to_have_value(preset)
    expect(panel.locator(".vl-param.changed")).to_have_count(0)
    other = int(preset) + 1  # another than the preset, whichever that is
    gamma.fill(str(other))
    question.click()
    save(opened, "A link to these settings")
    opened.wait_for_function("location.hash.length > 20")
    link = opened.evaluate("location.href")
    media = opened.evaluate("specvl.form.request.media")
    opened.goto("about:blank")
    opened.goto(link)
    ready(opened)
    expect(question).to_have_value("Wie viele Sterne? ★")
    request = opened.evaluate("specvl.form.request")
    assert request["methods"] == ["tabed", "sage"] and request["media"] == media
    assert request["settings"]["tabed"] == {"gamma": other}
    expect(panel.locator(".vl-changed")).to_have_text("1 changed")


def test_parts_that_do_not_fit_are_refused_and_others_shared(opened):
    """What cannot work is refused in a sentence; a combination that does travels as a link."""
    opened.evaluate("document.querySelectorAll('.vl-others').forEach((d) => { d.open = true; })")
    opened.locator("[data-method=custom] input").check()
    unfold(opened)
    panel = opened.locator(".vl-settings details", has_text="Custom parameters")
    panel.locator("summary").first.click()
    panel.get_by_label("drafter", exact=True).select_option("ngram")
    panel.get_by_label("tree", exact=True).select_option("best-first")
    expect(panel.locator(".wrong")).to_contain_text("'ngram' does not")
    panel.get_by_label("drafter", exact=True).select_option("small")
    expect(panel.locator(".wrong")).to_have_count(0)
    expect(panel.get_by_label("tree nodes", exact=True)).to_be_visible()
    panel.get_by_label("tree", exact=True).select_option("beam")
    save(opened, "A link to these settings")
    opened.wait_for_function("location.hash.length > 20")
    reload(opened)
    assert opened.evaluate("specvl.form.request.settings.custom.policy") == "beam"


def upload(page, path: Path, content: bytes = bytes.fromhex(PNG)) -> None:
    """Add a file to the question: a tiny picture, or what is none."""
    path.write_bytes(content)
    page.locator("#vl-files").set_input_files(path)


def test_uploads_are_checked_before_they_are_sent(opened, tmp_path: Path):
    """No picture, whatever its name: refused by name, in sight; a picture gets a thumbnail. What is
    missing of a question is tested in tests/js/form.test.js.
    """
    refused = opened.locator(".vl-refused")

    def refuse(name: str) -> None:
        upload(opened, tmp_path / name, b"hello")
        expect(refused).to_contain_text(f"{name} was not added")

    refuse("notes.txt")
    opened.get_by_role("button", name="Remove scene.png").press("Enter")
    expect(opened.get_by_role("button", name="Upload")).to_be_focused()
    opened.locator("#vl-run").click()  # never without a picture that somebody meant to show
    expect(opened.locator(".vl-notice")).to_contain_text("Remove it to run without it")
    assert not opened.evaluate("specvl.form.running")
    press(opened, "Remove notes.txt")
    expect(refused.locator("li")).to_have_count(0)
    refuse("text.png")
    upload(opened, tmp_path / "b.png")
    expect(opened.locator(".vl-thumbs img")).to_have_attribute("alt", "b.png")
    expect(refused).to_have_text("")  # what came right replaces what was wrong
    refuse("text.png")
    run_race(opened)  # a picture that can be read is enough
    expect(refused.locator("li")).to_have_count(0)  # of what was not raced nothing is said
