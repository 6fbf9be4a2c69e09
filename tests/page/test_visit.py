"""A visit as somebody new makes it: what moves, what is said, what it costs to find out, what stays."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.page.conftest import ROOT
from tests.page.test_race import choose, finish_replay, run_race

pytestmark = [pytest.mark.ui, pytest.mark.timeout(600)]
PHONE, ZOOMED = {"width": 390, "height": 844}, {"width": 720, "height": 450}
READY = "window.specvl?.ready"
OVERLAPS = """(box) => {
  const all = [...box.querySelectorAll('text.word')].filter((n) => n.textContent.trim());
  const rects = all.map((n) => n.getBoundingClientRect());
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 2 && b.top < a.bottom - 2;
  return rects.flatMap((a, i) => rects.slice(i + 1).filter((b) => meet(a, b))).length;
}"""


def headline(page):
    return page.locator(".vl-headline").first


def select_widest(page) -> None:
    page.evaluate("""() => {
      specvl.view.player.finish();
      const lane = specvl.race.focused;
      const widest = lane.rounds.reduce((a, b) => (b.path.length > a.path.length ? b : a));
      specvl.race.select({lane: lane.name, round: widest.index});
    }""")


def test_the_landing_race_lasts_long_enough_to_see_and_begins_again(opened):
    """Nothing touched: a labelled race of six to ten seconds, its stretching told, again until touched."""
    expect(opened.locator(".vl-race-head .vl-badge")).to_have_text("Recorded race")
    opened.wait_for_function("document.querySelectorAll('.vl-text .tk').length > 30", timeout=60_000)
    lasts = "specvl.race.length / specvl.view.player.stretch"
    assert 6 <= opened.evaluate(lasts) <= 10
    slower = opened.evaluate("1 / specvl.view.player.stretch")
    expect(opened.locator(".vl-player [data-value=show]")).to_have_text(
        re.compile(rf"{slower:.1f}|{slower:.0f}")
    )
    opened.wait_for_function("specvl.race.finished && specvl.race.head === null", timeout=60_000)
    opened.wait_for_function(
        "specvl.view.player.playing && specvl.race.head < specvl.race.length / 2", timeout=60_000
    )
    opened.mouse.click(900, 700)
    opened.wait_for_function("!specvl.view.player.playing", timeout=60_000)
    assert not opened.evaluate("specvl.view.player.looping")


def test_run_clears_the_lanes_at_once_and_shows_a_quick_race_again(opened):
    """No word of the old race stays, a sentence says why; what was too quick to see is played again."""
    choose(opened, "lossy", 3)
    opened.evaluate("specvl.ask.request.sampling.max_new_tokens = 24")
    seen = opened.evaluate("""() => {
      const begun = performance.now();
      document.querySelector('#vl-run').click();
      const words = () => [...document.querySelectorAll('.vl-text [data-i]')].length;
      return new Promise((done) => requestAnimationFrame(() => done({
        words: words(),
        lanes: [...document.querySelectorAll('.vl-lane .vl-lane-name')].map((n) => n.textContent),
        said: document.querySelector('.vl-headline').textContent, took: performance.now() - begun})));
    }""")
    assert seen["words"] == 0 and seen["lanes"] == ["Autoregressive", "SAGE", "LVSpec"]
    assert (
        seen["said"] in ("Starting the engine…", "Loading the models…") and seen["took"] < 2000
    )  # 100 ms, busy
    opened.wait_for_function("!specvl.ask.running && specvl.view.player.playing", timeout=60_000)
    assert 6 <= opened.evaluate("specvl.race.length / specvl.view.player.stretch") <= 10


def test_one_step_drafts_checks_and_settles(opened):
    """Next round: guesses stand pale behind the answer, the check passes, kept ones become part of it."""
    finish_replay(opened)
    opened.get_by_role("button", name="Next round").click()
    opened.wait_for_function("specvl.race.head > 0 && !specvl.view.player.playing", timeout=60_000)
    shown = opened.evaluate("[specvl.race.shown(specvl.race.focused), specvl.race.currentRound.index]")
    assert shown[0] == 1
    expect(opened.locator(".vl-guess .guess:visible")).to_have_count(0)
    opened.evaluate("""() => {
      const lane = specvl.race.focused;
      const k = lane.rounds.findIndex((r) => r.path.length > 2);
      const round = lane.rounds[k];
      specvl.race.slow = true;
      specvl.race.setHead(lane.at(k).clock + round.draft_s * 0.999);
    }""")
    pale = opened.locator(".vl-lane[data-lane='1'] .vl-guess .tk.guess:visible")
    expect(pale.first).to_be_visible()
    expect(opened.locator(".vl-race .vl-facts")).to_contain_text("guessing")
    opened.get_by_role("button", name="Previous round").click()
    opened.wait_for_function("specvl.race.head !== null && !specvl.view.player.playing")


def test_one_sentence_with_this_races_numbers(opened):
    """Above the race: who guessed, who confirmed, and the measured figure of this very race."""
    finish_replay(opened)
    speed = opened.evaluate("specvl.race.speedup(specvl.race.list[1])")
    told = f"decoded {speed:.2f}× faster" if speed >= 1 else f"{1 / speed:.2f}× as long"
    expect(headline(opened)).to_contain_text(told)
    expect(headline(opened)).to_contain_text(
        "Green words were guessed by a small model and confirmed by the large one: same"
    )
    choose(opened, "lossy", 3)
    # The relaxed lane alone beside the plain one.
    opened.evaluate("specvl.race.setFocus('lvspec'); specvl.race.lanes.delete('sage')")
    opened.evaluate("specvl.view.player.finish()")
    pair = opened.evaluate("""async () => {
      const {align} = await import(document.querySelector('link[href$="align.js"]').href);
      return align(specvl.race.baseline, specvl.race.lanes.get('lvspec')).changes[0].map((t) => t.trim());
    }""")
    own, said = pair
    expect(headline(opened)).to_contain_text(f"But it says “{said}” where the large model alone says “{own}”")


def test_answers_stand_in_full_and_mark_where_they_differ(opened):
    """Nothing is cut off; other words are marked in both answers, what they share is shaded."""
    choose(opened, "lossy", 3)
    finish_replay(opened)
    for box in opened.locator(".vl-text").all():
        assert box.evaluate(
            "(n) => n.scrollHeight <= n.clientHeight + 1 || n.clientHeight >= innerHeight * 0.6"
        )
    opened.evaluate("specvl.race.setFocus('lvspec')")
    relaxed = opened.evaluate(
        "specvl.race.lanes.get('lvspec').tokens.filter((t) => t.origin === 'relaxed').length"
    )
    expect(opened.locator(".vl-lane[data-lane='2'] .tk.other")).to_have_count(relaxed)
    shared = opened.evaluate("""() => {
      const [a, b] = ['ar', 'lvspec'].map((name) => specvl.race.lanes.get(name).tokens);
      return a.findIndex((token, i) => token.id !== b[i]?.id);
    }""")
    expect(opened.locator(".vl-lane[data-lane='0'] .tk.shared")).to_have_count(shared)
    opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.get_by_role("button", name="Copy the answer of SAGE").click()
    opened.wait_for_function(
        "navigator.clipboard.readText().then((t) => t === specvl.race.lanes.get('sage').text.trim())"
    )
    tops = opened.evaluate("""async () => {
      const boxes = [...document.querySelectorAll('.vl-text')];
      for (const box of boxes) box.style.maxHeight = '60px';
      boxes[0].scrollTop = 30;
      await new Promise((done) => setTimeout(done, 200));
      return boxes.map((box) => box.scrollTop);
    }""")
    assert tops == [30, 30, 30]


def test_form_and_stage_tell_the_same(opened):
    """Another question greys the race and says so; back again, it is in colour; an example fills both."""
    finish_replay(opened)
    stage, notice = opened.locator(".vl-stage"), opened.locator(".vl-notice")
    opened.locator("#vl-question").fill("Another question?")
    expect(stage).to_have_class(re.compile("outdated"))
    expect(notice).to_contain_text("This race answers “What is in the picture?”")
    opened.locator("#vl-question").fill("What is in the picture?")
    expect(stage).not_to_have_class(re.compile("outdated"))
    expect(notice).to_have_text("")
    for example, question in (("lossy", "Describe everything."), ("scene", "What is in the picture?")):
        opened.locator(f"[data-example={example}]").click()
        expect(opened.locator(".vl-question")).to_have_text(question)
        expect(opened.locator("#vl-question")).to_have_value(question)
        chosen = opened.evaluate("specvl.ask.request.methods")
        assert opened.evaluate("specvl.race.list.slice(1).map((lane) => lane.begin.method)") == chosen


@pytest.mark.parametrize("way", ["click", "keyboard", "touch"])
def test_every_term_explains_itself(browser, url: str, way: str):
    """Columns, charts, legend, tree and inspector open an explanation by pointer, key and finger."""
    context = browser.new_context(
        viewport={"width": 1440, "height": 900}, has_touch=way == "touch", reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(url)
    page.wait_for_function(READY, timeout=60_000)
    places = (
        ".vl-track thead",
        ".vl-race .vl-chart[data-chart=speedup]",
        ".vl-textlegend",
        ".vl-race .vl-tree-card",
        ".vl-race .vl-inspector",
    )
    for place in places:
        term = page.locator(f"{place} .vl-term").last
        if way == "keyboard":
            term.focus()
            page.keyboard.press("Enter")
        elif way == "touch":
            term.tap()
        else:
            term.click()
        card = page.locator(".vl-explain")
        expect(card).to_be_visible()
        assert len(card.inner_text()) > 30
        inside = card.evaluate(
            """(n) => {
              const r = n.getBoundingClientRect();
              return r.left >= 0 && r.right <= innerWidth && r.bottom <= innerHeight;
            }"""
        )
        assert inside, place
        page.keyboard.press("Escape")
        expect(card).to_be_hidden()
    assert page.locator(".vl-track thead th:not(:has(.vl-term))").count() == 0
    assert page.locator(".vl-race .vl-chart h2:not(:has(.vl-term))").count() == 0
    context.close()


def test_a_guided_look_in_three_steps(opened):
    """Each step marks a part of the page and names this race's numbers; the last one leads to Run."""
    finish_replay(opened)
    opened.get_by_role("button", name="Show me how").click()
    for step, part in ((1, ".vl-lanes"), (2, ".vl-pair"), (3, ".vl-card:has(.vl-track)")):
        expect(opened.locator(".vl-guide")).to_contain_text(f"Step {step} of 3")
        expect(opened.locator(f".vl-race {part}.vl-marked")).to_have_count(1)
        if step == 3:
            n = opened.evaluate("[specvl.race.focused.rounds.length, specvl.race.focused.tokens.length]")
            expect(opened.locator(".vl-guide p")).to_contain_text(
                f"needed {n[0]} passes of the large model for {n[1]} tokens"
            )
        opened.locator(".vl-guide .vl-secondary").click()
    expect(opened.locator(".vl-guide")).to_be_hidden()


