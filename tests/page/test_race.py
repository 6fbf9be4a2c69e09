"""What a person sees of a race, recorded and live: colours, numbers, tree, charts, inspector."""

import re

import pytest
from playwright.sync_api import expect

from tests.conftest import second_try
from tests.page.conftest import LIVE, note_sent, press
from tests.page.made_up import BUSY, LONG
from tests.shared.server import SHOWN

LOADING = ("Precision", "Picture detail")
FINISHED = "specvl.race.finished && specvl.race.list.length > 0"


def run_race(page, timeout: float | None = None) -> None:
    """A live race to its end, another than the one on the page."""
    page.evaluate("() => { window.before = specvl.race.meta; }")
    page.locator("#vl-run").click()
    page.wait_for_function(f"specvl.race.meta !== window.before && {LIVE}")
    page.wait_for_function(f"!specvl.form.running && {FINISHED}", timeout=timeout)


def begin_long_run(page) -> None:
    """A live race that does not end by itself, with its first words on the page."""
    page.evaluate(f"specvl.form.request.sampling.max_new_tokens = {LONG}")
    page.locator("#vl-run").click()
    page.wait_for_function(f"{LIVE} && specvl.race.list[0]?.tokens.length > 10")


def unfold(page) -> None:
    """Open the parameters of the chosen methods."""
    page.evaluate("document.querySelector('.vl-parameters').open = true")


def choose(page, example: str, lanes: int) -> None:
    page.evaluate("specvl.race.meta = {...specvl.race.meta, earlier: true}")
    page.locator(f"[data-example={example}]").click()
    page.wait_for_function("!specvl.race.meta.earlier")
    expect(page.locator(".vl-lane")).to_have_count(lanes)


def finish_replay(page) -> None:
    """The whole recorded race at once, and all of it on the page."""
    page.evaluate("specvl.replay.finish()")
    page.wait_for_function(FINISHED)
    page.wait_for_function(f"{SHOWN} === specvl.race.list.reduce((n, l) => n + l.tokens.length, 0)")


def drawn(page) -> None:
    """Wait until every chart in sight shows what is known."""
    page.wait_for_function("![...specvl.painter.charts.values()].some((c) => c.visible && c.dirty)")


def test_two_clicks_to_a_finished_race_whose_numbers_are_the_fold_of_its_records(opened):
    """An example, then Run; the track shows Σ tokens over Σ seconds, nothing rounder."""
    choose(opened, "scene", 2)
    run_race(opened)
    expect(opened.locator(".vl-race-head .vl-badge")).to_have_text("Your race")
    expect(opened.locator(".vl-track tbody tr")).to_have_count(2)
    # The words of a made-up race begin anew after a while.
    same, easy = "TABED: same answer, token for token", "The answer repeats itself, [^·]+ before"
    verdict = rf"^{same} · TABED \d\.\d\d×: [^·]+ AR steps[^·]+ · {easy}$"
    expect(opened.locator(".vl-verdict")).to_have_text(re.compile(verdict))
    sums = opened.evaluate("""() => specvl.race.list.map((lane) => {
      let tokens = 0, seconds = 0;
      for (const r of lane.rounds) {
        tokens += r.tokens.length;
        seconds += r.draft_s + r.verify_s + r.commit_s + r.other_s;
      }
      return {tokens, seconds, rounds: lane.rounds.length, told: lane.end.totals};
    })""")
    for i, lane in enumerate(sums):
        totals = lane["told"]
        assert (totals["n_tokens"], totals["n_rounds"]) == (lane["tokens"], lane["rounds"])
        row = opened.locator(f".vl-track tr[data-lane='{i}']")
        speed = lane["tokens"] / lane["seconds"]
        expect(row.locator(".speed")).to_have_text(
            f"{speed:.0f}" if speed >= 99.95 else f"{speed:.1f}"
        )
        expect(row.locator(".tau")).to_have_text(f"{lane['tokens'] / lane['rounds']:.2f}")
    ratio = (sums[1]["tokens"] / sums[1]["seconds"]) / (sums[0]["tokens"] / sums[0]["seconds"])
    expect(opened.locator(".vl-track tr[data-lane='1'] .speedup")).to_contain_text(f"{ratio:.2f}×")


