"""What the page explains of a race, on screens of every size: steps, words and answers; the race as
a story; what the target thinks; accessibility, checked by axe in every view, light and dark.
"""

import re
from functools import partial

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.page.conftest import DESKTOP, PHONE, ZOOMED, press
from tests.page.made_up import DOUBTFUL
from tests.page.test_race import CHANGED, choose, drawn, finish_replay, run_race

BAD = ("serious", "critical")
RULES = {"resultTypes": ["violations"]}
NOTHING_OVER = "document.documentElement.scrollWidth <= innerWidth"
WHOLE_LINES = """(texts) => texts.every((n) => {
  const lines = n.clientHeight / parseFloat(getComputedStyle(n).lineHeight);
  return lines > 1.5 && Math.abs(lines - Math.round(lines)) < 0.1;
})"""
THREE_LINES = """() => {
  const answers = [...document.querySelectorAll('.vl-chase p')];
  return answers.length === 6 && answers.every((n) => n.clientHeight > 60);
}"""
ROOM_BESIDE = """() => {
  const high = (part) => document.querySelector(`.vl-race ${part}`).getBoundingClientRect().height;
  return high('.vl-tree-card') - high('.vl-tree-card .vl-strip') - high('.vl-tree');
}"""
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
      specvl.replay.finish();
      const lane = specvl.race.focused;
      const widest = lane.rounds.reduce((a, b) => (b.path.length > a.path.length ? b : a));
      specvl.race.select({lane: lane.name, round: widest.index});
    }""")


def test_one_step_drafts_checks_and_settles(opened):
    """In a slow replay guesses stand pale behind the answer until the check has passed."""
    finish_replay(opened)
    opened.evaluate("""() => {
      const lane = specvl.race.focused;
      const k = lane.rounds.findIndex((r) => r.path.length > 2);
      const round = lane.rounds[k];
      specvl.race.select(null);
      specvl.race.slower = 1e3;
      specvl.race.setHead(lane.totalsAfter(k).clock_s + round.draft_s * 0.999);
    }""")
    pale = opened.locator(".vl-lane[data-lane='1'] .vl-guess .tk.guess:visible")
    expect(pale.first).to_be_visible()
    expect(opened.locator(".vl-stage .vl-tree-card > header .vl-facts")).to_contain_text("guessing")
    expect(opened.locator(".vl-race .vl-inspect-head")).to_contain_text("drafted, being checked")


def test_one_sentence_with_this_races_numbers(opened):
    """Above the race: who guessed, who confirmed, and the measured figure of this very race."""
    finish_replay(opened)
    speed = opened.evaluate("specvl.race.speedup(specvl.race.list[1])")
    told = f"{speed:.2f}× faster to write, " if speed >= 1 else f"{1 / speed:.2f}× slower"
    expect(headline(opened)).to_contain_text(told)
    expect(headline(opened)).to_contain_text(
        "Green words were guessed by a small model and confirmed by the large one: same"
    )
    choose(opened, "lossy", 3)
    # The relaxed lane alone beside the plain one.
    opened.evaluate("specvl.race.setFocus('lvspec'); specvl.race.lanes.delete('sage')")
    opened.evaluate("specvl.replay.finish()")
    own, said = opened.evaluate("""async () => {
      const {differences} = await import(document.querySelector('link[href$="verdict.js"]').href);
      const lossy = specvl.race.lanes.get('lvspec');
      return differences(specvl.race, lossy).changes[0].map((t) => t.trim());
    }""")
    expect(headline(opened)).to_contain_text(
        f"But it says “{said}” where the large model alone says “{own}”"
    )


def test_answers_stand_in_full_and_mark_where_they_differ(opened):
    """Nothing is cut off; other words are marked in both answers, what they share is shaded. The
    legend has the mark where there is such a word.
    """
    marks = opened.get_by_role("note", name="How to read the text")
    legend = marks.locator(".other")
    finish_replay(opened)
    expect(legend).to_be_hidden()
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
    expect(legend).to_be_visible()
    # What was relaxed keeps the legend's ground; that it differs is a frame around it.
    ground = "(node) => getComputedStyle(node).backgroundColor"
    relaxed_too = opened.locator(".vl-lane[data-lane='2'] .tk.relaxed.other").first
    entry = marks.locator(".relaxed")
    assert relaxed_too.evaluate(ground) == entry.evaluate(ground)
    for framed in (relaxed_too, legend):
        assert framed.evaluate("(node) => getComputedStyle(node).outlineStyle") == "solid"
    shared = opened.evaluate("""() => {
      const [a, b] = ['ar', 'lvspec'].map((name) => specvl.race.lanes.get(name).tokens);
      return a.findIndex((token, i) => token.id !== b[i]?.id);
    }""")
    expect(opened.locator(".vl-lane[data-lane='0'] .tk.shared")).to_have_count(shared)
    tops = opened.evaluate("""async () => {
      const boxes = [...document.querySelectorAll('.vl-text')];
      for (const box of boxes) box.style.maxHeight = '60px';
      boxes[0].scrollTop = 30;
      for (let i = 0; i < 100 && boxes.some((box) => box.scrollTop !== 30); i += 1)
        await new Promise((done) => setTimeout(done, 50));
      return boxes.map((box) => box.scrollTop);
    }""")
    assert tops == [30, 30, 30]


def test_every_term_explains_itself(opened):
    """Columns and tree open an explanation by pointer and key. Nothing moves for who asked for
    stillness: the recorded race stands finished instead of playing.
    """
    assert opened.evaluate("specvl.race.finished && !specvl.replay.playing")
    card = opened.locator(".vl-explain")
    for place in (".vl-track thead", ".vl-stage .vl-tree-card"):
        term = opened.locator(f"{place} .vl-term").last
        for way in (term.click, partial(term.press, "Enter")):
            way()
            expect(card).to_be_visible()
            assert len(card.inner_text()) > 30
            inside = card.evaluate("""(n) => {
                  const r = n.getBoundingClientRect();
                  return r.left >= 0 && r.right <= innerWidth && r.bottom <= innerHeight;
                }""")
            assert inside, place
            opened.keyboard.press("Escape")
            expect(card).to_be_hidden()


def test_what_if_follows_its_sliders(opened):
    """Untouched it is the race itself. What it computes is tested in tests/js/simulate.test.js."""
    finish_replay(opened)
    opened.get_by_text("What if the drafter were different?").click()
    value = opened.locator(".vl-whatif-bar b")
    measured = f"{opened.evaluate('specvl.race.speedup(specvl.race.focused)'):.2f}×"
    for at in (1, 2):
        expect(value.nth(at)).to_have_text(measured)
    lane = opened.locator(".vl-track tr.focused").get_attribute("data-colour")
    expect(opened.locator(f".vl-whatif-bar[data-colour='{lane}']")).to_have_count(2)
    breaks_even = re.compile(r"It breaks even at [\d.]+ % kept guesses")
    expect(opened.locator(".vl-whatif")).to_contain_text(breaks_even)
    for slider, to in (("requests", "16"), ("quality", "1"), ("draft", "0.5"), ("quality", "0")):
        before = value.nth(2).inner_text()
        opened.locator(f"#vl-w-{slider}").fill(to)
        expect(value.nth(2)).not_to_have_text(before)
    formula = opened.locator(".vl-whatif-formula").inner_text()
    tau, v, gamma, c, s = (float(number) for number in re.findall(r"\d+\.?\d*", formula))
    assert tau / (v + gamma * c) == pytest.approx(s, rel=0.03)
    press(opened, "As recorded")
    expect(value.nth(2)).to_have_text(measured)
    spoken = re.compile(r"times at \d+")
    expect(opened.locator(".vl-whatif .vl-plot")).to_have_attribute("aria-label", spoken)


def test_methods_are_in_sight_and_one_too_many_says_why_not(opened):
    """At 1280 × 720 picture, question, the papers and Run are seen without scrolling, the other
    methods after one press; all are reached by Tab; one lane too many is off and gives the reason.
    """
    opened.set_viewport_size({"width": 1280, "height": 720})
    for part in (".vl-thumbs img", "#vl-question", ".vl-method:visible", "#vl-run"):
        for seen in opened.locator(f".vl-ask {part}").all():
            box = seen.bounding_box()
            assert box["y"] + box["height"] <= 720, part
    chips = opened.locator(".vl-ask .vl-method:visible")
    assert chips.count() == 6
    opened.locator("#vl-question").focus()
    for chip in chips.all():
        opened.keyboard.press("Tab")
        expect(chip.locator("input")).to_be_focused()
    custom = opened.locator(".vl-ask [data-method=custom]")
    expect(custom).to_be_hidden()
    others = opened.get_by_text(re.compile(r"\d+ other methods"))
    others.click()
    expect(custom).to_be_hidden()
    assert chips.count() - 6 == int(others.inner_text().split()[0])
    opened.get_by_text("Expert: a method of your own parts").click()
    expect(custom).to_be_visible()
    for name in ("chain", "sage", "lvspec", "hivis", "dream"):
        opened.locator(f".vl-ask [data-method={name}] input").check()
    seventh = opened.locator(".vl-ask [data-method=ngram] input")
    expect(seventh).to_have_attribute("aria-disabled", "true")
    seventh.click(force=True)
    expect(seventh).not_to_be_checked()
    expect(opened.locator(".vl-method-note")).to_contain_text(
        "6 methods at most race beside the autoregressive lane"
    )
    assert opened.evaluate("specvl.form.request.methods.length") == 6
    for view in ("compare", "learn"):
        opened.evaluate("(v) => specvl.open(v)", view)
        assert opened.locator(".vl-primary:visible").count() <= 1


def test_a_methods_hint_goes_with_the_focus_and_the_choice_that_it_was_of(opened):
    hint, sage = (
        opened.locator(".vl-method-note"),
        opened.locator(".vl-ask [data-method=sage] input"),
    )
    sage.check()
    expect(hint).to_contain_text("SAGE: ")
    opened.locator("[data-example=scene]").click()
    expect(hint).to_have_text("")
    sage.focus()
    expect(hint).to_contain_text("SAGE: ")
    opened.locator("#vl-question").focus()
    expect(hint).to_have_text("")


def test_five_papers_are_chosen_in_one_press_and_race(opened):
    """All stand side by side without hanging over; what they have in common is told once, below
    them; on a phone the plain lane and the one in focus stay in sight of each other.
    """
    press(opened, "Choose all five papers")
    assert not opened.evaluate("specvl.form.running")
    run_race(opened, 120_000)
    names = ["ar", "tabed", "sage", "lvspec", "hivis", "dream"]
    assert opened.evaluate("specvl.race.list.map((lane) => lane.name)") == names
    apart = opened.evaluate("""async () => {
      const {differences} = await import(document.querySelector('link[href$="verdict.js"]').href);
      const [, ...rest] = specvl.race.list;
      return rest.filter((l) => differences(specvl.race, l)).map((lane) => lane.begin.title);
    }""")
    assert apart == ["LVSpec"]
    # Tree, charts, inspector and a phone's second lane are of the lane that the sentence names.
    named = opened.evaluate("specvl.race.focused.title")
    expect(headline(opened)).to_contain_text(f"Green words of {named} ")
    expect(opened.locator(".vl-lane.focused .vl-lane-name").last).to_have_text(named)
    filled = "[...document.querySelectorAll('.vl-track .vl-bar i')].map((n) => n.style.transform)"
    assert opened.evaluate(filled) == ["scaleX(1)"] * 6
    for width, abreast in ((1440, 3), (1024, 2), (390, 2)):
        opened.set_viewport_size({"width": width, "height": 844})
        lanes = opened.locator(".vl-lane:visible")
        tops = [lane.bounding_box()["y"] for lane in lanes.all()]
        assert tops.count(tops[0]) == abreast and len(tops) == (2 if width == 390 else 6)
        assert opened.evaluate(NOTHING_OVER)
    for width, height in ((360, 640), (844, 390)):
        opened.set_viewport_size({"width": width, "height": height})
        opened.evaluate("scrollTo(0, 0)")
        foot = opened.locator(".vl-ask-foot").bounding_box()["y"]
        for answer in lanes.locator(".vl-text").all():
            assert answer.bounding_box()["y"] + 60 < foot  # three lines
    opened.evaluate("specvl.race.setFocus('hivis')")
    expect(lanes.locator(".vl-lane-name")).to_have_text(["Autoregressive", "HiViS"])
    # Where speeds come from is folded, and so is what several lanes have in common.
    opened.set_viewport_size(DESKTOP)
    opened.evaluate("specvl.race.setFocus('tabed')")
    said, slow = opened.locator(".vl-verdict"), opened.locator(".vl-slow")
    alike = "TABED, SAGE, HiViS and DREAM: same answer, token for token"
    opened.evaluate(CHANGED, {"slower": 0.2})
    expect(said).to_contain_text(alike)
    expect(said).to_contain_text("LVSpec: differs from token")
    expect(slow.locator("li").first).to_be_hidden()
    slow.get_by_text("Why these speeds, of five lanes").click()
    expect(slow.locator("li")).to_have_count(5)
    expect(slow.locator("li").first).to_contain_text(re.compile(r"TABED 0\.\d\d×: .* but a check"))
    press(opened, "Full screen")
    opened.wait_for_function(THREE_LINES)


def test_no_label_of_the_tree_lies_on_another(opened):
    """On a wide screen, at 200 % zoom and on a phone, where the widest round is."""
    finish_replay(opened)
    for size in (DESKTOP, ZOOMED, PHONE):
        opened.set_viewport_size(size)
        select_widest(opened)
        opened.wait_for_timeout(300)
        tree = opened.locator(".vl-stage .vl-tree")
        expect(tree.locator("text.word").first).to_be_attached()
        opened.wait_for_function(f"({OVERLAPS})(specvl.view.tree.svg) === 0")
        opened.wait_for_function(f"({ROOM_BESIDE})() < 110")  # heading and slider


BOX = ".vl-stage .vl-tree-card > .vl-tree-box"
FITS = "(n) => n.scrollWidth <= n.clientWidth"
NEAR_IN_SIGHT = """() => {
  const box = document.querySelector('.vl-tree-card > .vl-tree-box');
  const frame = box.getBoundingClientRect();
  const last = [...box.querySelectorAll('text.word')].find((n) => n.textContent.includes('Near'));
  const word = last?.getBoundingClientRect();
  return word && box.scrollWidth > box.clientWidth && frame.left <= word.left
    && word.right <= frame.right;
}"""
CHAIN = """(kept) => {
  const texts = (' Here we have six objects on a black background, and under it something').split(
    /(?= )/).slice(0, 11);
  const token = (i, origin) => ({id: i, text: texts[i] ?? ' Near', origin});
  const tokens = texts.slice(1, kept + 1).map((_, i) => token(i + 1, 'draft'));
  const round = {...specvl.race.focused.rounds[0], kind: 'round', index: 0, candidates: null,
    views: null, notes: {}, path: [...tokens.keys(), kept],
    tokens: [...tokens, token(11, 'target')],
    tree: {tokens: texts.map((_, i) => i), parent: texts.map((_, i) => i - 1), texts,
      draft_logp: texts.map((_, i) => i ? -i / 9 : null)}};
  const {begin, end} = specvl.race.focused;
  specvl.stage.show([{...begin, kind: 'begin'}, round, {...end, kind: 'end'}],
    {source: 'recorded', question: 'A chain', media: []}, false);
}"""
"""A round with a chain of ten drafts, of which so many were kept."""


def test_a_chain_of_eleven_nodes_fits_and_the_targets_own_token_is_whole(opened):
    """On a wide screen without scrolling; on a phone the tree scrolls, begins at the end of the
    round, and shades the side where more of it is.
    """
    finish_replay(opened)
    box = opened.locator(BOX)
    for n_kept in (10, 9, 4):
        opened.set_viewport_size(DESKTOP)
        opened.evaluate(CHAIN, n_kept)
        last = box.locator("text.word", has_text="Near")
        expect(last).to_be_visible()
        opened.wait_for_function(f"({FITS})(document.querySelector('{BOX}'))")
        assert box.evaluate(OVERLAPS) == 0, n_kept
        opened.set_viewport_size(PHONE)
        opened.wait_for_function(NEAR_IN_SIGHT)
        assert box.evaluate("(n) => getComputedStyle(n).maskImage") == "none"
        assert box.evaluate("(n) => getComputedStyle(n).backgroundAttachment").count("local") == 2


def test_the_race_is_in_sight_at_twice_the_size_and_a_phone_opens_a_sheet(opened):
    """Zoomed, numbers and the beginning of the answers stand on the first screen. On a phone a
    token opens a sheet that leaves it in sight, and buttons measure 44 px."""
    finish_replay(opened)
    opened.set_viewport_size(ZOOMED)
    opened.evaluate("scrollTo(0, 0)")
    foot = opened.locator(".vl-ask-foot").bounding_box()["y"]
    track = opened.locator(".vl-race .vl-track").bounding_box()
    assert track["y"] + track["height"] <= foot
    opened.set_viewport_size(PHONE)
    expect(opened.locator(".vl-race-head .vl-badge")).to_be_in_viewport()
    sheet = opened.locator(".vl-race .vl-inspector")
    expect(sheet).to_be_hidden()
    token = opened.locator(".vl-lane[data-lane='1'] .tk.draft").nth(5)
    token.evaluate("(node) => node.scrollIntoView({block: 'center'})")
    token.click()
    expect(sheet).to_be_visible()
    box = sheet.bounding_box()
    assert box["y"] + box["height"] >= PHONE["height"] - 1 and box["y"] > 200
    assert token.bounding_box()["y"] + 20 < box["y"]
    press(opened, "Close the inspector")
    expect(sheet).to_be_hidden()
    opened.locator(".vl-lane.focused .vl-text").focus()
    opened.keyboard.press("ArrowRight")
    expect(sheet).to_be_visible()
    opened.keyboard.press("Tab")
    assert sheet.evaluate("(node) => node.contains(document.activeElement)")
    opened.keyboard.press("Shift+Tab")
    expect(opened.locator(".vl-lane.focused .vl-text")).to_be_focused()
    opened.keyboard.press("Escape")
    expect(sheet).to_be_hidden()
    small = opened.evaluate(
        """() => [...document.querySelectorAll('.vl button, .vl select, .vl summary')]
      .filter((n) => n.offsetParent
        && !n.matches('.vl-term, .vl-plainbutton, .vl-lane-name, [role=tab]'))
      .map((n) => [n.className, n.textContent, n.getBoundingClientRect().height])
      .filter(([,, height]) => height < 43.5)"""
    )
    assert not small, small
    opened.evaluate("scrollTo(0, document.body.scrollHeight)")
    press(opened, "Your picture")
    expect(opened.locator("#vl-question")).to_be_in_viewport()
    expect(opened.get_by_role("button", name="Upload")).to_be_focused()


def serious(page, part: str, dark: bool) -> dict[str, list[str]]:
    """What axe finds in a part of the page, light or dark: elements by the rule they break."""
    page.evaluate("(on) => document.body.classList.toggle('dark', on)", dark)
    drawn(page)
    found = Axe().run(page, part, RULES).response["violations"]
    return {
        fault["id"]: [node["html"][:160] for node in fault["nodes"]][:4]
        for fault in found
        if fault["impact"] in BAD
    }


def check_both_themes(page, part: str) -> None:
    for dark in (True, False):
        bad = serious(page, part, dark)
        assert not bad, bad


def test_a_finger_steps_by_a_round_and_swipes_up_over_a_slider(opened):
    """Two buttons stand beside the tree's slider; a swipe that begins on a slider leaves it."""
    finish_replay(opened)
    opened.set_viewport_size(PHONE)
    opened.evaluate("specvl.race.setHead(0.5 * specvl.race.duration)")
    box = opened.locator(".vl-player input").bounding_box()
    x, y = box["x"] + 0.6 * box["width"], box["y"] + 20
    touch = opened.context.new_cdp_session(opened)
    for kind, *up in (("Start", 0), ("Move", 60), ("Move", 120), ("End",)):
        points = [{"x": x, "y": y - rise} for rise in up]
        touch.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})
    expect(opened.locator(".vl-player input")).to_have_value("500")
    tree, index = opened.locator(".vl-stage .vl-tree-card"), "specvl.race.selected.round"
    before = opened.evaluate("specvl.race.currentRound.index")
    for name, moved in (("Previous", -1), ("Previous", -2), ("Next", -1)):
        tree.get_by_role("button", name=f"{name} round").click()
        assert opened.evaluate(index) == before + moved
        expect(tree).to_contain_text(f"round {before + moved + 1} ")