def test_what_if_simulates_from_the_records(opened):
    """A better drafter gains, a dearer one loses; the formula holds; recorded values stand beside it."""
    finish_replay(opened)
    opened.get_by_role("tab", name="What if").click()
    value = opened.locator(".vl-whatif-bar b")

    def simulated() -> float:
        return float(value.nth(2).inner_text().rstrip("×"))

    def after(slider: str, to: str) -> float:
        """The value that is drawn once a slider was moved."""
        before = value.nth(2).inner_text()
        opened.locator(slider).fill(to)
        expect(value.nth(2)).not_to_have_text(before)
        return simulated()

    measured = opened.evaluate("specvl.race.speedup(specvl.race.focused)")
    expect(value.nth(1)).to_have_text(f"{measured:.2f}×")
    start = simulated()
    better = after("#vl-w-quality", "1")
    dear = after("#vl-w-draft", "0.5")
    assert better > start and dear < better
    numbers = [float(n) for n in re.findall(r"\d+\.?\d*", opened.locator(".vl-whatif-formula").inner_text())]
    tau, v, gamma, c, s = numbers
    assert tau / (v + gamma * c) == pytest.approx(s, rel=0.03)
    opened.get_by_role("button", name="As it was recorded").click()
    expect(value.nth(2)).to_have_text(f"{start:.2f}×")
    expect(opened.locator(".vl-curve")).to_have_attribute("aria-label", re.compile(r"best at \d+"))


