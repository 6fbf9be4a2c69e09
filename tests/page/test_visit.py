"""A visit as somebody new makes it: what moves, what is said, what it costs, what stays."""

import re
import statistics
from pathlib import Path

import pytest
from playwright.sync_api import expect

from specvl_demo.places import ROOT
from specvl_demo.records import gather_lanes, loads
from tests.page.conftest import LIVE, PHONE, note_sent, press, ready, reload, save
from tests.page.made_up import LONG
from tests.page.test_race import FINISHED, begin_long_run, choose, drawn, finish_replay, run_race


def test_the_landing_race_is_played_once_and_then_nothing_moves(opened):
    """Nothing touched: a labelled race of eight seconds, told as stretched; then all is still."""
    opened.emulate_media(reduced_motion="no-preference")
    opened.reload(wait_until="commit")
    # At one moment: from here on it takes long.
    opened.wait_for_function(
        "window.specvl?.ready && document.querySelectorAll('.vl-text .tk').length > 30"
        " && (specvl.race.slower *= 100)"
    )
    badge = opened.locator(".vl-race-head .vl-badge")
    expect(badge).to_have_text("Recorded race")
    expect(badge).to_have_attribute(
        "title",
        "Recorded on 2026-01-02 on a processor, a test machine. On another processor live numbers"
        " may differ, and where tokens nearly tie, the answer.",
    )
    seconds, stretch = opened.evaluate("[specvl.race.duration, specvl.replay.stretch]")
    assert seconds * stretch == pytest.approx(8)
    expect(opened.locator(".vl-speed")).to_have_text(re.compile(r"^shown \d+(\.\d)?× slower$"))
    expect(opened.locator(".vl-says .vl-headline")).to_contain_text("A replay of ")
    opened.wait_for_function("specvl.drawing.share > 0")  # what drawing it costs was measured
    opened.evaluate("specvl.race.slower /= 2000")  # the rest needs no watching
    opened.wait_for_function("specvl.race.finished && specvl.race.head === null")
    opened.evaluate("""() => {
      const frame = window.requestAnimationFrame;
      window.asked = [];
      window.requestAnimationFrame = (fn) => {
        window.asked.push(new Error().stack);
        return frame(fn);
      };
    }""")
    for _ in range(10):  # charts are drawn once more, and Gradio's loader comes to rest
        opened.evaluate("window.asked.length = 0")
        opened.wait_for_timeout(1500)
        if not (asked := opened.evaluate("window.asked")):
            break
    assert not asked, asked[0]


PLAYED_BACK = """() => {
  const {race, replay} = specvl;
  replay.pause();
  race.setHead(race.duration / 8);
  const drawn = () => new Promise(requestAnimationFrame);
  return drawn().then(drawn).then(() => ([
    document.querySelector('.vl-says .vl-headline').textContent,
    [...document.querySelectorAll('.vl-words')].map((box, i) => {
      const kept = box.cloneNode(true);
      for (const node of kept.querySelectorAll('del, .vl-guess')) node.remove();
      const lane = race.list[i];
      const { n_tokens } = race.now(lane);
      return [kept.textContent, lane.tokens.slice(0, n_tokens).map((t) => t.text).join('')];
    }),
    document.querySelectorAll('.vl-lane [data-i]').length]));
}"""