def test_a_race_plays_as_a_story_step_by_step(opened):
    """Keys and taps lead through every round as it was recorded; the last words are the race's own
    sentence; Escape leaves, and the button that opened the story has the focus again.
    """
    finish_replay(opened)
    headline = opened.locator(".vl-says .vl-headline").inner_text()
    press(opened, "Explain this race")
    story = opened.get_by_role("dialog", name="The race as a story")
    caption, text = story.locator(".vl-story-caption"), story.locator(".vl-story-text").first
    expect(story).to_contain_text("What is in the picture?")
    expect(story.locator("img")).to_have_count(1)
    expect(caption).to_contain_text("a small model guesses ahead")
    drafted, kept, own = opened.evaluate(
        "(({tree, path, tokens}) => [tree.tokens.length - 1, path.length - 1, tokens.at(-1).text])"
        "(specvl.race.focused.rounds[0])"
    )
    number = ["none", "one", "two", "three", "four", "five", "six"]
    opened.keyboard.press("ArrowRight")
    expect(caption).to_have_text(f"A small model guesses {number[drafted]} tokens.")
    expect(text.locator(".guess").first).to_be_visible()
    opened.keyboard.press("ArrowRight")
    expect(caption).to_contain_text(f"checks them all at once and keeps {number[kept]}, ")
    expect(caption).to_contain_text(f"“{own.strip()}”")
    expect(text.locator(".draft")).to_have_count(kept)
    expect(text.locator(".guess")).to_have_count(0)
    opened.keyboard.press("ArrowLeft")
    expect(caption).to_contain_text("guesses")
    text.click()
    expect(caption).to_contain_text("checks")
    opened.set_viewport_size(PHONE)
    for part in (story, opened.locator("html")):
        assert part.evaluate("(n) => n.scrollWidth <= innerWidth")  # nothing hangs over
    check_both_themes(opened, ".vl-story")
    opened.keyboard.press("End")
    expect(caption).to_have_text(headline)
    assert text.inner_text().strip() == opened.evaluate("specvl.race.focused.text").strip()
    plain = opened.evaluate("specvl.race.baseline.text").strip()
    expect(story.locator(".vl-rest")).to_contain_text(plain)
    expect(story.get_by_role("button", name="Next")).to_be_disabled()
    opened.keyboard.press("Escape")
    expect(story).to_be_hidden()
    expect(opened.get_by_role("button", name="Explain this race")).to_be_focused()