# Marks that begin with the space at the end of a line.
BROKEN = """(box) => {
  box.style.width = '120px';
  return [...box.querySelectorAll('[data-i]:not([data-instead])')].filter((mark) => {
    const [first, next] = mark.getClientRects();
    return next && first.width && !mark.textContent.trim().includes(' ');
  }).map((mark) => mark.textContent);
}"""


def test_text_and_colours_come_token_by_token_from_the_records(opened):
    """Every token stands once, in order, of its own origin; the answer reads as the records."""
    choose(opened, "lossy", 3)
    finish_replay(opened)
    for number in range(3):
        lane = opened.locator(f".vl-lane[data-lane='{number}'] .vl-text")
        shown = lane.evaluate(
            "(box) => [...box.querySelectorAll('[data-i]')].map((n) => [n.textContent,"
            " n.className])"
        )
        told = opened.evaluate(f"specvl.race.list[{number}].tokens.map((t) => [t.text, t.origin])")
        assert [text for text, _ in shown] == [text for text, _ in told]
        kinds = {name.split()[1] for _, name in shown}
        assert kinds == {"ar"} if number == 0 else kinds == {origin for _, origin in told}
        assert not lane.evaluate(BROKEN)
    expect(opened.locator(".vl-lane[data-lane='2'] .vl-badge.lossy")).to_have_text("may differ")
    expect(opened.locator(".vl-lane[data-lane='2'] .tk.relaxed").first).to_be_visible()
    lines = opened.evaluate("""() => ['draft', 'relaxed', 'target'].map((kind) =>
      getComputedStyle(document.querySelector(`.vl-text .tk.${kind}`)).textDecorationStyle)""")
    assert len({*lines}) == 3  # a second cue beside colour


def test_precision_and_picture_detail_are_chosen_for_a_pair_and_shown(opened):
    choose(opened, "scene", 2)
    expect(opened.locator(".vl-lane .vl-promise .vl-badge")).to_have_count(0)
    unfold(opened)
    panel = opened.locator(
        "details", has=opened.get_by_text("Precision and picture detail", exact=True)
    ).last
    panel.locator("summary").click()
    precision, detail = (panel.get_by_label(name, exact=True) for name in LOADING)
    expect(precision.locator("option").first).to_have_text("what fits (float32)")
    expect(panel.get_by_label("Quantisation")).to_have_count(0)  # only a GPU has packed weights
    precision.select_option("bfloat16")
    detail.fill("0.5")
    detail.blur()
    expect(panel.locator("summary .vl-changed")).to_have_text("2 changed")
    note_sent(opened)
    run_race(opened)
    asked = opened.evaluate("({...window.sent, loading: specvl.form.request.loading})")
    assert (asked["dtype"], asked["picture_detail"]) == ("bfloat16", 0.5)
    assert "quantised" not in asked
    assert asked["loading"] == {asked["pair"]: {"dtype": "bfloat16", "picture_detail": 0.5}}
    expect(panel).to_contain_text(
        "The last race ran in bfloat16 on none (made up); 64 of the 80 tokens"
    )
    expect(opened.locator(".vl-lane[data-lane='1'] .vl-promise")).to_have_text("exact")
    expect(opened.locator(".vl-lane[data-lane='0'] .vl-promise .vl-badge")).to_have_count(0)
    panel.get_by_text("Reset all").click()
    expect(precision).to_have_value("")