def test_try_it_live_runs_again_when_a_parameter_changes(opened):
    """With the switch on, another length is raced without pressing Run."""
    finish_replay(opened)
    opened.evaluate(
        "() => { specvl.showAgain = () => {}; document.querySelector('.vl-parameters').open = true; }"
    )
    opened.locator("#vl-live").check()
    opened.evaluate("document.querySelector('.vl-parameters > details').open = true")
    opened.get_by_label("Max new tokens", exact=True).fill("30")
    opened.get_by_label("Max new tokens", exact=True).blur()
    opened.wait_for_function("specvl.race.meta.source === 'live' && specvl.race.finished", timeout=60_000)
    assert opened.evaluate("specvl.race.list[0].tokens.length") == 30


def test_scope_is_told_before_and_over_the_answer(opened, tmp_path: Path):
    """Unknown words, another kind of picture, none at all: said in the form and over the answer it gives."""
    note, over = opened.locator(".vl-ask .vl-scope"), opened.locator(".vl-stage .vl-scope")
    opened.evaluate(
        "() => Object.assign(specvl.catalog.pairs[0], {knows: 'scenes', words: ['what', 'the', 'picture']})"
    )
    opened.locator("#vl-question").fill("What is the capital?")
    expect(note).to_contain_text("never taught the word “capital”")
    opened.locator("#vl-files").set_input_files(ROOT / "examples" / "cat.jpg")
    expect(note).to_contain_text("drawn scenes only; cat.jpg is not one")
    while opened.locator(".vl-thumbs .vl-remove").count():
        opened.locator(".vl-thumbs .vl-remove").first.click()
    expect(note).to_contain_text("drawn scenes only, and there is none in the question")
    run_race(opened)
    expect(over).to_contain_text("The race is real, the answer means nothing.")
    other = {"id": "snap", "title": "Snap", "knows": "photographs", "words": None}
    opened.evaluate(
        "(other) => specvl.catalog.pairs.splice(1, 0, {...specvl.catalog.pairs[0], ...other})", other
    )
    opened.locator("#vl-files").set_input_files(ROOT / "examples" / "cat.jpg")
    opened.get_by_role("button", name="Use Snap").click()  # a way out
    expect(note).to_have_text("")