def test_a_race_fills_the_screen_and_is_played_by_keys(opened):
    """From round to round, with the plain lane's place in the leader's text, until Escape."""
    finish_replay(opened)
    press(opened, "Full screen")
    room = opened.get_by_role("dialog", name="The race over the whole screen")
    start = room.get_by_role("button", name="Start")
    for _ in range(2):  # as at first, so after it has played out
        start.click()
        expect(room.locator(".vl-chase .tk:not([hidden])")).to_have_count(0)
        for _ in range(3):
            opened.keyboard.press("ArrowRight")
        expect(room.locator(".vl-facts").last).to_contain_text("round 3")
        assert opened.evaluate("specvl.race.roundsShown(specvl.race.focused)") == 3
        opened.evaluate("specvl.replay.finish()")
    start.click()
    for plays in (True, False):  # whatever button has the focus
        start.focus()
        opened.keyboard.press(" ")
        assert opened.evaluate("specvl.replay.playing") is plays
    opened.evaluate("specvl.race.setHead(specvl.race.duration / 2)")
    expect(room.locator(".vl-chase .ghost")).to_have_count(1)
    expect(room.locator("img")).to_have_count(1)
    opened.keyboard.press("Enter")
    expect(room.locator(".vl-chase .tk:not([hidden])")).to_have_count(0)
    opened.keyboard.press("End")
    expect(room).to_contain_text("faster to write")
    opened.wait_for_function("""[...document.querySelectorAll('.vl-chase p')]
      .every((n) => n.clientHeight && n.scrollHeight <= n.clientHeight)""")
    for small in (PHONE, ZOOMED):
        opened.set_viewport_size(small)
        assert room.evaluate("(n) => n.scrollWidth <= innerWidth")
        assert room.locator(".vl-story-text").evaluate_all(WHOLE_LINES)
    opened.keyboard.press("Escape")
    expect(room).to_be_hidden()
    assert opened.evaluate("specvl.race.head") is None


