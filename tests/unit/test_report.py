"""Folds over records made by hand, whose every number can be checked by eye; and the page's scripts
outside a browser (`node --test tests/js`), held to them.
"""

import csv
import io
import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from msgspec.structs import replace

from specvl_demo.compare.report import page_of
from specvl_demo.places import EXAMPLES, PACKAGE, ROOT
from specvl_demo.records import (
    End,
    LaneRecords,
    LikelyToken,
    Prefix,
    Token,
    fold,
    gather_lanes,
    loads,
)
from specvl_demo.report import (
    bundle,
    confidence,
    figure,
    html,
    metrics,
    remarks,
    tables,
    trace,
)
from tests.shared.lanes import ar_lane, begin, chain_lane, chain_round, flat, recorded
from tests.shared.refusals import read_table


def test_tau_counts_the_targets_own_token():
    found = metrics.measure_lanes(chain_lane())
    assert found.totals.tau == 3.5
    assert found.totals.accepted_per_round == 2.5
    assert found.totals.decode_s == pytest.approx(0.2)
    assert found.tokens_per_s == pytest.approx(35)
    assert found.tokens_per_s_total == pytest.approx(14)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.shares["draft"] == pytest.approx(0.2)


def test_speedup_is_tau_over_rho():
    beside = metrics.compare_with_ar(chain_lane(), ar_lane())
    assert beside.speedup_decode == pytest.approx(35 * 0.08)
    assert beside.speedup_decode == pytest.approx(3.5 / sum(beside.rho.values()))
    assert beside.speedup_total == pytest.approx(14 / (7 / (0.3 + 0.56)))
    assert beside.why_doubtful() is None
    assert beside.why_this_speed() == (
        "2.80×: 3.5 tokens a check, and a check costs 1.3 AR steps, 20 % of it drafting;"
        " if drafting cost nothing, it would be 3.50×"
    )


def ending(lane: LaneRecords, **changes: object) -> LaneRecords:
    """The same lane with another end."""
    return lane._replace(end=replace(lane.end, **changes))


def test_an_answer_timed_again_counts_all_its_seconds():
    """Two more runs of 0.4 s after one of 0.2 s: a third of the rate, and S is still τ / ρ."""
    lane, ar = chain_lane(), ar_lane()
    again = ending(lane, again=[0.5, 0.5])
    beside = metrics.compare_with_ar(again, ar)
    assert beside.metrics.tokens_per_s == pytest.approx(3 * 7 / 1.2)
    assert beside.speedup_decode == pytest.approx(3.5 / sum(beside.rho.values())) == 35 * 0.08 / 2
    result = remarks.race_remarks([ar, again]).lanes["chain"]
    assert result.doubt is not None and result.doubt.tokens == 7  # AR's were timed once
    ar = ending(ar, again=[0.56, 0.56])
    result = remarks.race_remarks([ar, again]).lanes["chain"]
    assert result.doubt is None


@pytest.mark.parametrize(
    ("draft", "verify", "kept", "rest", "part"),
    [
        (0.30, 0.08, "abc", 0.01, "but a check costs 4.9 AR steps, 77 % of it drafting; if"),
        (0.02, 0.40, "abc", 0.01, "cost no more than writing one, it would be 2.91×"),
        (0.07, 0.08, "", 0.01, "it would be 0.89×; too few drafts are kept (0.0 a check)"),
        (0.0, 0.079, "", 0.012, "if only the models took time, it would be 1.01×"),
    ],
)
def test_why_this_speed_names_the_largest_cost(
    draft: float, verify: float, kept: str, rest: float, part: str
):
    """What costs next to nothing is no reason."""
    seconds = {"draft_s": draft, "verify_s": verify, "commit_s": rest / 2, "other_s": rest / 2}
    slow = replace(chain_round(0, 0.1, kept, "abcd", "x"), **seconds)
    sentence = metrics.compare_with_ar(LaneRecords(begin(), [slow]), ar_lane()).why_this_speed()
    assert sentence is not None and part in sentence