def test_methods_are_in_sight_and_a_fifth_says_why_not(opened):
    """At 1440 × 900 every method can be chosen without scrolling; the fifth is off and gives the reason."""
    foot = opened.locator(".vl-ask-foot").bounding_box()["y"]
    for chip in opened.locator(".vl-ask .vl-method").all():
        box = chip.bounding_box()
        assert box["y"] + box["height"] <= foot
    for name in ("chain", "sage", "lvspec"):
        opened.locator(f".vl-ask [data-method={name}] input").check()
    fifth = opened.locator(".vl-ask [data-method=ngram] input")
    expect(fifth).to_have_attribute("aria-disabled", "true")
    fifth.click(force=True)
    expect(fifth).not_to_be_checked()
    expect(opened.locator(".vl-method-note")).to_contain_text(
        "4 methods race beside the autoregressive lane at most"
    )
    assert opened.evaluate("specvl.ask.request.methods") == ["tabed", "chain", "sage", "lvspec"]
    for view in ("compare", "replay", "learn"):
        opened.evaluate("(v) => specvl.open(v)", view)
        assert opened.locator(".vl-primary:visible").count() <= 1


def test_keys_lead_to_run_and_enter_sends(opened):
    """Ten presses of Tab at most; Shift+Enter breaks the line, Enter runs; both are told."""
    opened.evaluate("document.body.focus()")
    presses = 0
    while opened.evaluate("document.activeElement.id") != "vl-run" and presses < 30:
        opened.keyboard.press("Tab")
        presses += 1
    assert presses <= 10
    expect(opened.locator(".vl-keys")).to_have_text("Enter runs, Shift+Enter: new line")
    question = opened.locator("#vl-question")
    question.fill("One line")
    question.press("Shift+Enter")
    assert question.input_value() == "One line\n" and not opened.evaluate("specvl.ask.running")
    question.press("Enter")
    assert opened.evaluate("specvl.ask.running")
    opened.wait_for_function("!specvl.ask.running && specvl.race.finished", timeout=60_000)