def test_stop_ends_a_run_and_keeps_what_came(opened):
    """Stop ends the lanes within moments; what was written stays and says that it was stopped."""
    begin_long_run(opened)
    opened.locator("#vl-stop").click()
    opened.wait_for_function("!specvl.form.running")
    assert opened.evaluate("specvl.race.list[0].tokens.length") < LONG
    expect(opened.locator(".vl-lane[data-lane='0'] .vl-lane-note")).to_have_text("stopped")
    expect(opened.locator("#vl-status")).to_contain_text(
        "Stopped. The text written so far is kept."
    )
    expect(opened.locator("#vl-run")).to_be_enabled()
    why = "this race was not run to its end"
    cells = opened.locator(".vl-track tbody .speedup")
    expect(cells).to_have_text(["–", "–"])
    expect(cells.last).to_have_attribute("title", re.compile(why))
    note = opened.locator(".vl-race [data-chart=speedup] .vl-chart-note")
    expect(note).to_have_text(f"Speedup not measured: {why}.")
    expect(opened.locator(".vl-says .vl-headline")).to_have_text(
        "This race was not run to its end: its times are not compared."
    )
    expect(opened.locator(".vl-verdict")).to_have_text(
        "TABED: the same as autoregressive, as far as both go"
    )
    for lane in opened.locator(".vl-track tbody tr").all():  # of the tokens that were asked for
        written, most = (
            int(lane.get_by_role("progressbar").get_attribute(name))
            for name in ("aria-valuenow", "aria-valuemax")
        )
        filled = lane.locator(".vl-bar i").evaluate("(n) => new DOMMatrix(n.style.transform).a")
        assert filled == pytest.approx(written / most, abs=0.01) and filled < 1


CHANGED = """(how) => {
  const totals = ({clock_s, decode_s, tau, tokens_per_s, ...sums}) => sums;
  const lanes = specvl.race.list.map((lane, i) => {
    const late = i && (how.slower ?? 0);
    const rounds = lane.rounds.slice(0, how.rounds).map((r) =>
      ({...r, draft_s: r.draft_s + late, clock_s: r.clock_s + late * (r.index + 1)}));
    const sum = totals(lane.totalsAfter(how.rounds ?? Infinity));
    sum.draft_s += late * rounds.length;
    return [lane.begin, rounds, {...lane.end, load: how.load ?? 0, totals: sum}];
  });
  if (how.bare) lanes[1][1][0] = {...lanes[1][1][0], notes: {}};
  const records = lanes.flatMap(([begin, rounds, end]) => [{...begin, kind: 'begin'},
    ...rounds.map((round) => ({...round, kind: 'round'})), {...end, kind: 'end'}]);
  const lines = records.map((record) => JSON.stringify(record)).join('\\n');
  return specvl.archive.compared(new File([lines], 'changed.jsonl')).then((compared) =>
    specvl.stage.show(records, {source: 'recorded', question: 'Another', compared}, false));
}"""
"""The race on the page once more: cut, its drafts slower, the machine busy, notes left out."""


def expect_rough_speedup(page, why: str) -> None:
    """Table, chart and sentence have a hedged speedup, which is one and the same; each says why."""
    cell = page.locator(".vl-track tr[data-lane='1'] .speedup")
    expect(cell).to_have_text(re.compile(r"^about \d\.\d×$"))
    expect(page.locator(".vl-track tr[data-lane='0'] .speedup")).to_have_text("1.00×")
    sentence = page.locator(".vl-says .vl-headline")
    expect(sentence).to_contain_text(
        re.compile(rf"about (\d\.\d× faster|\d\.\d× slower|as fast) to write; {re.escape(why)}")
    )
    expect(cell).to_have_attribute("title", re.compile(re.escape(why)))
    chart = page.locator(".vl-race [data-chart=speedup]")
    expect(chart.locator(".vl-chart-note")).to_have_text(f"Speedup only rough: {why}.")
    expect(chart.locator(".vl-legend li")).to_have_text(f"TABED {cell.inner_text()}")
    expect(page.locator(".vl-verdict")).to_contain_text(f"TABED {cell.inner_text()}: ")
    page.locator(".vl-whatif").evaluate("(node) => { node.open = true; }")
    whatif = page.locator(".vl-whatif-says")
    expect(whatif).to_contain_text(f"Speedup only rough: {why}.")
    expect(page.locator(".vl-whatif-bar b").nth(1)).to_have_text(cell.inner_text())