def test_doubtful_times_give_a_rough_speedup_that_no_slow_moment_decides():
    """Most rounds win; AR stood still once, which makes more than τ of a τ of two."""
    lane, ar = timed(n=40, lane_s=0.15)
    rounds = [replace(r, verify_s=9.0) if i == 5 else r for i, r in enumerate(ar.rounds)]
    beside = metrics.compare_with_ar(lane, ar._replace(rounds=rounds))
    assert beside.why_doubtful() and beside.rough_speedup == pytest.approx(2 / 1.5)
    assert beside.why_this_speed(rough=True).startswith("about 1.3×: 2.0 tokens a check, and")


def test_what_was_not_drafted_is_not_refused():
    """Four drafted and three kept, two drafted and both kept, one drafted and refused; and the end
    of the answer inside a draft, behind which nothing was judged. Depths with fewer than five
    drafts are left out.
    """
    rounds = chain_lane().rounds
    assert metrics.accepted_by_depth(rounds * 5) == [1, 1, 1, 0]
    rounds = [*rounds, chain_round(2, 0.3, "", "a", "b"), chain_round(3, 0.4, "a", "ab", None)]
    assert metrics.accepted_by_depth(rounds * 5) == [3 / 4, 1, 1, 0]
    assert metrics.accepted_by_depth(rounds * 3) == [3 / 4, 1]
    assert metrics.accepted_by_depth(ar_lane().rounds) == []


def cut(lane: LaneRecords, n: int, stop: str | None = "cancelled") -> LaneRecords:
    rounds = lane.rounds[:n]
    return LaneRecords(lane.begin, rounds, stop and End(lane.begin.lane, stop, fold(rounds)))


def test_a_lane_that_was_stopped_does_not_differ():
    """Whichever of the two is shorter: nobody knows what it would have said next."""
    whole, ar = chain_lane(), ar_lane()
    assert remarks.compare_answers(whole, ar) == remarks.Agreement("same", 7)
    stopped = cut(whole, len(whole.rounds)), cut(ar, len(ar.rounds))  # at the same token
    for lane, base in (
        (cut(whole, 1), ar),
        (cut(whole, 1, None), ar),
        (whole, cut(ar, 2)),
        stopped,
    ):
        found = remarks.compare_answers(lane, base)
        assert found.kind == "so_far" and found.at == min(len(lane.token_ids), len(base.token_ids))
        rows = tables.lane_rows([base, lane])
        assert rows[1]["identical_to_ar"] is None and rows[1]["first_difference"] is None
        assert "differ" not in remarks.lane_remark(lane, [base, lane])


def beside_g(other: float, temperature: float) -> LaneRecords:
    """AR's answer with z at 0.5 where chain's has g, which the target gives `other`."""
    ar = ar_lane("abcxefz")
    listed = [[LikelyToken(ord("z"), "z", 0.5), LikelyToken(ord("g"), "g", other)]]
    drawn = {"draws": {"rival": [ord("g")], "gap": [math.log(0.5 / other)]}}
    told = {"notes": drawn} if temperature else {"candidates": listed}
    rounds = [*ar.rounds[:-1], replace(ar.rounds[-1], **told)]
    return LaneRecords(begin("ar", sampling={"temperature": temperature}), rounds, ar.end)