def test_a_trace_on_this_server_has_an_address_and_stands_alone_in_a_frame(opened, url: str):
    path = opened.evaluate("specvl.catalog.examples[1].trace.replace('gradio_api/file=', '')")
    opened.goto(f"{url}?trace={path}&embed=1")
    opened.wait_for_function("window.specvl?.ready")
    assert opened.evaluate("specvl.race.meta.example === specvl.catalog.examples[1].id")
    expect(opened.locator(".vl-ask")).to_be_hidden()
    opened.goto(f"{url}?trace=https://elsewhere.example/a.jsonl")
    opened.wait_for_function("window.specvl?.ready")
    expect(opened.locator(".vl-notice")).to_contain_text("not on this server")


def test_a_follow_up_opens_the_folded_form_of_a_phone(opened):
    opened.set_viewport_size(PHONE)
    run_race(opened)
    press(opened, "Ask a follow-up")
    expect(opened.locator("#vl-question")).to_be_focused()
    expect(opened.locator("#vl-question")).to_be_in_viewport()


def test_what_the_target_thinks_of_its_answer_stands_under_it(opened):
    """In words, with how often such answers were right; nothing before the answer is whole."""
    finish_replay(opened)
    sure = opened.locator(".vl-sure")
    expect(sure).to_be_hidden()
    opened.evaluate(f"specvl.form.request.sampling.seed = {DOUBTFUL}")
    opened.evaluate("specvl.form.request.sampling.max_new_tokens = 24")
    run_race(opened)
    expect(sure).to_have_text(
        "The large model is guessing: 27 % of such answers were right on photographs held out of"
        " its training."
    )
    under, lane = sure.bounding_box(), opened.locator(".vl-lane").first.bounding_box()
    assert under["y"] >= lane["y"] + lane["height"]
    opened.evaluate("specvl.race.setHead(0)")
    expect(sure).to_be_hidden()
    opened.evaluate("specvl.race.setHead(null)")
    expect(sure).to_be_visible()
    check_both_themes(opened, ".vl-stage")
    opened.evaluate("specvl.form.request.sampling.seed = 1")
    run_race(opened)
    expect(sure).to_be_hidden()