def test_a_speedup_that_is_not_trusted_is_a_rough_one_everywhere(opened):
    """Too short, or on a machine that others used: about so much, with the reason. As it was: its
    speedup. Disturbed times are marked, those of short races too.
    """
    short = "4 tokens are too few to time; 20 are needed"
    busy = "timing disturbed (other programs kept 50 % of the machine busy)"
    for how, why in (
        ({"load": 0.5}, busy),
        ({"rounds": 4, "slower": 0.2}, short),
    ):
        choose(opened, "scene", 2)
        finish_replay(opened)
        opened.evaluate(CHANGED, how)
        expect_rough_speedup(opened, why)
        expect(opened.locator(".vl-track.disturbed")).to_have_count(int("load" in how))
    expect(opened.locator(".vl-says .vl-headline")).to_contain_text("× slower to write; ")
    choose(opened, "scene", 2)
    finish_replay(opened)
    expect(opened.locator(".vl-track tr[data-lane='1'] .speedup")).to_have_text(
        re.compile(r"^\d\.\d\d×")
    )
    expect(opened.locator(".vl-race [data-chart=speedup] .vl-legend li")).to_have_count(1)
    expect(opened.locator(".vl-chart-note:visible")).to_have_count(0)


def test_a_visitor_sees_other_programs_while_the_race_runs(opened):
    """A sentence, and no speedup, from the moment it is known, nor in the end; and the race can be
    measured again without drawing it.
    """
    opened.evaluate(f"specvl.form.request.sampling = {{seed: {BUSY}, max_new_tokens: 300}}")
    opened.locator("#vl-run").click()
    # At one moment: the race may be over when the next thing is looked at.
    opened.wait_for_function(
        """specvl.form.running && specvl.race.list[1]?.tokens.length > 60
        && specvl.race.list[0].tokens.length > 30
        && document.querySelector(".vl-busy").textContent.includes("Other programs use 90 %")
        && document.querySelector(".vl-track tr[data-lane='1'] .speedup").textContent === "–" """
    )
    cell = opened.locator(".vl-track tr[data-lane='1'] .speedup")
    opened.wait_for_function(f"!specvl.form.running && {FINISHED}")
    expect(opened.locator(".vl-busy")).to_have_text("")
    expect(cell).to_have_text(re.compile(r"^about \d\.\d×$"))
    expect(opened.locator(".vl-says .vl-headline")).to_contain_text("; timing disturbed")
    note_sent(opened)
    opened.evaluate(f"specvl.form.request.sampling.max_new_tokens = {LONG}")
    press(opened, "Race again at once, without drawing")
    opened.wait_for_function("specvl.form.running && specvl.race.list[1]?.tokens.length")
    assert opened.evaluate("window.sent.hz") == 1
    assert not opened.locator(".vl-lane .tk[data-i]").count()
    opened.locator("#vl-stop").click()
    opened.wait_for_function("!specvl.form.running")
    expect(opened.locator(".vl-lane .tk[data-i]").first).to_be_visible()


def test_a_methods_chart_stands_from_the_start_of_a_replay_and_needs_no_round(opened):
    """Axes and names from the start; a first round without its numbers changes nothing."""
    finish_replay(opened)
    opened.locator(".vl-race .vl-charts").scroll_into_view_if_needed()
    opened.evaluate(CHANGED, {"bare": True})
    chart = opened.locator(".vl-race [data-chart=weights]")
    expect(chart.locator(".plot-container").first).to_be_visible()
    opened.evaluate("specvl.race.setHead(0)")
    drawn(opened)
    expect(chart).not_to_have_class(re.compile("empty"))
    expect(chart.locator(".vl-legend")).to_contain_text("picture")
    points = "specvl.view.charts.own.plot.data.map((line) => line.x.length)"
    assert max(opened.evaluate(points)) <= 1
    opened.evaluate("specvl.race.setHead(null)")
    opened.wait_for_function(f"Math.max(...{points}) >= specvl.race.focused.rounds.length")