def test_a_race_is_hardly_drawn_while_it_runs_and_then_played_back(opened):
    """Words at most five times a second, no tree, no charts; then all of it from the record."""
    drawn(opened)  # of the race before
    opened.emulate_media(reduced_motion="no-preference")
    opened.evaluate(
        """(tokens) => {
      specvl.drawing.name = 'calm';
      Object.assign(specvl.form.request.sampling, {max_new_tokens: tokens});
      window.passes = [];
      const charts = () => specvl.view.charts.common.map((chart) => chart.revision);
      new MutationObserver(() => {
        // From here on: what stood there before is cleared by one more drawing.
        window.passes.push(performance.now());
        if (passes.length < 3) window.revisions = charts();
      }).observe(document.querySelector('.vl-track tbody'), {
        subtree: true, childList: true, characterData: true, attributes: true});
    }""",
        LONG,
    )
    opened.locator("#vl-run").click()
    opened.wait_for_function("specvl.form.running && window.passes.length > 5")
    gaps, revisions, moving, going = opened.evaluate("""() => [
      window.passes.slice(1).map((at, i) => at - window.passes[i]),
      specvl.view.charts.common.map((chart) => chart.revision),
      document.querySelector('.vl').getAnimations({subtree: true}).length, specvl.form.running]""")
    assert going and not moving and statistics.median(gaps) > 180, gaps
    expect(opened.locator(".vl-stage .vl-tree .node")).to_have_count(0)  # of the race before
    expect(opened.locator(".vl-race [data-chart=speedup]")).to_have_class(re.compile("empty"))
    assert revisions == opened.evaluate("window.revisions")
    opened.locator("#vl-stop").click()
    opened.wait_for_function("!specvl.form.running")
    opened.evaluate("specvl.form.request.sampling.max_new_tokens = 90")
    opened.locator("#vl-run").click()
    opened.wait_for_function("!specvl.form.running && specvl.replay.playing")
    # As a recorded one: nothing is seen before it is written.
    sentence, answers, written = opened.evaluate(PLAYED_BACK)
    assert re.match(r"A replay of .*, .* slower. .*: one at a time [\d.]+", sentence)
    assert all(seen == so_far for seen, so_far in answers) and written


def test_run_clears_the_lanes_at_once_and_never_takes_an_answer_away(opened):
    """No word of the old race stays, a sentence says why; what was written stands."""
    choose(opened, "lossy", 3)
    opened.evaluate("specvl.form.request.sampling.max_new_tokens = 24")
    seen = opened.evaluate("""() => {
      document.querySelector('#vl-run').click();
      const words = () => [...document.querySelectorAll('.vl-text [data-i]')].length;
      return new Promise((done) => requestAnimationFrame(() => done({
        words: words(),
        lanes: [...document.querySelectorAll('.vl-lane .vl-lane-name')].map((n) => n.textContent),
        said: document.querySelector('.vl-headline').textContent})));
    }""")
    assert seen["words"] == 0 and seen["lanes"] == ["Autoregressive", "SAGE", "LVSpec"]
    assert seen["said"] in ("Starting the engine…", "Loading the models…")
    opened.wait_for_function(f"!specvl.form.running && {FINISHED}")
    opened.wait_for_timeout(600)
    assert opened.evaluate("specvl.race.head") is None


def test_a_question_that_the_race_does_not_answer_greys_it(opened):
    """Another question greys the race and says so; an example fills both, and the race is lit."""
    finish_replay(opened)
    stage, notice = opened.locator(".vl-stage"), opened.locator(".vl-notice")
    opened.locator("#vl-question").fill("Another question?")
    expect(stage).to_have_class(re.compile("outdated"))
    expect(notice).to_have_text(
        "This race answers “What is in the picture?”. The form now has another question: press Run"
        " to race that."
    )
    opened.locator(".vl-thumbs .vl-remove").click()
    expect(notice).to_contain_text("The form now has no picture and another question:")
    choose(opened, "scene", 2)
    expect(stage).not_to_have_class(re.compile("outdated"))
    expect(notice).to_have_text("")
    expect(opened.locator("#vl-question")).to_have_value("What is in the picture?")


