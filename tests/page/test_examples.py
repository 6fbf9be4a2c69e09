"""The words about the examples are made from records: other records give other words."""

from __future__ import annotations

import json
import re
import sys

import pytest

from specvl_demo import records
from specvl_demo.methods import base
from tests.page.conftest import ROOT
from tests.page.synthetic import race_records

sys.path.insert(0, str(ROOT / "examples"))
import findings  # noqa: E402


def found(method: str, example: str, seed: int = 0, tokens: int = 60):
    lanes = records.validate_trace(race_records(("ar", method), tokens, seed))
    return findings.find(example, *lanes)


def test_sentences_carry_the_measured_figures():
    """Speedup, kept drafts, cost and relaxed tokens of the sentence are those of the race."""
    one = found("lvspec", "scene")
    totals, rho = one.comparison.metrics.totals, one.comparison.rho
    words = findings.said(one)
    assert words.startswith(
        f"{one.comparison.speedup_decode:.2f}× autoregressive decoding over {totals.n_rounds}"
        " rounds"
    )
    assert f"{totals.n_accepted / totals.n_rounds:.1f} drafted tokens kept" in words
    assert (
        f"{rho['draft']:.1f} autoregressive steps to draft and {rho['verify']:.1f} to verify"
        in words
    )
    assert f"{totals.n_relaxed} of {one.n_tokens} tokens relaxed" in words
    assert "relaxed" not in findings.said(found("tabed", "scene"))


@pytest.mark.parametrize("seed", range(4))
def test_a_lesson_names_best_and_worst_and_a_reason_that_holds(seed: int):
    """Shines and struggles are the extremes; 'more' and 'fewer' agree with the figures beside
    them.
    """
    by = [found("tabed", f"e{i}", seed=10 * seed + i, tokens=20) for i in range(5)]
    told = findings.lesson(by)
    order = sorted(by, key=lambda one: one.comparison.metrics.totals.accepted_per_round)
    assert told["shines"]["example"] == order[-1].example
    assert told["struggles"]["example"] == order[0].example
    for entry in told.values():
        ((more, a, b),) = re.findall(
            r"^(More|Fewer) .*? ([\d.]+) a round against ([\d.]+);", entry["why"]
        )
        assert float(a) >= float(b) if more == "More" else float(a) <= float(b)


def test_every_example_gets_a_method_of_its_own_and_one_shows_a_loss():
    """Recorded examples get charted methods; the hardest other one the method that gains least
    there.
    """
    names = ("tabed", "sage", "lvspec", "chain", "tree", "ngram")
    by = {
        name: {example: found(name, example, seed=i + 7 * j) for j, example in enumerate("abcde")}
        for i, name in enumerate(names)
    }
    shown = findings.assign(by, ["a", "b"], ["tabed", "sage", "lvspec"])
    assert set(shown) == set("abcde") and len(set(shown.values())) == 5
    assert {shown["a"], shown["b"]} < {"tabed", "sage", "lvspec"}
    assert shown["a"] != "lvspec"  # the first example shows the same answer twice
    losses = [by[name][tile].speedup for tile, name in shown.items() if tile in "cde"]
    assert min(losses) < max(losses)


def shipped() -> dict:
    return json.loads((ROOT / "examples" / "examples.json").read_text(encoding="utf-8"))


RECORDED = [one for one in shipped()["examples"] if one.get("trace")]


@pytest.mark.parametrize("one", RECORDED, ids=lambda one: one["id"])
def test_every_recorded_race_answers_rightly_or_tells_its_price(one: dict):
    """The plain answer says all that the picture shows; a lossy one that misses some of it is
    labelled.
    """
    plain, lane = records.validate_trace(
        map(records.loads, (ROOT / "examples" / one["trace"]).open(encoding="utf-8"))
    )
    assert plain.begin.method == "ar" and [lane.begin.method] == one["methods"]
    told, drafted = (
        "".join(t.text for r in each.rounds for t in r.tokens) for each in (plain, lane)
    )
    assert (
        one["expects"] and [words for words in one["expects"] if words not in told] == one["missed"]
    )
    assert one["pair"] == "photo" or not one["missed"]
    if lane.begin.lossless:
        assert told == drafted
    slips = [
        words for words in one["expects"] if words not in drafted and words not in one["missed"]
    ]
    assert bool(one["price"]) == bool(slips)
    measured = findings.said(findings.find(one["id"], plain, lane))
    assert one["why"] == f"{base.find(one['methods'][0]).title}: {measured}"


def test_every_tile_has_its_race_and_every_method_its_lessons():
    """All examples are recorded; words about methods name tiles that exist."""
    tiles = {one["id"] for one in shipped()["examples"]}
    assert {one["id"] for one in RECORDED} == tiles
    for name, told in shipped()["lessons"].items():
        assert name in base.METHODS
        assert {told["shines"]["example"], told["struggles"]["example"]} <= tiles
        assert all(" a round against " in told[side]["why"] for side in ("shines", "struggles"))