def test_click_a_token_and_learn_where_it_comes_from(opened):
    """A click or arrow keys show its round, why it stands there, candidates, the picture's heat."""
    finish_replay(opened)
    rejected = opened.locator(".vl-text .rejected").first
    expect(rejected).to_be_hidden()
    opened.get_by_label("Show rejected drafts").check()
    assert "line-through" in rejected.evaluate("(n) => getComputedStyle(n).textDecorationLine")
    card = opened.locator(".vl-race .vl-inspector")
    head = card.locator(".vl-inspect-head")
    assert head.get_attribute("aria-live") is None
    opened.locator(".vl-lane[data-lane='1'] .tk.draft").nth(4).click()
    expect(head).to_contain_text("round")
    expect(head).to_have_attribute("aria-live", "polite")  # what was picked is said aloud
    expect(card.locator(".vl-why")).to_contain_text("The drafter proposed")
    for head in card.locator(".vl-candidates thead th").all():
        assert head.evaluate("(n) => n.scrollWidth <= n.clientWidth"), head.inner_text()
    expect(card.locator(".vl-candidates tr.chosen")).to_have_count(1)
    expect(card.locator(".vl-picture canvas.looks")).to_be_visible()
    expect(card.locator("figcaption")).to_contain_text("bright patches got more")
    chosen = opened.evaluate("specvl.race.selected.token")
    shown = opened.evaluate("specvl.race.focused.tokens[specvl.race.selected.token].round")
    expect(opened.locator(".vl-stage .vl-tree-card > header .vl-facts")).to_contain_text(
        f"round {shown + 1}"
    )
    opened.locator(".vl-lane[data-lane='1'] .vl-text").focus()
    for key, moved in (("ArrowRight", 1), ("ArrowLeft", 0), ("ArrowLeft", -1)):
        opened.keyboard.press(key)
        assert opened.evaluate("specvl.race.selected.token") == chosen + moved
    expect(opened.locator(".vl-race .vl-inspect-head")).to_contain_text(f"token {chosen}")
    opened.keyboard.press("Escape")
    expect(opened.locator(".vl-race .vl-inspector .vl-hint")).to_be_visible()


def test_the_tree_shows_any_round_and_opens_tokens(opened):
    """The slider shows any round, whose accepted path has as many nodes as it kept tokens; each
    node says how likely the drafter held it, and a kept one opens its token of the answer."""
    finish_replay(opened)
    race = opened.locator(".vl-stage")
    slider, tree = race.get_by_label("Round", exact=True), race.locator(".vl-tree")
    index = opened.evaluate("specvl.race.focused.rounds.findIndex((r) => r.path.length > 2)")
    for at in (index + 1, index + 4, index):
        slider.fill(str(at))
        expect(race.locator(".vl-tree-card > header .vl-facts")).to_contain_text(f"round {at + 1} ")
        kept = opened.evaluate(f"specvl.race.focused.rounds[{at}].path.length - 1")
        expect(tree.locator(".edge.draft")).to_have_count(kept)
    expect(tree.locator(".node.draft title").first).to_contain_text("drafter .")
    likely = opened.evaluate(
        "(i) => { const r = specvl.race.focused.rounds[i]; return"
        " Math.exp(r.tree.draft_logp[r.path[1]]); }",
        index,
    )
    expect(tree.locator("text.chance", has_text=f"{likely:.3f}".lstrip("0")).first).to_be_visible()
    tree.locator(".node.draft").nth(1).click()
    chosen = opened.evaluate("specvl.race.focused.tokens[specvl.race.selected.token]")
    assert (chosen["round"], chosen["at"], chosen["origin"]) == (index, 1, "draft")


