"""Methods measured side by side on a tiny pair: what is counted is right, what is told can be
read.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from specvl_demo.compare import forwards, measure, page, questions
from specvl_demo.compare.measure import BenchOptions
from specvl_demo.compare.peers import GAMMA, PEERS
from specvl_demo.methods.base import choose
from specvl_demo.report import answers
from specvl_demo.report.answers import HF_ASSISTED, HF_GENERATE, HF_LOOKUP, Answer, Repeat
from specvl_demo.serving.loader import Loaded

CHAIN = choose("chain", {"gamma": 3})


@pytest.fixture(scope="module")
def beside(loaded: Loaded, options: BenchOptions) -> dict[str, Any]:
    """AR and a chain beside each other, as `bench --json` prints it."""
    every = questions.of_pair(loaded.pair)
    asked = [case for case in every if case.kind in ("where", "follow-up")][:2]
    report = measure.bench(loaded, asked, replace(options, repeats=2, max_new_tokens=6))
    return json.loads(json.dumps(report, allow_nan=False))


def test_timed_forwards_are_those_of_the_rounds(loaded: Loaded) -> None:
    (request,) = measure.requests(loaded, questions.of_pair(loaded.pair)[:1], 10)
    rounds = forwards.run(loaded, CHAIN, request)[1]
    assert sum(len(round_.round.tokens) for round_ in rounds) == 10
    for one in rounds:
        # A chain feeds one node a step.
        assert [width for width, _ in one.steps] == one.round.n_drafted * [1]
        assert 0 < one.verify_s <= one.round.verify_s  # each lies inside its phase
        assert one.forward_s - one.verify_s <= one.round.draft_s
    assert not any(one.steps for one in forwards.run(loaded, choose("ngram"), request)[1])


def test_methods_beside_each_other(beside: dict[str, Any]) -> None:
    rows = {row["method"]: row for row in beside["rows"]}
    for name in ("ar", "chain"):
        row = rows[name]
        assert set(answers.COLUMNS) | set(answers.TOTAL) <= set(row)
        assert row["speedup_vs_ar"] <= row["limit"] and 0 < row["efficiency"] <= 1
        assert row["held_back_by"]
        assert 0 < row["share_before"] < 1 and row["first_token_ms"] < row["answer_ms"]
    assert rows["ar"]["speedup_vs_ar"] == rows["ar"]["speedup_total_vs_ar"] == 1.0
    assert rows["chain"]["identical_to_ar"] is True and rows[HF_GENERATE]["identical_to_ar"] is True
    for row in (rows["ar"], rows["chain"]):
        kinds = row["by_kind"]
        assert [kinds[kind]["cases"] for kind in ("where", "follow-up")] == [1, 1]
        assert min(one["tau"] for one in kinds.values()) <= row["tau"]
        assert max(one["tau"] for one in kinds.values()) >= row["tau"]
        assert len(row["accepted_by_depth"]) == (3 if row["method"] == "chain" else 0)
    told = beside["machine"]
    assert told["versions"]["torch"] and "others_share_meanwhile" in told
    text, weights = page.page_of(beside).markdown(), told["weights"]["target"]
    assert weights and weights in text
    for part in ("From pictures to answer", "× our AR", "τ by kind of question"):
        assert part in text


def test_rates_are_sums_over_sums_and_ratios_lie_within_a_repeat() -> None:
    first, second = Repeat(), Repeat()
    first.answers |= {
        "ar": [Answer([1] * 4, 1.0, 1.5, 2.0, 4)],
        HF_GENERATE: [Answer([1] * 4, 0.5, 0.5, 4.0, 3)],
    }
    second.answers["ar"] = [Answer([1] * 4, 1.0, 1.5, 1.0, 4), Answer([1] * 2, 1.0, 1.5, 5.0, 2)]
    assert (first.rate("ar"), second.rate("ar"), second.rate("ar", total=True)) == (2.0, 1.0, 0.75)
    assert first.ratio(HF_GENERATE, "ar") == 0.375 and second.ratio(HF_GENERATE, "ar") is None
    assert answers.spread([2.0]) is None
    assert answers.spread([8.0, 10.0, 12.0, 10.0, 100.0]) == pytest.approx((12 - 10) / 10)


def test_an_interval_resamples_questions_and_quality_counts_shared_words() -> None:
    repeat = Repeat()
    repeat.answers |= {
        "ar": [Answer([1] * 10, 0.0, 0.1, 1.0, 10) for _ in range(4)],
        "chain": [Answer([1] * 10, 0.0, 0.1, seconds, 10) for seconds in (0.25, 0.5, 0.5, 1.0)],
    }
    low, high = answers.interval([repeat, repeat], "chain") or (0.0, 0.0)
    assert 1 <= low < repeat.ratio("chain", "ar") < high <= 4  # type: ignore[operator]
    assert answers.interval([repeat], "ar") is None
    assert answers.f1("A red, red star.", "the red star") == pytest.approx(2 * 2 / (4 + 3))
    assert answers.f1("no", "yes") == 0.0


def test_a_peer_drafts_as_many_tokens_as_our_method_of_its_kind() -> None:
    ours = [choose("ar"), CHAIN, choose("ngram", {"gamma": 8})]
    assert [PEERS[name].gamma(ours) for name in (HF_ASSISTED, HF_LOOKUP)] == [3, 8]
    assert PEERS[HF_ASSISTED].gamma(ours[:1]) == GAMMA


def report(**changes: Any) -> dict[str, Any]:
    """A bench with one row, made up."""
    row = {"method": "chain", "tau": 3.0, "identical_to_ar": True}
    row |= {"speedup_vs_ar": 2.0, "efficiency": 0.9}
    settings = {"pair": "pocket", "cases": ["c"], "max_new_tokens": 9}
    settings |= {"methods": {"chain": {"gamma": 5}}}
    machine = {"weights": {"target": "a"}, "busy": False, "threads": 2}
    return {"machine": machine, "settings": settings, "rows": [row | changes]}


def test_what_compares_times_is_held_back_where_the_machine_was_busy() -> None:
    """No speedup, no limit, no cost in AR steps, neither as a figure nor in a sentence."""
    told = report()
    assert answers.held_back(told) is told
    told["machine"] |= {"busy": True, "others_share_before": 0.1, "others_share_meanwhile": 0.6}
    (row,) = answers.held_back(told)["rows"]
    assert row["speedup_vs_ar"] is None and row["tau"] == 3.0
    full = dict.fromkeys([*answers.COLUMNS, *answers.TOTAL, *answers.COMPARED], 1.0)
    kinds = {"by_kind": {"where": {"tau": 3.0, "speedup_vs_ar": 2.0}}}
    told["rows"] = [full | kinds | {"method": "chain", "held_back_by": "3.3 AR steps"}]
    told["settings"] |= {"methods": {}, "repeats": 2}
    (busy,) = answers.held_back(told)["rows"]
    assert busy["tau"] == 1.0 and busy["tokens_per_s"] == 1.0
    shown = page.page_of(answers.held_back(told))
    assert "everything that compares times" in shown.before[-1] and not shown.after
    assert "efficiency" not in "".join(shown.before)
    anyway = page.page_of(told).before
    assert "efficiency" in anyway[1] and "omitted" not in anyway[-1] and "busy" in anyway[-1]
    assert "Speed by kind of question, × our AR" not in [head for head, *_ in shown.tables]
    for _, rows, columns in shown.tables:
        assert rows and not set(columns) & set(answers.COMPARED)
        assert all(any(row[key] is not None for row in rows) for key in columns)
    assert "others used 60 % of the machine" in page.provenance_line(told["machine"])