def test_a_reload_restores_the_form_the_file_and_the_race(opened, tmp_path: Path):
    """Question, methods, an own picture and the live race are there again; what is kept can be forgotten."""
    opened.locator("#vl-files").set_input_files(ROOT / "examples" / "cat.jpg")
    expect(opened.locator(".vl-thumbs img")).to_have_attribute("alt", "cat.jpg", timeout=60_000)
    opened.locator("#vl-question").fill("What is new?")
    opened.locator("[data-method=sage] input").check()
    run_race(opened)
    answers = opened.evaluate("specvl.race.list.map((lane) => lane.text)")
    opened.wait_for_timeout(800)
    opened.reload()
    opened.wait_for_function(READY, timeout=60_000)
    expect(opened.locator("#vl-question")).to_have_value("What is new?")
    assert opened.evaluate("specvl.ask.request.media.map((m) => m.name)") == ["cat.jpg"]
    assert opened.evaluate("specvl.race.list.map((lane) => lane.text)") == answers
    expect(opened.locator(".vl-stage")).not_to_have_class(re.compile("outdated"))
    choose(opened, "lossy", 3)
    opened.get_by_role("tab", name="Replay").click()
    expect(opened.locator(".vl-runs").last.locator(".vl-run")).to_have_count(1)
    opened.locator(".vl-runs").last.locator(".vl-run").click()
    opened.wait_for_function("specvl.race.meta.source === 'live' && specvl.race.list[0].end")
    assert opened.evaluate("specvl.race.list.map((lane) => lane.text)") == answers
    opened.get_by_role("tab", name="Replay").click()
    opened.get_by_role("button", name="Forget my races and my form").click()
    expect(opened.locator(".vl-runs").last.locator(".vl-run")).to_have_count(0)


SENT = """() => {
  const {api} = specvl.runner, send = api.trigger;
  api.trigger = (name, asked) => { window.sent = asked; send(name, asked); };
}"""


def test_a_follow_up_goes_on_after_a_reload_or_the_page_says_what_it_needs(opened):
    """The conversation and its file are sent again; a file that this browser lost is asked for."""
    opened.locator("#vl-files").set_input_files(ROOT / "examples" / "cat.jpg")
    expect(opened.locator(".vl-thumbs img")).to_have_attribute("alt", "cat.jpg", timeout=60_000)
    opened.locator("#vl-question").fill("What is new?")
    run_race(opened)
    answer = opened.evaluate("specvl.race.baseline.text.trim()")
    opened.wait_for_timeout(800)
    opened.reload()
    opened.wait_for_function(READY, timeout=60_000)
    follow = opened.get_by_role("button", name="Ask a follow-up")
    follow.click()
    opened.wait_for_timeout(800)
    opened.reload()
    opened.wait_for_function(READY, timeout=60_000)
    expect(follow).to_be_hidden()  # it is a turn of the conversation already
    opened.locator("#vl-question").fill("And its colour?")
    opened.evaluate(SENT)
    run_race(opened)
    (turn,) = opened.evaluate("window.sent.history")
    assert (turn["question"], turn["answer"], turn["media"][0]["name"]) == ("What is new?", answer, "cat.jpg")
    opened.wait_for_timeout(800)
    opened.evaluate(
        """async () => {
          const asked = indexedDB.open('specvl', 1);
          const db = await new Promise((done) => { asked.onsuccess = () => done(asked.result); });
          db.transaction('files', 'readwrite').objectStore('files').clear();
          db.close();
        }"""
    )
    opened.reload()
    opened.wait_for_function(READY, timeout=60_000)
    expect(opened.locator(".vl-notice")).to_contain_text(
        "cat.jpg could not be brought back, and a follow-up needs it. Add it again and run."
    )
    expect(follow).to_be_hidden()


def test_two_tabs_keep_their_own_forms(opened, visit, url: str):
    """What is typed in a second tab does not stand in the first after a reload."""
    opened.locator("#vl-question").fill("In the first tab?")
    opened.wait_for_timeout(800)
    other = visit.new_page()
    other.goto(url)
    other.wait_for_function(READY, timeout=60_000)
    other.locator("#vl-question").fill("In the second tab?")
    other.wait_for_timeout(800)
    other.close()
    opened.reload()
    opened.wait_for_function(READY, timeout=60_000)
    expect(opened.locator("#vl-question")).to_have_value("In the first tab?")