def test_every_node_of_the_tree_tells_what_became_of_it(opened):
    """By click and by arrow keys, of one Tab stop. What is told of it is tested in
    tests/js/inspected.test.js.
    """
    choose(opened, "lossy", 3)
    finish_replay(opened)
    opened.evaluate("specvl.race.setFocus('sage')")
    tree = opened.get_by_role("tree", name="Token tree of round")
    card = opened.locator(".vl-race .vl-inspector")
    head, why = card.locator(".vl-inspect-head"), card.locator(".vl-why")
    # A round of which two drafts were kept, another at the second place was not, and led on.
    at, lost = opened.evaluate("""() => {
      for (const [at, {path, tree, candidates}] of specvl.race.focused.rounds.entries()) {
        if (path.length !== 3 || !candidates) continue;
        const lost = tree.parent.findIndex((p, i) => p === path[1] && !path.includes(i));
        const after = tree.parent.indexOf(lost);
        if (lost > 0 && after > 0) return [at, lost];
      }
    }""")
    opened.evaluate("(round) => specvl.race.select({lane: 'sage', round})", at)
    tree_of = f"specvl.race.focused.rounds[{at}].tree"
    texts, parent = (opened.evaluate(f"{tree_of}.{name}") for name in ("texts", "parent"))
    words = [text.replace(" ", "␣", 1) for text in texts]
    tree.locator(f".node[data-node='{lost}']").click()
    expect(head).to_contain_text(f"{words[lost]}rejected · round {at + 1} · depth 2")
    expect(head).to_have_attribute("aria-live", "polite")
    expect(why).to_contain_text(f"The drafter proposed {words[lost]} with probability .")
    chosen = card.locator(".vl-candidates tr.chosen")
    expect(chosen.locator("code").first).to_have_text(words[lost])
    # Nobody judged what would have come after it: the record has what was drafted there.
    assert tree.evaluate("(box) => box.tabIndex") == 0
    tree.press("ArrowRight")
    picked = tree.locator("[aria-selected=true]")
    expect(picked).not_to_have_attribute("data-node", f"{lost}")
    first = int(picked.get_attribute("data-node"))
    assert parent[first] == lost
    assert tree.get_attribute("aria-activedescendant") == picked.get_attribute("id")
    expect(head).to_contain_text(f"{words[first]}rejected · round {at + 1} · depth 3")
    expect(why).to_contain_text(f"come after {words[lost]}, which was rejected")
    expect(card.locator(".vl-candidates tr.chosen code").first).to_have_text(words[first])
    # To its parent, the one above, that one's parent, its parent, the root; and on by Enter.
    reached = []
    for key in ("ArrowLeft", "ArrowLeft", "ArrowLeft", "ArrowRight", "ArrowRight", "ArrowDown"):
        opened.keyboard.press(key)
        opened.wait_for_function("specvl.view.tree.svg.querySelectorAll('.picked').length === 1")
        reached.append(opened.evaluate("specvl.view.tree.picked"))
    path = opened.evaluate(f"specvl.race.focused.rounds[{at}].path")
    assert reached[:5] == [lost, path[1], 0, path[1], path[2]] and parent[reached[5]] == path[1]
    opened.keyboard.press("Escape")
    expect(picked).to_have_count(0)
    # The target's own token and kept drafts are tokens of the answer.
    opened.evaluate("(round) => specvl.race.select({lane: 'sage', round})", at)
    tree.locator("path.node").click()
    assert opened.evaluate("specvl.race.focused.tokens[specvl.race.selected.token].at") == 2
    expect(why).to_contain_text("is what the target wanted here")