@pytest.mark.parametrize(
    ("other", "temperature", "kind"),
    [(0.49, 0.0, "tie"), (0.40, 0.0, "differs"), (0.49, 1.0, "tie"), (0.40, 1.0, "differs")],
)
def test_a_difference_by_rounding_is_called_a_tie(other: float, temperature: float, kind: str):
    """Below 0.05 nats between two choices, in bfloat16 0.25, the noise of a draw added."""
    ar = beside_g(other, temperature)
    found = remarks.compare_answers(chain_lane(), ar)
    half = chain_lane()
    half = half._replace(begin=replace(half.begin, dtype="bfloat16"))
    rounded = remarks.compare_answers(half, ar)
    assert rounded.kind == "tie" and "a near tie that rounding in bfloat16" in rounded.sentence()
    assert (found.kind, found.at) == (kind, 6)
    assert found.gap == pytest.approx(math.log(0.5 / other))
    lane = chain_lane()
    loose = LaneRecords(replace(lane.begin, lossless=False), lane.rounds, lane.end)
    assert remarks.compare_answers(loose, ar).kind == "differs"


def test_tokens_count_after_aligning():
    """A token more, or another one, costs itself and not all that follows."""
    plain, other = list(b"arsih"), list(b"avrmih")
    assert remarks.find_changes(plain, other) == [(1, 1, 1, 2), (2, 3, 3, 4)]
    assert remarks.find_changes(plain, plain) == [] == remarks.find_changes(plain, plain[:2])
    assert remarks.compare_answers(chain_lane(), ar_lane("abxefg")).alike == pytest.approx(6 / 7)
    assert len(remarks.find_changes([1, 2] * 2048, [2, 1] * 2048)) == 2  # soon, for the longest too


