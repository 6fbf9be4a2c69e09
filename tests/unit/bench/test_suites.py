"""The suites on a tiny pair: what they count is right, what they print can be read, written and
drawn.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specvl_demo.__main__ import main
from specvl_demo.bench import (
    ablations,
    cases,
    claims,
    forwards,
    lossless,
    measure,
    pages,
    papers,
)
from specvl_demo.bench.measure import BenchOptions
from specvl_demo.bench.peers import GAMMA, PEERS
from specvl_demo.core.sampling import Sampling
from specvl_demo.methods.base import choose
from specvl_demo.methods.heads.blocks import Geometry
from specvl_demo.report import answers
from specvl_demo.report.answers import HF_ASSISTED, HF_GENERATE, HF_LOOKUP, Answer, Repeat
from specvl_demo.report.papers import verdict
from specvl_demo.serving import session
from specvl_demo.serving.loader import Loaded
from tests.contract.test_checkpoints import write
from tests.heads import random_module

CHAIN = choose("chain", {"gamma": 3})
GEOMETRY = Geometry(width=64, heads=2, kv_heads=2, head_width=32, eps=1e-6)


@pytest.fixture(scope="module")
def beside(loaded: Loaded, options: BenchOptions) -> dict[str, Any]:
    """AR and a chain beside each other, as `bench --json` prints it."""
    asked = [case for case in cases.pocket() if case.kind in ("where", "follow-up")][:2]
    report = measure.bench(loaded, asked, replace(options, repeats=2, max_new_tokens=6))
    return {"suite": "pocket", **json.loads(json.dumps(report, allow_nan=False))}


def test_timed_forwards_are_those_of_the_rounds(loaded: Loaded) -> None:
    (request,) = measure.requests(loaded, cases.scenes_alone(1), 10)
    rounds = forwards.run(loaded, CHAIN, request)[1]
    assert sum(len(one.round.tokens) for one in rounds) == 10
    for one in rounds:
        # A chain feeds one node a step.
        assert [width for width, _ in one.steps] == one.round.n_drafted * [1]
        assert 0 < one.verify_s <= one.round.verify_s  # each lies inside its phase
        assert one.forward_s - one.verify_s <= one.round.draft_s
    assert not any(one.steps for one in forwards.run(loaded, choose("ngram"), request)[1])


def test_methods_beside_each_other(beside: dict[str, Any], tmp_path: Path) -> None:
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
    text, weights = pages.answers(beside).markdown(), told["weights"]["target"]
    assert weights and weights in text
    for part in ("From pictures to answer", "× our AR", "τ by kind of question"):
        assert part in text
    pages.draw(beside, tmp_path / "charts.html")
    drawn = (tmp_path / "charts.html").read_text()
    assert drawn.count("Plotly.newPlot") == 2 and '"chain"' in drawn
    with pytest.raises(ValueError, match="no charts"):
        pages.draw({"suite": "lossless", "rows": [{"method": "chain"}]}, tmp_path / "none.html")


def test_heads_are_compared_with_the_same_drafts_and_their_cards(
    loaded: Loaded, options: BenchOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = {"weights": "a", "data": "scenes", "conversations": 9, "parameters": 7}
    card |= {"recipe": {"cls": 0.1}}
    cards = {
        "dream": {**card, "steps": 300, "recipe": {"cls": 0.1, "middle": 0.2}},
        "dream-no-middle": {**card, "steps": 300, "recipe": {"cls": 0.1, "middle": 0.0}},
        "hivis": {**card, "steps": 200},
    }
    for seed, (name, one) in enumerate(cards.items()):
        tensors = random_module(name.partition("-")[0], GEOMETRY, seed).published()
        write(tmp_path / name, tensors, num_attention_heads=2)
        (tmp_path / name / "card.json").write_text(json.dumps(one))
    monkeypatch.setattr(cases, "pocket", lambda: cases.scenes_alone(1))
    found = ablations.report(replace(options, max_new_tokens=12, heads=tmp_path))
    assert found["unlike"] == [
        "middle: 0.2 for dream; 0.0 for dream-no-middle.",
        "steps: 300 for dream, dream-no-middle; 200 for hivis.",
    ]
    rows = {row["method"]: row for row in found["rows"]}
    assert set(rows) == {"ar", *(f"{name} {shape}" for name in cards for shape in ablations.SHAPES)}
    assert all(row["identical_to_ar"] for row in rows.values())
    ((_, table, columns),) = pages.ablations(found).tables
    assert [row["head"] for row in table] == list(cards)
    assert {"parameters", "steps", "τ, tree"} <= set(columns)
    assert table[2]["× our AR, chain"] == rows["hivis chain"]["speedup_vs_ar"]
    (tmp_path / "hivis" / "card.json").unlink()
    with pytest.raises(ValueError, match=r"no readable card\.json"):
        ablations.opened(loaded, tmp_path)


def test_a_section_of_a_file_is_kept_up_to_date(beside: dict[str, Any], tmp_path: Path) -> None:
    whole, few = tmp_path / "tables.md", tmp_path / "README.md"
    whole.write_text("# Title\n<!-- bench:pocket:begin -->\nold\n<!-- bench:pocket:end -->\nend\n")
    few.write_text("<!-- bench:pocket:begin chain ar -->\nold\n<!-- bench:pocket:end -->\n")
    record = tmp_path / "report.json"
    record.write_text(json.dumps(beside))
    command = ["bench", "--from", str(record), "--busy", "--write", str(whole), "--write", str(few)]
    assert main(command) == 0
    text = whole.read_text()
    assert "old" not in text and text.startswith("# Title\n") and text.endswith("end\n")
    assert HF_GENERATE in text and "* chain: A round emits" in text
    lines = few.read_text().splitlines()
    assert [line.split()[1] for line in lines[3:-1]] == ["ar", "chain"] and "limit" not in lines[1]
    once = whole.read_text()
    assert main(command) == 0 and whole.read_text() == once
    with pytest.raises(ValueError, match="no section for this suite"):
        pages.write(pages.answers(beside), whole, "steps")


def test_differences_are_counted_and_placed(
    loaded: Loaded, options: BenchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = cases.mixed(2)
    lossy = replace(options, choices=[*options.choices, choose("fly")])
    (row,) = lossless.lossless(loaded, asked, lossy)["rows"]  # it makes no promise to hold
    assert (row["method"], row["prompts"], row["differences"]) == ("chain", 2, 0)
    assert row["tokens"] == 16
    answered = session.answers

    def spoilt(*asked: Any) -> list[Any]:
        """A method that changes its third token, which must be found out."""
        lanes = answered(*asked)
        for lane in lanes[1:]:
            third = [token for one in lane.rounds for token in one.tokens][2]
            msgspec.structs.force_setattr(third, "id", third.id + 1)
        return lanes

    monkeypatch.setattr(session, "answers", spoilt)
    (row,) = lossless.lossless(loaded, asked, options)["rows"]
    assert row["differences"] == 2 and row["first_token"] == 2 and row["logit_gap"] > 0
    assert row["first_case"] == asked[0].name


def test_few_questions_are_sampled_again_with_other_seeds(
    options: BenchOptions, tmp_path: Path
) -> None:
    one = tmp_path / "one.jsonl"
    one.write_text('{"question": "What is shown?"}\n')
    asked = replace(options, data=str(one), sampling=Sampling(1.0))
    (row,) = lossless.report(asked)["rows"]
    assert (row["prompts"], row["differences"]) == (3, 0)
    (row,) = lossless.report(replace(asked, sampling=Sampling()))["rows"]
    assert row["prompts"] == 1


def test_a_papers_claim_is_answered_by_its_arms_and_reads_from_the_record(
    options: BenchOptions, tmp_path: Path
) -> None:
    found = {"suite": "papers", **papers.report(replace(options, claim="sage"))}
    rows = {row["method"]: row for row in found["rows"]}
    (claim,) = found["claims"]
    assert {one["arm"] for one in claim["comparisons"]} < set(rows)
    assert all(1 <= row["tau"] <= row["nodes"] <= 12 for row in rows.values())
    record = tmp_path / "papers.json"
    record.write_text(json.dumps(found, allow_nan=False))
    charts, text = tmp_path / "charts.html", tmp_path / "papers.md"
    command = ["bench", "--from", str(record), "--plots", str(charts), "--report", str(text)]
    assert main(command) == 0
    assert claim["paper"] in charts.read_text() and verdict(claim) in text.read_text()
    with pytest.raises(ValueError, match="no claim 'magic'; known: sage"):
        claims.find("magic")


def test_heads_of_a_folder_are_compared_only_with_one_another() -> None:
    """They had a short training; the shipped ones were trained for longer."""
    for claim in claims.CLAIMS:
        own = {arm.name: arm.head is not None for arm in claim.arms}
        assert all(own[one.arm] == own[one.control] for one in claim.needs)


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.name)
def test_a_claim_compares_arms_that_it_has(claim: claims.Claim) -> None:
    names = [arm.choice().method.name for arm in claim.arms]
    assert len(set(names)) == len(names)
    assert {name for one in claim.needs for name in (one.arm, one.control)} <= set(names)


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
    return {"suite": "pocket", "machine": machine, "settings": settings, "rows": [row | changes]}


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
    page = pages.answers(answers.held_back(told))
    assert "everything that compares times" in page.before[-1] and not page.after
    assert "efficiency" not in "".join(page.before)
    anyway = pages.answers(told).before
    assert "efficiency" in anyway[1] and "omitted" not in anyway[-1] and "busy" in anyway[-1]
    assert "Speed by kind of question, × our AR" not in [head for head, *_ in page.tables]
    for _, rows, columns in page.tables:
        assert rows and not set(columns) & set(answers.COMPARED)
        assert all(any(row[key] is not None for row in rows) for key in columns)
    assert "others used 60 % of the machine" in pages.origin(told["machine"])