CHARACTERS = """() => {
  const begin = JSON.parse(JSON.stringify(specvl.race.list[1].begin));
  const token = (id, text, origin) => ({id, text, origin});
  const round = (index, tokens) => {
    const kept = tokens.filter((t) => t.origin !== 'target');
    return {kind: 'round', lane: begin.lane, index, tokens, path: [0, ...kept.map((_, i) => i + 1)],
      tree: {tokens: [0, ...kept.map((t) => t.id)], parent: [-1, ...kept.map((_, i) => i)]},
      clock_s: 0.1 * (index + 1), draft_s: 0, verify_s: 0.1, commit_s: 0, other_s: 0, notes: {}};
  };
  const first = [token(1, 'Caf', 'draft'), token(2, '', 'draft'), token(3, 'é', 'target')];
  const records = [begin, round(0, first),
    round(1, [token(4, ' ', 'draft'), token(5, '', 'target')]), round(2, [token(6, '★', 'target')]),
    round(3, [token(7, '', 'target')]), {kind: 'end', lane: begin.lane, stop: 'eos', totals: {}}];
  specvl.stage.show(records, {source: 'recorded', question: 'Characters', media: []}, false);
}"""


def test_the_end_of_an_answer_has_one_mark_which_explains_itself(opened):
    """In the inspector's head and sentence, in the tree and in the list of a round's tokens."""
    opened.evaluate(CHARACTERS)
    opened.locator(".vl-text [data-i]").nth(4).click()
    card = opened.locator(".vl-race .vl-inspector")
    mark = card.get_by_role("button", name="■", exact=True)
    expect(card.locator(".vl-why")).to_contain_text("the target wrote ■")
    expect(opened.locator(".vl-stage .vl-tree text.word", has_text="■")).to_have_count(1)
    expect(mark).to_have_attribute("title", "the end of the answer")
    mark.click()
    expect(opened.locator("#vl-explain")).to_contain_text("the end of the answer")
    opened.keyboard.press("Escape")
    opened.evaluate("specvl.race.select({lane: specvl.race.focus, round: 3})")
    expect(card.get_by_role("button", name="Inspect token ■")).to_be_visible()
    expect(card).not_to_contain_text("∅")


@second_try("a frame that a busy machine drops joins the moves of two frames to one large one")
def test_nothing_jumps_while_a_race_streams(opened):
    """No element moves while tokens stream in, beyond what nobody can see."""
    opened.evaluate("""() => {
      window.jumps = [];
      new PerformanceObserver((list) => list.getEntries().forEach((e) => {
        const what = e.sources.map((s) => s.node?.className ?? s.node?.nodeName);
        // When all is written the boxes make room for the whole answers, once.
        if (!e.hadRecentInput && !specvl.race.list.every((lane) => lane.end))
          jumps.push([e.value, what]);
      })).observe({type: 'layout-shift'});
    }""")
    opened.evaluate("specvl.form.request.methods = ['tabed', 'sage', 'lvspec']")
    run_race(opened)
    jumps = opened.evaluate("window.jumps")
    # The lanes take the places of the former race's once; after that all stands still.
    assert sum(value for value, _ in jumps) < 0.1, jumps
    assert all(value < 0.01 for value, _ in jumps[1:]), jumps


FAULTS = """() => [...document.querySelectorAll('.vl-race .vl-charts .vl-plot')].flatMap((p) => {
  const { layout, data } = p;
  const name = p.closest('[data-chart]').dataset.chart;
  const axes = ['xaxis', 'yaxis', ...(layout.yaxis2 ? ['yaxis2'] : [])];
  const nameless = axes.filter((a) => !layout[a].title?.text)
    .map((a) => `${name} ${a} has no name`);
  const tops = data.filter((t) => !t.stackgroup && !t.yaxis).flatMap((t) => t.y)
    .filter((y) => y > layout.yaxis.range[1] + 1e-9);
  const cut = [...p.querySelectorAll('.ytitle')].filter((title) => {
    const [own, all] = [title, p].map((part) => part.getBoundingClientRect());
    return own.top < all.top || own.bottom > all.bottom;
  });
  return [...nameless, ...cut.map((n) => n.textContent), ...tops.map((y) => `${name} clips ${y}`)];
})"""