def test_what_a_pair_never_learnt_is_said_before_and_over_the_answer(opened):
    """In the form, with the pair that fits, and over the answer; see tests/js/text.test.js."""
    note, over = opened.locator(".vl-ask .vl-scope"), opened.locator(".vl-stage .vl-scope")
    opened.evaluate("() => Object.assign(specvl.catalog.pairs[0], {knows: 'scenes', words: []})")
    opened.locator("#vl-question").fill("What is the capital?")
    expect(note).to_contain_text("not trained on “What”, “the”, “capital”")
    use = opened.get_by_role("button", name=re.compile("^Use (?!via)"))
    expect(use).to_have_count(0)  # no pair for photographs runs here
    run_race(opened)
    expect(over).to_contain_text("The race is real, the answer means nothing.")
    expect(note).to_be_hidden()  # once is enough
    opened.locator("#vl-question").fill("What is the capital of it?")
    expect(note).to_be_visible()


def test_keys_lead_to_run_and_enter_sends(opened):
    """A few presses of Tab, past the methods; Shift+Enter breaks the line, Enter runs; told."""
    opened.evaluate("document.body.focus()")
    opened.keyboard.press("Tab")
    opened.keyboard.press("Enter")
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.closest('.vl-race') !== null")  # skipped to
    opened.locator("h1").click()
    presses = 0
    while opened.evaluate("document.activeElement.id") != "vl-run" and presses < 30:
        opened.keyboard.press("Tab")
        presses += 1
    assert presses <= 15
    expect(opened.locator(".vl-ask .vl-keys")).to_have_text("Enter runs, Shift+Enter: new line")
    question = opened.locator("#vl-question")
    question.fill("One line")
    question.press("Shift+Enter")
    assert question.input_value() == "One line\n" and not opened.evaluate("specvl.form.running")
    question.press("Enter")
    opened.wait_for_function(f"{LIVE} && !specvl.form.running && specvl.race.finished")


def test_a_reload_restores_the_form_the_file_the_race_and_the_conversation(opened):
    """Question, methods, an own picture and the live race are there again. A follow-up sends the
    conversation and its file again; a file that this browser lost is asked for. What is kept can be
    forgotten."""
    opened.locator("#vl-files").set_input_files(ROOT / "examples" / "cat.jpg")
    expect(opened.locator(".vl-thumbs img")).to_have_attribute("alt", "cat.jpg")
    question = opened.locator("#vl-question")
    question.fill("What is new?")
    opened.locator("[data-method=sage] input").check()
    run_race(opened)
    answers = opened.evaluate("specvl.race.list.map((lane) => lane.text)")
    reload(opened)
    expect(question).to_have_value("What is new?")
    assert opened.evaluate("specvl.form.request.media.map((m) => m.name)") == ["cat.jpg"]
    assert opened.evaluate("specvl.race.list.map((lane) => lane.text)") == answers
    expect(opened.locator(".vl-stage")).not_to_have_class(re.compile("outdated"))
    choose(opened, "lossy", 3)
    opened.get_by_text("Your races (1) and traces").click()
    expect(opened.locator(".vl-runs").last.locator(".vl-run")).to_have_count(1)
    opened.locator(".vl-runs").last.locator(".vl-run").click()
    opened.wait_for_function(f"{LIVE} && specvl.race.list[0].end")
    assert opened.evaluate("specvl.race.list.map((lane) => lane.text)") == answers
    follow = opened.get_by_role("button", name="Ask a follow-up")
    follow.click()
    reload(opened)
    expect(follow).to_be_hidden()  # it is a turn of the conversation already
    question.fill("And its colour?")
    note_sent(opened)
    run_race(opened)
    (turn,) = opened.evaluate("window.sent.history")
    assert (turn["question"], turn["answer"]) == ("What is new?", answers[0].strip())
    assert [item["name"] for item in turn["media"]] == ["cat.jpg"]
    opened.evaluate("""async () => {
          const asked = indexedDB.open('specvl', 1);
          const db = await new Promise((done) => { asked.onsuccess = () => done(asked.result); });
          const change = db.transaction('files', 'readwrite');
          change.objectStore('files').clear();
          await new Promise((done) => { change.oncomplete = done; });
          db.close();
        }""")
    reload(opened)
    expect(opened.locator(".vl-notice")).to_contain_text(
        "cat.jpg could not be restored, and a follow-up needs it. Add it again and run."
    )
    expect(follow).to_be_hidden()
    opened.get_by_text(re.compile(r"Your races \(\d\) and traces")).click()
    press(opened, "Forget my races and my form")
    expect(opened.locator(".vl-runs").last.locator(".vl-run")).to_have_count(0)