def timed(
    n: int = 24,
    ar_s: float = 0.1,
    lane_s: float = 0.2,
    load: float | None = None,
    jitter: float = 0.0,
):
    """An AR lane of n tokens, no two alike, and a chain that brings two a round."""

    def lane(name: str, size: int, seconds: float) -> LaneRecords:
        made, clock = [], 0.0
        for i in range(n // size):
            *drafted, last = map(chr, range(256 + i * size, 256 + (i + 1) * size))
            took = seconds * (1 + jitter * (i % 2))
            clock += took
            phases = {"draft_s": 0.0, "verify_s": took, "commit_s": 0.0, "other_s": 0.0}
            draft = "".join(drafted)
            made.append(chain_round(i, clock, draft, draft, last, name, **phases))
        return LaneRecords(begin(name), made, End(name, "length", fold(made), load=load))

    return lane("chain", 2, lane_s), lane("ar", 1, ar_s)


MEASURED = """
{"lane_s": 0.15}                ; 1.33×: 2.0 tokens a check, and a check costs 1.5 AR steps; if
{"lane_s": 0.3}                 ; 0.67×: 2.0 tokens a check, but a check costs 3.0 AR steps; if
{"n": 12, "lane_s": 0.3}        ; 12 tokens are too few to time; 20 are needed.
{"lane_s": 0.3, "load": 0.5}    timing disturbed (other programs kept 50 %
{"n": 4, "load": 0.3}           kept 30 % of the machine busy); 4 tokens are too few to time; 20
{"lane_s": 0.3, "jitter": 1.0}  half of the AR steps lie outside 100 to 200 ms
{"lane_s": 0.01}                by tokens/s a speedup of 20.00 is above τ 2.00, which is impossible
{"lane_s": 0.01, "load": 0.7}   busy; by tokens/s a speedup of 20.00 is above τ 2.00
{"lane_s": 0.01, "n": 4}        only typical (median) rounds count); 4 tokens
"""


@pytest.mark.parametrize(("how", "part"), read_table(MEASURED))
def test_no_reason_is_given_that_the_measurement_does_not_carry(how: dict, part: str):
    said = remarks.lane_remark(*(lambda lane, ar: (lane, [ar, lane]))(*timed(**how)))
    assert said.startswith("The AR answer, token for token")
    assert part in said and ("AR steps" in said) == ("AR steps" in part)


def test_an_answer_that_repeats_itself_is_said_to_be_easy_to_draft():
    """6 of 21 runs of four tokens are new; in the recorded races most are."""
    ar = ar_lane("abcdef" * 4)
    lane = LaneRecords(begin(), ar.rounds, ar.end)
    sentence = remarks.race_remarks([ar, lane]).lanes["chain"].repeats
    assert sentence and sentence.endswith(": 71 % of its runs of 4 tokens came before")
    assert str(remarks.lane_remark(lane, [ar, lane])).endswith(f" {sentence}.")
    others = [ar_lane("abc"), *recorded("scene")]
    assert [remarks.repetition_sentence(other) for other in others] == [None] * 3


def races() -> list[tuple[LaneRecords, LaneRecords]]:
    """A lane and AR that agree, differ in all ways, are short, disturbed, or were stopped."""
    lane = chain_lane()
    made = [timed(), timed(lane_s=0.3), timed(n=12), timed(n=12, load=0.4), timed(load=0.4)]
    made += [timed(load=0.5), timed(jitter=1.0)]
    made += [timed(lane_s=0.01), (cut(lane, 1), ar_lane()), (lane, ar_lane("abcxefz"))]
    return made + [(lane, beside_g(0.49, heat)) for heat in (0.0, 1.0)]


def test_the_page_gets_the_comparison_that_the_remarks_state():
    """Agreement with words and gap, why times are not reported, why a lane is slow."""
    kinds = set()
    for lane, ar in races():
        found = json.loads(msgspec.json.encode(remarks.race_remarks([ar, lane])))
        told = found["lanes"][lane.begin.lane]
        said = remarks.lane_remark(lane, [ar, lane])
        depths = [metrics.accepted_by_depth(lane.rounds, fewest) for fewest in (5, 1)]
        assert told["accepted_by_depth"] == (depths[0] or depths[1])
        assert found["lanes"]["ar"] == {**dict.fromkeys(told), "accepted_by_depth": []}
        assert told["agreement"] == vars(remarks.compare_answers(lane, ar))
        beside = metrics.compare_with_ar(lane, ar)
        alike = len(lane.token_ids) == len(ar.token_ids)  # a longer answer hides what reading took
        assert told["speedup_total"] == (beside.speedup_total if alike else None)
        assert told["why"] == beside.why_this_speed(rough=told["doubt"] is not None)
        stopped = any(one.end.stop not in ("eos", "length") for one in (lane, ar))
        assert found["cut"] == (remarks.CUT if stopped else None)
        doubt = told["doubt"]
        why = found["cut"] or (doubt and doubt["sentence"]) or told["why"]
        assert said.endswith(f"; {why}.") if why else ";" not in said.split(" words")[-1]
        kinds |= {told["agreement"]["kind"], doubt and doubt["kind"], "cut" if stopped else "whole"}
        if doubt and doubt["kind"] == "short":
            assert doubt["tokens"] == min(len(lane.token_ids), len(ar.token_ids)) < 20
        if doubt:
            assert doubt["about"] == pytest.approx(beside.rough_speedup)
    assert kinds >= {"same", "so_far", "differs", "tie", "short", "disturbed", None}
    assert kinds >= {"cut", "whole"}


def test_lane_rows_have_the_fields_of_the_command_line():
    chain, ar = tables.lane_rows([chain_lane(), ar_lane()])
    assert chain["text"] == "abcxefg" and chain["token_ids"] == [ord(c) for c in "abcxefg"]
    assert (chain["prefill_s"], chain["seed"], chain["stop"]) == (pytest.approx(0.3), 7, "eos")
    assert chain["identical_to_ar"] is True and chain["first_difference"] is None
    assert ar["speedup_decode"] == 1.0
    (other,) = tables.lane_rows([chain_lane()])
    assert other["speedup_decode"] is None and other["identical_to_ar"] is None
    _, differs = tables.lane_rows([ar_lane("abcxeh"), chain_lane()])
    assert differs["identical_to_ar"] is False and differs["first_difference"] == 5


def test_tables_leave_unknown_blank_and_take_words_as_words():
    """Neither markup of strangers nor formulas of spreadsheets."""
    rows = [{"method": "<b>|x", "tau": None, "ok": True}, {"method": "=1+1", "tau": 2.34567}]
    assert tables.cell_grid([{"x": 1.0}, {"x": 2.37}], "x") == [["1.00"], ["2.37"]]
    markdown = tables.to_markdown(rows, ("method", "tau", "ok"))
    assert "\\<b\\>\\|x" in markdown and "2.35" in markdown and "None" not in markdown
    assert len({line.count("|") - line.count("\\|") for line in markdown.splitlines()}) == 1
    rows = [{"name": '=HYPERLINK("http://x","y")', "τ": -1.5}, {"name": "50 %_{x}\\y", "τ": None}]
    found = list(csv.reader(io.StringIO(tables.to_csv(rows, ("name", "τ")))))
    assert found[1:] == [['\'=HYPERLINK("http://x","y")', "-1.5"], ["50 %_{x}\\y", ""]]
    assert tables.to_csv([{"a": [1, 2]}], "a") == '"a, low","a, high"\n1,2\n'


def words_of(svg: str) -> str:
    """What a well-formed figure says."""
    return " ".join(" ".join(ElementTree.fromstring(svg).itertext()).split())


def test_a_figure_holds_every_lane_and_doubtful_speedups_as_rough_ones():
    """With whole answers; a disturbed race has its reason."""
    bars = recorded("bars")
    disturbed = [ending(lane, load=0.9) for lane in bars]
    sound, rough = words_of(figure.race_svg(bars)), words_of(figure.race_svg(disturbed))
    for words in (sound, rough):
        assert all("".join(lane.text.split()) in words.replace(" ", "") for lane in bars)
    ar, lane = bars
    speedup = metrics.compare_with_ar(lane, ar).speedup_decode
    assert f"{speedup:.2f}×" in sound and remarks.lane_remark(lane, bars) in sound
    assert remarks.rough_factor(speedup) in rough and "timing disturbed" in rough


def test_a_figures_bars_are_as_long_as_the_times_that_it_tells():
    """Twice as long for the slowest lane, whose time fills the width, makes others half as long."""
    ar, lane = recorded("bars")
    again = ending(ar, again=[3 * metrics.timings(ar)[0]])
    bar = r'x="([\d.]+)" y="\d+" width="[\d.]+" height="12"'
    last, half = (re.findall(bar, figure.race_svg([one, lane]))[-1] for one in (ar, again))
    assert float(last) - 20 == pytest.approx(2 * float(half) - 40, abs=0.2)


def test_a_figure_says_what_made_it():
    versions = {"machine": "A fast one", "torch": "2"}
    lanes = [
        lane._replace(begin=replace(lane.begin, versions=versions)) for lane in recorded("bars")
    ]
    words = words_of(figure.race_svg(lanes))
    assert "pocket · cpu · A fast one · float32 · greedy · torch 2" in words and "drafter=" in words
    drawn = tables.run_facts(begin(sampling={"temperature": 0.8, "seed": 3}))
    assert " · temperature 0.8, seed 3 · " in drawn


def test_a_file_of_a_race_holds_the_page_and_the_trace():
    """The records come back as they were, markup in a question ends no element, and nothing of the
    form or of Compare is in it.
    """
    lanes = recorded("bars")
    question = replace(lanes[0].begin.notes, question="</script><b>$title")
    lanes[0] = lanes[0]._replace(begin=replace(lanes[0].begin, notes=question))
    page = html.race_page(lanes, earlier=[("What <b>was</b> it?", "A star.")])
    assert len(page.encode()) < 2_000_000 and "<b>" not in page
    parts = dict(
        re.findall(r'<script type="application/\w+" id="(\w+)">(.*?)</script>', page, re.S)
    )
    assert gather_lanes(map(loads, parts["trace"].split("\n"))) == lanes
    context = json.loads(parts["known"])
    assert context["earlier"] == [["What <b>was</b> it?", "A star."]]
    assert context["compared"] == msgspec.to_builtins(remarks.race_remarks(lanes))
    assert "function raceView" in page and "function formView" not in page
    assert "function compareView" not in page


def test_scripts_become_one_that_exports_nothing(tmp_path: Path):
    """Each once, after those that it imports, under the names that it gives them."""
    scripts = {
        "main.js": "import { b as one } from './a/b.js';\nimport * as c from './c.js';\nx(one, c);",
        "c.js": "import { b } from './a/b.js';\nconst d = b;\nexport { d };",
        "a/b.js": "/* About it. */\nexport const b = 1;\n",
    }
    (tmp_path / "a").mkdir()
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
    made = bundle.bundle_scripts(tmp_path / "main.js")
    assert re.findall(r"^const (_\w+)", made, re.M) == ["_a_b", "_c", "_main"]
    assert "const { b: one } = _a_b;" in made and "const  * as" not in made
    assert "import" not in made and "export" not in made and "About" not in made


def test_the_heat_map_has_every_speedup_its_interval_and_what_made_it():
    """What is unknown is blank; without kinds of questions there is none."""
    bench = json.loads((EXAMPLES / "comparison.json").read_bytes())
    words = words_of(page_of(bench).figure)
    for row in bench["rows"]:
        for kind, cell in row.get("by_kind", {}).items():
            assert kind in words and f"{cell['speedup_vs_ar']:.2f}×" in words
            if cell["interval"]:
                assert "{:.2f}–{:.2f}".format(*cell["interval"]) in words
    assert "lies the speedup in 95 % of 1000 resamples" in words
    assert (
        "photo. 2 CPU cores" in words
        and "repeats, greedy." in words
        and "AMD EPYC" in words
        and "…" not in words
    )
    assert figure.heat_map_svg([{"speedup_vs_ar": 2.0}], "") == ""


def test_a_figure_of_anything_is_well_formed_and_bounded():
    """Whatever letters a trace holds, however long its answer is."""
    lanes = recorded("scene")
    odd = "<script>\x00\x1b\ufffe & 漢字🙂\n\n" + "x" * 5000 + " y" * 20_000
    begin, rounds, end = lanes[0]
    strange = replace(rounds[0], tokens=[Token(1, odd, "target")])
    other = LaneRecords(begin, [strange, *rounds[:1] * 4000], end)
    drawn = figure.race_svg([other, lanes[1]])
    words = words_of(drawn)
    assert "<script>" in words and "漢字🙂" in words and "<script" not in drawn
    assert len(drawn) < 400_000


def answered(probs: list[float], pair: str = "photo", **changes: object) -> LaneRecords:
    """A lane that wrote a letter at each of these probabilities, then a full stop and the end."""
    rounds = []
    for index, (text, prob) in enumerate([*zip("abcdefgh", probs), (".", 0.01)]):
        listed = [[LikelyToken(1, "z", 1 - prob), LikelyToken(ord(text), text, prob)]]
        made = chain_round(index, 0.1 * (index + 1), "", "", text, candidates=listed)
        rounds.append(made)
    return LaneRecords(begin(pair=pair, **changes), rounds, End("chain", "eos", fold(rounds)))


def test_a_target_is_as_sure_as_of_its_least_sure_word():
    """The full stop is no word. The likeliest word is first; each is worth less than the last."""
    for word in confidence.WORDS:
        found = confidence.confidence(answered([1.0, word.prob, 1.0]))
        assert (found.word, found.prob, found.right) == (word.word, word.prob, word.right)
    assert confidence.confidence(answered([0.999, 0.0])).word == "guessing"
    for name in ("prob", "right"):
        values = [getattr(word, name) for word in confidence.WORDS]
        assert values == sorted(set(values), reverse=True)
    assert confidence.WORDS[-1].prob == 0
    lane = answered([1.0])
    lane = ending(lane, confidence=confidence.confidence(lane))
    assert "is fairly sure of its answer: 88 % of such" in confidence.confidence_sentence([lane])


def test_nothing_is_said_of_an_answer_unlike_those_that_were_calibrated():
    whole = answered([0.9, 0.9])
    unlike = [
        answered([0.9], pair="pocket"),
        answered([0.9], n_visual=0),
        answered([0.9], sampling={"temperature": 0.7}),
        answered([0.9], sampling={"temperature": 0.0, "presence_penalty": 1.0}),
        answered([0.9] * 8),
        answered([0.9], prefix=Prefix([5], " x")),
        whole._replace(end=End("chain", "length", whole.end.totals)),
        whole._replace(rounds=[replace(round_, candidates=None) for round_ in whole.rounds]),
    ]
    assert confidence.confidence(whole)
    assert [confidence.confidence(lane) for lane in unlike] == [None] * len(unlike)


def test_what_the_target_thinks_stands_once_beside_the_figures_and_in_the_file():
    """As on the page, whose sentence it is; nothing where the records tell nothing."""
    lane = answered([0.9, 0.6])
    told = ending(lane, confidence=confidence.confidence(lane))
    share = round(100 * told.end.confidence.right)
    words = f"{share} % of such answers were right on photographs held out of its training."
    for lanes, times in (([told, told], 1), ([lane, lane], 0)):
        assert trace.figures_table(lanes).count(words) == times


def test_nothing_is_said_of_a_relaxed_token_that_is_not_among_the_likeliest():
    made = chain_round(0, 0.1, "a", "a", None, candidates=[[LikelyToken(1, "z", 0.6)]])
    assert confidence.lowest_probability([made]) is None


def node() -> str | None:
    """A JavaScript engine: the one the browser tests bring, or the system's."""
    try:
        import playwright
    except ImportError:
        return shutil.which("node")
    brought = Path(playwright.__file__).parent / "driver" / "node"
    return str(brought) if brought.exists() else shutil.which("node")


def told_of(race: tuple[LaneRecords, ...]) -> dict[str, object]:
    """Return a race's records, and what the program says of its two lanes."""
    return {
        "records": [msgspec.to_builtins(record) for record in flat(*race)],
        "compared": remarks.race_remarks(race),
        "speedup": metrics.compare_with_ar(race[1], race[0]).speedup_decode,
    }


@pytest.mark.skipif(node() is None, reason="needs a JavaScript engine: node, or playwright's own")
def test_the_pages_scripts_say_what_the_program_says(tmp_path: Path):
    lane, ar = timed()
    still = LaneRecords(lane.begin, lane.rounds)
    lists = [(ar, lane), (ar, cut(lane, 3)), (ar, still), *((ar, lane) for lane, ar in races())]
    told = msgspec.json.encode([told_of(race) for race in lists])
    (tmp_path / "races.json").write_bytes(told)
    halves = [(x, n, metrics.fixed(x, n)) for x in (0.0625, 1.25, 2.675, 12.5) for n in range(4)]
    (tmp_path / "numbers.json").write_bytes(msgspec.json.encode(halves))
    assert [tables.format_cell(x) for x in (3.125, 100.5)] == ["3.13", "101"]
    done = subprocess.run(
        [str(node()), "--test", *map(str, sorted((ROOT / "tests" / "js").glob("*.test.js")))],
        env=os.environ | {"SPECVL_FIXTURES": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_figures_have_the_pages_colours():
    style = (PACKAGE / "ui" / "assets" / "css" / "theme.css").read_text().split(".dark")[0]
    named = dict(re.findall(r"--vl-([\w-]+): (#\w+);", style))
    assert {name: named[name] for name in figure.ORIGINS} == figure.ORIGINS
    phases = [named[f"phase-{name}"] for name in ("draft", "verify", "other")]
    assert phases == [*figure.PHASES.values()]