SMALL = """() => [...document.querySelectorAll('.vl *')]
  .filter((n) => n.checkVisibility() && n.getBoundingClientRect().width > 1)
  .filter((n) => [...n.childNodes].some((c) => c.nodeType === 3 && c.data.trim()))
  .map((n) => {
    const svg = n.closest('svg[viewBox]');
    const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    return [parseFloat(getComputedStyle(n).fontSize) * scale, n.textContent];
  })
  .filter(([size]) => size < 12 - 0.01)"""
"""Text of less than 12 pixels."""


def test_axe_finds_nothing_serious(opened):
    """Names, roles, contrast, keyboard: every view with a race on the page and everything unfolded.
    No text is smaller than 12 pixels.

    Light on a wide screen, dark on a phone.
    """
    opened.emulate_media(reduced_motion="reduce")  # nothing fades in while it is looked at
    finish_replay(opened)
    opened.evaluate("document.querySelectorAll('.vl details').forEach((d) => { d.open = true; })")
    opened.evaluate("specvl.race.select({lane: specvl.race.focus, token: 8})")
    found = {}
    for dark, size in ((False, DESKTOP), (True, PHONE)):
        opened.set_viewport_size(size)
        for view in ("race", "compare", "learn"):
            opened.evaluate("(name) => specvl.open(name)", view)
            # What stands around a view is the same for all of them.
            part = ".vl" if view == "race" else f"#vl-view-{view}"
            if bad := serious(opened, part, dark):
                found[view, dark] = bad
            assert not (small := opened.evaluate(SMALL)), small
    assert not found, found


def test_nothing_hangs_over_and_everything_is_reached(opened):
    """On a phone and at 200 % zoom (half the width): every view and its tab, the form unfolds."""
    finish_replay(opened)
    for name in ("Compare", "Learn", "Race"):
        tab = opened.get_by_role("tab", name=name)
        for size in (PHONE, ZOOMED):
            opened.set_viewport_size(size)
            box = tab.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= size["width"], name
            tab.click()
            assert opened.evaluate(NOTHING_OVER), name
    unfold = opened.get_by_role("button", name="Your picture")
    for size in (PHONE, ZOOMED):
        opened.set_viewport_size(size)
        expect(opened.locator("#vl-question")).to_be_hidden()
        unfold.click()
        expect(opened.locator("#vl-question")).to_be_visible()
        expect(opened.locator("#vl-run")).to_be_in_viewport()
        assert opened.evaluate(NOTHING_OVER)
        unfold.click()