def test_a_browser_that_denies_its_storage_starts_the_page(browser, url: str):
    page = browser.new_page()
    denied = "{get() { throw new DOMException('denied', 'SecurityError'); }}"
    for area in ("localStorage", "sessionStorage"):
        page.add_init_script(f"Object.defineProperty(window, '{area}', {denied})")
    page.goto(url)
    page.wait_for_function("window.specvl && specvl.ready")
    page.close()


def test_a_reload_during_a_race_says_that_it_was_not_kept(opened):
    """The stream that the reload cuts is no error on the console. What is shown then is tested in
    tests/js/state.test.js.
    """
    opened.locator("#vl-question").fill("What is new?")
    begin_long_run(opened)
    said = "The race that ran when the page was left was not kept."
    reload(opened)
    expect(opened.locator(".vl-notice")).to_have_text(said)


def test_a_result_is_shared_as_one_file(opened, tmp_path: Path):
    """One file that holds answers and charts, or a figure; it asks nothing of any server."""
    finish_replay(opened)
    menu = opened.get_by_role("button", name="Save", exact=True)
    for choice, name, sign in (
        ("The page with this race, in one file", "race.html", "plotly"),
        ("A figure (SVG)", "race.svg", "<svg"),
    ):
        with opened.expect_download(timeout=120_000) as saved:
            save(opened, choice)
        assert saved.value.suggested_filename == name
        text = Path(saved.value.path()).read_text(encoding="utf-8")
        written = re.sub("<[^>]+>", "", text)
        if lines := re.search(r'id="trace">(.*?)</script>', text, re.S):
            told = gather_lanes(map(loads, lines[1].split("\n")))
            written = told[0].text
        assert "There are five things" in written and sign in text.lower()
        assert not re.search(r"<(script|link|img)[^>]+(src|href)=.?https?:", text)
        assert len(text) < 2_000_000
    menu.click()
    opened.keyboard.press("Tab")
    first = opened.get_by_role("button", name="A link to these settings")
    expect(first).to_be_focused()
    opened.keyboard.press("Escape")
    expect(first).to_be_hidden()
    expect(menu).to_be_focused()


def test_views_have_addresses_and_back_works(opened, url: str):
    """Every view can be linked to, reached by arrow keys and left by Back; dark is remembered."""
    opened.get_by_role("tab", name="Race").focus()
    opened.keyboard.press("ArrowRight")
    expect(opened.get_by_role("tab", name="Compare")).to_be_focused()
    expect(opened).to_have_url(re.compile("#compare$"))
    opened.get_by_role("tab", name="Learn").click()
    opened.go_back()
    expect(opened.get_by_role("tab", name="Compare")).to_have_attribute("aria-selected", "true")
    opened.go_back()
    expect(opened.get_by_role("tab", name="Race")).to_have_attribute("aria-selected", "true")
    dark = "document.body.classList.contains('dark')"
    before = opened.evaluate(dark)
    press(opened, "Light or dark")
    opened.goto(f"{url}/#compare")
    reload(opened)
    expect(opened.get_by_role("tabpanel", name="Compare")).to_be_visible()
    assert opened.evaluate(dark) is not before