def test_a_result_is_shared_as_one_file(opened, tmp_path: Path):
    """One file that holds answers and charts, and asks nothing of any server."""
    finish_replay(opened)
    with opened.expect_download(timeout=120_000) as saved:
        opened.get_by_role("button", name="Share this race as one file").click()
    text = Path(saved.value.path()).read_text(encoding="utf-8")
    assert "There are five things" in re.sub("<[^>]+>", "", text) and "plotly" in text.lower()
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=.?https?:", text)


def test_views_have_addresses_and_back_works(opened, url: str):
    """Every view can be linked to and left with the browser's own button."""
    opened.get_by_role("tab", name="Learn").click()
    assert opened.url.endswith("#learn")
    opened.get_by_role("tab", name="Compare").click()
    opened.go_back()
    expect(opened.get_by_role("tab", name="Learn")).to_have_attribute("aria-selected", "true")
    opened.go_back()
    expect(opened.get_by_role("tab", name="Race")).to_have_attribute("aria-selected", "true")
    opened.goto(f"{url}/#whatif")
    opened.reload()
    opened.wait_for_function(READY, timeout=60_000)
    expect(opened.get_by_role("tabpanel", name="What if")).to_be_visible()


def test_a_phone_opens_a_sheet_and_its_targets_suit_fingers(opened):
    """A token opens a sheet that leaves it in sight; buttons measure 44 px; no label lies on another."""
    opened.set_viewport_size(PHONE)
    finish_replay(opened)
    select_widest(opened)
    opened.wait_for_function("document.querySelector('.vl-race .vl-tree text.word')")
    assert opened.locator(".vl-race .vl-tree").evaluate(OVERLAPS) == 0
    expect(opened.locator(".vl-race .vl-inspector")).to_be_hidden()
    token = opened.locator(".vl-lane[data-lane='1'] .tk.draft").nth(5)
    token.evaluate("(node) => node.scrollIntoView({block: 'center'})")
    token.click()
    sheet = opened.locator(".vl-race .vl-inspector")
    expect(sheet).to_be_visible()
    box = sheet.bounding_box()
    assert box["y"] + box["height"] >= PHONE["height"] - 1 and box["y"] > 200
    assert token.bounding_box()["y"] + 20 < box["y"]
    opened.get_by_role("button", name="Close the inspector").click()
    expect(sheet).to_be_hidden()
    small = opened.evaluate("""() => [...document.querySelectorAll('.vl button, .vl select, .vl summary')]
      .filter((n) => n.offsetParent && !n.matches('.vl-term, .vl-plainbutton, .vl-lane-name, [role=tab]'))
      .map((n) => [n.className, n.textContent, n.getBoundingClientRect().height])
      .filter(([,, height]) => height < 43.5)""")
    assert not small, small


def test_the_race_is_in_sight_at_twice_the_size(opened):
    """At 200 % zoom the numbers and the beginning of the answers stand on the first screen."""
    opened.set_viewport_size(ZOOMED)
    finish_replay(opened)
    opened.evaluate("scrollTo(0, 0)")
    foot = opened.locator(".vl-ask-foot").bounding_box()["y"]
    track = opened.locator(".vl-race .vl-track").bounding_box()
    assert track["y"] + track["height"] <= foot
    for width in (1440, 720, 390):
        opened.set_viewport_size({"width": width, "height": 900})
        select_widest(opened)
        opened.wait_for_timeout(300)
        assert opened.locator(".vl-race .vl-tree").evaluate(OVERLAPS) == 0, width


def test_a_failed_run_is_told_where_one_looks(opened):
    """The server's refusal stands on the stage, in place of the race that was there."""
    opened.evaluate("() => { specvl.ask.request.pair = 'nowhere'; specvl.ask.run(); }")
    expect(opened.locator(".vl-notice.wrong")).to_contain_text("nowhere", timeout=60_000)
    expect(opened.locator(".vl-lane")).to_have_count(0)