def test_charts_draw_what_the_focused_method_declares(opened):
    """Common charts and those that the method declares; axes have names, no line is cut; colours
    are those of the theme.
    """
    choose(opened, "lossy", 3)
    finish_replay(opened)
    opened.locator(".vl-race .vl-charts").scroll_into_view_if_needed()
    strip = opened.locator(".vl-stage .vl-strip")
    expect(strip).to_contain_text("confidence α")
    strip.scroll_into_view_if_needed()
    place = strip.locator("g").nth(1).bounding_box()  # every round's tree, which opens it
    opened.mouse.click(place["x"] + place["width"] / 2, place["y"])
    expect(opened.locator(".vl-stage .vl-tree-card > header")).to_contain_text("SAGE · round 2 ·")
    opened.locator(".vl-track tr[data-lane='2'] .vl-lane-name").click()
    opened.locator(".vl-race .vl-charts").scroll_into_view_if_needed()
    relaxed = opened.locator(".vl-lane[data-lane='2'] .tk.relaxed")
    for words in (f"relaxed ({relaxed.count()})", "may be relaxed (", "λ's cut"):
        expect(opened.locator(".vl-race [data-chart=relevance]")).to_contain_text(words)
    expect(relaxed.first).to_have_attribute("data-instead", re.compile("."))
    expect(opened.locator(".vl-charts .vl-chart")).to_have_count(2)
    expect(opened.locator(".vl-race [data-chart=speedup] .plot-container").first).to_be_visible()
    opened.set_viewport_size({"width": 1280, "height": 720})
    drawn(opened)
    assert not opened.evaluate(FAULTS)
    expect(opened.locator(".vl-race [data-chart=speedup] .vl-plot")).to_have_attribute(
        "aria-label", re.compile(r"LVSpec \d\.\d\d×")
    )
    axis = "specvl.view.charts.common[0].plot.layout.xaxis.color"
    light = opened.evaluate(axis)
    theme = opened.get_by_role("button", name="Light or dark")
    for same in (False, True):  # a chart takes the colours of the theme
        theme.click()
        opened.wait_for_function(
            f"([light, same]) => ({axis} === light) === same", arg=[light, same]
        )
    choose(opened, "scene", 2)
    finish_replay(opened)
    weights = opened.locator(".vl-race [data-chart=weights]")
    for words in ("picture", "text only", "drafts kept"):
        expect(weights).to_contain_text(words)
    tinted = opened.locator(".vl-lane .tk.by").first
    expect(tinted).to_have_attribute(
        "title", re.compile("mostly the guess of: (picture|text only)")
    )


def test_replay_runs_at_true_speeds_with_pause_and_scrub(opened):
    """Play, pause and scrub move all lanes along their clocks; the end is the whole race."""
    finish_replay(opened)
    whole = opened.evaluate("specvl.race.list.map((l) => l.tokens.length)")
    slider = opened.get_by_label("Position in the race")
    slider.fill("500")
    head = opened.evaluate("specvl.race.head")
    early = "(t) => specvl.race.list[0].rounds.filter((r) => r.clock_s <= t + 1e-9).length"
    told = opened.evaluate(early, head)
    assert 0 < told < whole[0]
    expect(opened.locator(".vl-lane[data-lane='0'] [data-i]")).to_have_count(told)
    press(opened, "Play the race again")
    # At one moment: the race may be over when the button is looked for.
    opened.wait_for_function(
        "(t) => specvl.race.head > t && !document.querySelector('[aria-label=Pause]').click()",
        arg=head,
    )
    stands = opened.evaluate("specvl.race.head")
    opened.wait_for_timeout(200)
    assert opened.evaluate("specvl.race.head") == stands
    hide = "(on) => { Object.defineProperty(document, 'hidden', {value: on, configurable: true}); }"
    opened.evaluate(hide, True)  # in a hidden tab nothing is drawn
    opened.wait_for_function("!specvl.painter.scheduled")
    opened.evaluate("specvl.race.setHead(0)")
    opened.wait_for_timeout(300)
    expect(opened.locator(".vl-lane[data-lane='0'] [data-i]").first).to_be_attached()
    opened.evaluate(hide, False)
    opened.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(opened.locator(".vl-lane[data-lane='0'] [data-i]")).to_have_count(0)
