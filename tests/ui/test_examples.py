"""The words about the examples are made from records: other records give other words."""

from __future__ import annotations

import json
import re
import sys

import pytest

from specvl_demo import methods, records
from specvl_demo.report.metrics import Lane
from tests.ui.conftest import ROOT
from tests.ui.synthetic import race_records

sys.path.insert(0, str(ROOT / "examples"))
import findings  # noqa: E402


def found(method: str, example: str, seed: int = 0, tokens: int = 60):
    lanes = records.validate_trace(race_records(("ar", method), tokens, seed)).values()
    return findings.find(example, *(Lane(*lane) for lane in lanes))


def test_sentences_carry_the_measured_figures():
    """Speedup, kept drafts, cost and relaxed tokens of the sentence are those of the race."""
    one = found("lvspec", "scene")
    totals, rho = one.comparison.metrics.totals, one.comparison.rho
    words = findings.said(one)
    assert words.startswith(
        f"{one.comparison.speedup_decode:.2f}× the plain model over {totals.n_rounds} rounds"
    )
    assert f"{totals.n_accepted / totals.n_rounds:.1f} drafted tokens kept" in words
    assert f"{rho['draft']:.1f} plain steps to draft and {rho['verify']:.1f} to verify" in words
    assert f"{totals.n_relaxed} of {one.n_tokens} tokens relaxed" in words
    assert "relaxed" not in findings.said(found("tabed", "scene"))


@pytest.mark.parametrize("seed", range(4))
def test_a_lesson_names_best_and_worst_and_a_reason_that_holds(seed: int):
    """Shines and struggles are the extremes; 'more' and 'fewer' agree with the figures beside them."""
    by = [found("tabed", f"e{i}", seed=10 * seed + i, tokens=20) for i in range(5)]
    told = findings.lesson(by)
    order = sorted(by, key=lambda one: one.comparison.speedup_decode)
    assert told["shines"]["example"] == order[-1].example
    assert told["struggles"]["example"] == order[0].example
    for entry in told.values():
        for more, a, b in re.findall(r"(More|Fewer) drafts .*?\(([\d.]+) against ([\d.]+)", entry["why"]):
            assert (float(a) >= float(b)) == (more == "More")
        for less, a, b in re.findall(r"costs (less|more) .*?\(([\d.]+) against ([\d.]+)", entry["why"]):
            assert (float(a) <= float(b)) == (less == "less")


def test_every_example_gets_a_method_of_its_own_and_one_shows_a_loss():
    """Recorded examples get charted methods; the hardest other one the method that gains least there."""
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


def test_what_ships_is_whole_and_says_what_its_traces_say():
    """Three recorded races, two examples for every method served, words that match the recordings."""
    shipped = json.loads((ROOT / "examples" / "examples.json").read_text(encoding="utf-8"))
    recorded = [one for one in shipped["examples"] if one.get("trace")]
    assert len(recorded) == 3
    for one in recorded:
        lanes = records.validate_trace(records.read(ROOT / "examples" / one["trace"])).values()
        plain, lane = (Lane(*parts) for parts in lanes)
        assert [lane.begin.method] == one["methods"]
        measured = findings.said(findings.find(one["id"], plain, lane))
        assert one["why"] == f"{methods.find(one['methods'][0]).title}: {measured}"
    tiles = {one["id"] for one in shipped["examples"]}
    for name, told in shipped["lessons"].items():
        assert name in methods.METHODS
        assert {told["shines"]["example"], told["struggles"]["example"]} <= tiles
        assert all("× the plain model" in told[side]["why"] for side in ("shines", "struggles"))
