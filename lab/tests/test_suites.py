"""The suites on a tiny pair: they count right, and shipped sentences are the records'."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lab import claims, heads, lossless, papers, rows, verdicts
from lab.__main__ import main
from lab.options import LabOptions, every
from specvl_demo.compare.report import FEWEST_QUESTIONS
from specvl_demo.core.sampling import Sampling
from specvl_demo.methods.base import choose
from specvl_demo.native import build_kernels
from specvl_demo.pairs import find
from specvl_demo.places import EXAMPLES
from specvl_demo.serving import session
from specvl_demo.serving.loaded import LoadedPair
from tests.shared import pocketlike
from tests.shared.heads import random_tensors, write
from tests.shared.lanes import chain_lane
from tests.shared.refusals import refuses

NOTES = Path(__file__).resolve().parents[1] / "notes"


def asked(loaded: LoadedPair, **more: Any) -> LabOptions:
    """AR and a chain of three: one repeat, at most three questions."""
    choices = [choose("ar"), choose("chain", {"gamma": 3})]
    given = {"choices": choices, "repeats": 1, "max_new_tokens": 8, "prompts": 3}
    return LabOptions(pair=loaded.pair, load=lambda roles: loaded, **given | more)


def test_heads_are_compared_with_the_same_drafts_and_their_cards(
    loaded: LoadedPair, tmp_path: Path, monkeypatch
):
    card = {"weights": "a", "data": "scenes", "conversations": 9, "parameters": 7}
    card |= {"recipe": {"cls": 0.1}}
    cards = {
        "dream": {**card, "steps": 300, "recipe": {"cls": 0.1, "middle": 0.2}},
        "dream-no-middle": {**card, "steps": 300, "recipe": {"cls": 0.1, "middle": 0.0}},
        "hivis": {**card, "steps": 200},
    }
    for seed, (name, one) in enumerate(cards.items()):
        tensors = random_tensors(name.partition("-")[0], pocketlike.GEOMETRY, seed)
        write(tmp_path / name, tensors, num_attention_heads=2)
        (tmp_path / name / "card.json").write_text(json.dumps(one))
    scenes = claims.scenes()[:1]
    monkeypatch.setattr(LabOptions, "cases", lambda *_: scenes)
    found = heads.report(asked(loaded, max_new_tokens=12, heads=tmp_path))
    assert found["unlike"] == [
        "middle: 0.2 for dream; 0.0 for dream-no-middle.",
        "steps: 300 for dream, dream-no-middle; 200 for hivis.",
    ]
    rows = {row["method"]: row for row in found["rows"]}
    assert set(rows) == {"ar", *(f"{name} {shape}" for name in cards for shape in heads.SHAPES)}
    assert all(row["identical_to_ar"] for row in rows.values())
    (tmp_path / "hivis" / "card.json").unlink()
    refuses(r"no readable card\.json", heads.opened, loaded, tmp_path)


def test_differences_are_counted_and_placed(loaded: LoadedPair, monkeypatch):
    cases = every(loaded.pair)[:2]
    options = asked(loaded)
    lossy = asked(loaded, choices=[*options.choices, choose("fly")])
    (row,) = lossless.lossless(loaded, cases, lossy)["rows"]  # it makes no promise to hold
    assert (row["method"], row["prompts"], row["differences"]) == ("chain", 2, 0)
    assert row["tokens"] == 16
    answered = session.run_lanes

    def spoilt(*given: Any) -> list[Any]:
        """A method that changes its third token, which must be found out."""
        lanes = answered(*given)
        for lane in lanes[1:]:
            third = [token for round_ in lane.rounds for token in round_.tokens][2]
            msgspec.structs.force_setattr(third, "id", third.id + 1)
        return lanes

    monkeypatch.setattr(session, "run_lanes", spoilt)
    (row,) = lossless.lossless(loaded, cases, options)["rows"]
    assert row["differences"] == 2 and row["first_token"] == 2 and row["logit_gap"] > 0
    assert row["first_case"] == cases[0].id


def test_few_questions_are_sampled_again_with_other_seeds(loaded: LoadedPair, tmp_path: Path):
    one = tmp_path / "one.jsonl"
    one.write_text('{"question": "What is shown?"}\n')
    (row,) = lossless.report(asked(loaded, data=str(one), sampling=Sampling(1.0)))["rows"]
    assert (row["prompts"], row["differences"]) == (3, 0)
    (row,) = lossless.report(asked(loaded, data=str(one)))["rows"]
    assert row["prompts"] == 1


def test_a_papers_claim_is_answered_by_its_arms(loaded: LoadedPair):
    found = papers.report(asked(loaded, claim="sage"))
    rows = {row["method"]: row for row in found["rows"]}
    (claim,) = found["claims"]
    assert {one["arm"] for one in claim["comparisons"]} < set(rows)
    assert all(1 <= row["tau"] <= row["nodes"] <= 12 for row in rows.values())
    assert claim["verdict"] == verdicts.verdict(claim)
    json.dumps(found, allow_nan=False)
    refuses("no claim 'magic'; known: sage", claims.find, "magic")


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=lambda claim: claim.name)
def test_a_claim_compares_arms_that_it_has(claim: claims.Claim):
    names = [arm.choice().method.name for arm in claim.arms]
    assert len(set(names)) == len(names)
    assert {name for need in claim.needs for name in (need.arm, need.control)} <= set(names)


def test_the_shipped_sentences_are_those_of_the_record():
    record = json.loads((NOTES / "papers.json").read_text(encoding="utf-8"))
    shipped = json.loads((EXAMPLES / "papers.json").read_text(encoding="utf-8"))
    assert shipped["pair"] == record["settings"]["pair"] == find("pocket").id
    assert [one["verdict"] for one in shipped["claims"]] == [
        verdicts.verdict(claim) for claim in record["claims"]
    ]
    assert {one["name"] for one in record["claims"]} == {claim.name for claim in claims.CLAIMS}


def test_figures_of_a_lane_sum_up_its_rounds():
    """Seven tokens in two rounds that drafted four and two levels."""
    found = verdicts.sums(chain_lane(), None).figures
    assert found == {"tau": 3.5, "nodes": 4.0, "quality": None}


def test_a_claim_holds_only_where_every_interval_lies_above_what_it_needs():
    good, poor = verdicts.Sums(tokens=40, rounds=10), verdicts.Sums(tokens=20, rounds=10)
    least = FEWEST_QUESTIONS
    value, interval = verdicts.ratio([good] * least, [poor] * least, "tau") or (0.0, [])
    assert (value, interval) == (2.0, [2.0, 2.0])
    assert verdicts.ratio([good] * (least - 1), [poor] * (least - 1), "tau") is None
    assert verdicts.ratio([good] * least, [poor] * least, "quality") is None
    low, high = (verdicts.ratio([good, poor] * 4, [poor, good] * 4, "tau") or (0, [0, 0]))[1]
    assert low < 1 < high
    one = {"arm": "a", "control": "b", "figure": "tau", "least": 1.0, "ratio": 2.0}
    held, missed = {**one, "interval": [1.5, 2.5]}, {**one, "interval": [1.0, 2.5]}
    refuted = {**one, "ratio": 0.8, "interval": [0.7, 0.9]}
    sentence = verdicts.verdict({"comparisons": [held]})
    assert sentence.startswith(
        "holds: a check yields 2.00 times as many tokens with a as with b (95 %:"
    )
    sentence = verdicts.verdict({"comparisons": [held, missed]})
    assert sentence.startswith("is neither borne out nor refuted: a check yields 2.00 times as")
    assert "1.00 to 2.50; more than 1 is needed). What does hold: a check yields" in sentence
    assert verdicts.verdict({"comparisons": [missed, refuted]}).startswith("does not hold: ")
    unknown = {**one, "ratio": None, "interval": None}
    assert verdicts.verdict({"comparisons": [unknown]}).startswith("is neither")


def test_a_step_of_so_many_rows_is_told_in_steps_of_one(loaded: LoadedPair):
    report = rows.report(asked(loaded))
    assert [row["rows"] for row in report["rows"]] == list(rows.ROWS)
    assert report["rows"][0]["steps"] == 1 and report["rounds"] == rows.ROUNDS
    for row in report["rows"]:
        assert row["steps"] == row["ms"] / report["rows"][0]["ms"] and row["least_ms"] <= row["ms"]
    assert report["kernels"] in (None, *(level.name for level in build_kernels.LEVELS))


@pytest.mark.parametrize("wrong", ["--pair", "--methods"])
def test_what_is_not_known_is_named(wrong: str, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["rows", wrong, "nope"])
    assert "There is no" in capsys.readouterr().err