def test_what_is_typed_while_a_recorded_race_arrives_stays(page, url: str):
    """A visitor may be quicker than the landing race; of two examples, the last one stands."""
    held = []
    page.route("**/*.trace.jsonl*", lambda route: held.append(route))
    page.goto(url)
    question = page.locator("#vl-question")
    expect(question).to_have_value("What is in the picture?")
    question.fill("Is it mine?")
    page.locator("[data-example=lossy]").wait_for()
    page.get_by_role("tab", name="Learn").click()
    while not held:
        page.wait_for_timeout(100)
    held.pop(0).continue_()  # a lesson may have asked for one since
    ready(page)
    expect(page.get_by_role("tabpanel", name="Learn")).to_be_visible()
    expect(page).to_have_url(re.compile("#learn$"))
    page.get_by_role("tab", name="Race").click()
    expect(question).to_have_value("Is it mine?")
    expect(page.locator(".vl-stage")).to_have_class(re.compile("outdated"))
    for example in ("lossy", "scene"):
        page.locator(f"[data-example={example}]").click()
        page.wait_for_timeout(300)
    for route in reversed(held):
        route.continue_()
    page.unroute("**/*.trace.jsonl*")
    page.wait_for_timeout(500)
    expect(page.locator(".vl-lane")).to_have_count(2)
    expect(question).to_have_value("What is in the picture?")


def test_back_closes_what_lies_over_the_page(opened):
    """The story, then a phone's sheet, as Escape does; the page stays where it was."""
    finish_replay(opened)
    dialog = opened.locator("dialog[open]")
    for leave in (opened.go_back, lambda: opened.keyboard.press("Escape")):
        press(opened, "Explain this race")
        expect(dialog).to_have_count(1)
        leave()
        expect(dialog).to_have_count(0)
        opened.wait_for_function("!history.state?.over")
    opened.set_viewport_size(PHONE)
    sheet = opened.locator(".vl-race .vl-inspector")
    opened.locator(".vl-lane .tk[data-i]").nth(3).click()
    expect(sheet).to_be_visible()
    opened.go_back()
    expect(sheet).to_be_hidden()
    assert not opened.evaluate("history.state.over")
    expect(opened.locator(".vl-lane").first).to_be_visible()


def test_back_leads_to_the_race_before_and_from_the_first_one_away(opened):
    """Through a view, past a reload, and out of a run, which ends; no race takes two steps."""
    badge, lanes = opened.locator(".vl-race-head .vl-badge"), opened.locator(".vl-lane")
    run_race(opened)
    choose(opened, "lossy", 3)
    opened.get_by_role("tab", name="Learn").click()
    opened.get_by_role("button", name="Watch “scene”").click()
    expect(lanes).to_have_count(2)
    reload(opened)
    opened.go_back()
    expect(opened.get_by_role("tabpanel", name="Learn")).to_be_visible()
    opened.go_back()
    expect(lanes).to_have_count(3)
    begin_long_run(opened)
    opened.go_back()
    opened.wait_for_function("!specvl.form.running && specvl.race.meta.example === 'lossy'")
    opened.go_back()
    expect(badge).to_have_text("Your race")
    opened.go_back()
    expect(badge).to_have_text("Recorded race")
    opened.go_back()
    assert opened.url == "about:blank"


OPENED = "specvl.race.meta !== before && specvl.race.meta.example === 'scene'"


def test_a_refused_run_says_why_over_the_race_that_stays(page, url: str):
    """Over the race that was there, which stays: a file that was never uploaded is not let in, an
    unknown pair is refused by who computes."""
    page.goto(url)
    ready(page)
    for change, said in (
        ("media[0].path = '/etc/hosts'", "did not accept this question"),
        ("pair = 'nowhere'", "nowhere"),
    ):
        page.evaluate(f"() => {{ specvl.form.request.{change}; specvl.form.run(); }}")
        expect(page.locator(".vl-notice.wrong")).to_contain_text(said)
        expect(page.locator(".vl-lane")).to_have_count(2)
        expect(page.locator("#vl-run")).to_be_enabled()
        page.evaluate("window.before = specvl.race.meta")
        page.locator("[data-example=scene]").click()
        page.wait_for_function(OPENED)  # in its own view
