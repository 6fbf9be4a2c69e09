"""Limits, depths and guards on numbers whose answer is known."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from specvl_demo.bench import guard, limits, measure
from specvl_demo.bench.costs import StepCosts, Work, between, middle
from specvl_demo.records import Begin, Round, Token, Tree
from specvl_demo.report.metrics import Lane, compare

COSTS = StepCosts(verify={1: 0.010, 5: 0.014}, root=0.002, level={1: 0.001, 2: 0.002}, rest=0.001)


def test_between_points_lies_a_line() -> None:
    assert between(COSTS.verify, 3) == pytest.approx(0.012)
    assert between(COSTS.verify, 9) == pytest.approx(0.018)  # on through the last two
    assert between({4: 0.5}, 7) == 0.5


def round_of(n_accepted: int, depth: int, seconds: float) -> Round:
    """A chain of `depth` drafted tokens of which some are accepted."""
    tokens = [Token(7, "x", "draft")] * n_accepted + [Token(8, "y", "target")]
    tree = Tree([7] * (depth + 1), list(range(-1, depth)))
    half = seconds / 2
    return Round("a", 0, tokens, tree, list(range(n_accepted + 1)), half, half, 0.0, 0.0, seconds)


def lane(*rounds: Round) -> Lane:
    begin = Begin("r", "a", "a", "A", {}, True, "p", {}, {}, 9, "float32", "cpu", {}, "", 2, 0, [], 0, 0, 0)
    return Lane(begin, rounds)


def test_the_limit_is_tau_over_the_forwards_alone() -> None:
    plain = lane(*[round_of(0, 0, 0.011)] * 4)
    rounds = [round_of(4, 4, 0.021), round_of(1, 4, 0.021)]
    work = Work(rounds, [(1, 1, 1, 1)] * 2)
    found = limits.limit(compare(lane(*rounds), plain), work, COSTS)
    forwards = 0.014 + 0.002 + 3 * 0.001
    assert found is not None
    assert found.speedup == pytest.approx(3.5 * 0.011 / forwards)
    assert found.efficiency == pytest.approx(forwards / 0.021)


def timed(rounds: list[Round], verify: list[float], steps: list[tuple[float, ...]]) -> Work:
    """The work of chains, with what their forwards took in the rounds."""
    return Work(rounds, [(1,) * len(some) for some in steps], verify, steps)


def test_no_forward_costs_more_than_it_took_in_the_rounds() -> None:
    """Where forwards alone came out dear, the limit is what the rounds themselves showed: still a bound."""
    rounds = [round_of(4, 4, 0.012), round_of(1, 4, 0.016), round_of(0, 0, 0.006)]
    steps = [(0.002, 0.0005, 0.0005, 0.0005), (0.001, 0.0009, 0.0008, 0.0006), ()]
    work = timed(rounds, [0.008, 0.012, 0.005], steps)
    lowered = work.lowered(COSTS)
    assert lowered.verify[5] == pytest.approx(0.010)  # the mean of two, below 14 ms alone
    assert lowered.verify[1] == pytest.approx(0.005) and lowered.root == pytest.approx(0.0015)
    assert lowered.level[1] == pytest.approx(0.0038 / 6) and lowered.level[2] == 0.002  # not seen in a round
    plain = lane(*[round_of(0, 0, 0.011)] * 4)
    beside = compare(lane(*rounds), plain)
    dear, bound = limits.limit(beside, work, COSTS), limits.limit(beside, work, lowered)
    assert dear is not None and bound is not None
    assert dear.efficiency > 1  # what this is there against
    spent = 0.008 + 0.012 + 0.005 + sum(map(sum, steps))
    assert bound.efficiency == pytest.approx(spent / 0.034)
    # Forwards that are cheaper alone than in a round are what could still be reached.
    cheap = StepCosts(verify={1: 0.001, 5: 0.004}, root=0.0004, level={1: 0.0002}, rest=0.0)
    assert work.lowered(cheap) == cheap


def test_an_unseen_size_between_measured_ones_is_lowered_too() -> None:
    work = timed([round_of(2, 2, 0.02)], [0.003], [(0.002, 0.001)])
    assert work.lowered(COSTS).verify == {1: 0.010, 5: 0.014, 3: 0.003}


def test_several_measurements_become_their_medians() -> None:
    others = (
        StepCosts(verify={1: 0.009, 5: 0.015}, root=0.003, level={1: 0.0005, 2: 0.003}, rest=0.002),
        StepCosts(verify={1: 0.020, 5: 0.016}, root=0.001, level={1: 0.0040, 2: 0.001}, rest=0.009),
    )
    found = StepCosts(verify={1: 0.010, 5: 0.015}, root=0.002, level={1: 0.001, 2: 0.002}, rest=0.002)
    assert middle([COSTS, *others]) == found


def test_a_row_has_the_limit_of_its_middle_repeat() -> None:
    """A machine's speed drifts: steps are held against the rounds of their own repeat, never of another."""
    runs = measure.Runs()
    for slow, seconds in ((1.0, 0.0105), (2.0, 0.025), (1.0, 0.011)):
        rounds = [round_of(0, 0, seconds)] * 3
        runs.lanes["ar"].append([lane(*rounds)])
        runs.works["ar"].append(timed(rounds, [slow * 0.0102] * 3, [()] * 3))
        runs.costs["ar"].append(replace(COSTS, verify={1: slow * 0.010}))
    (row,) = measure.rows(runs, ["ar"], [])
    assert row["efficiency"] == pytest.approx(10 / 11)
    assert row["limit"] == pytest.approx(11 / 10)


def test_the_best_depth_is_where_another_level_stops_paying() -> None:
    costs = replace(COSTS, level={1: 0.004})
    never = Work([round_of(1, 6, 0.1)] * 3, [(1,) * 6] * 3)
    assert limits.best_depth(never, costs)[0] == 1  # nothing deeper is ever accepted
    always = Work([round_of(6, 6, 0.1)] * 3, [(1,) * 6] * 3)
    depth, factor = limits.best_depth(always, costs)
    assert depth == 6 and factor == 1.0
    hopeless = Work([round_of(0, 6, 0.1)] * 3, [(1,) * 6] * 3)
    assert limits.best_depth(hopeless, costs)[0] == 0
    plain = lane(*[round_of(0, 0, 0.011)] * 3)
    said = limits.limit(compare(lane(*hopeless.rounds), plain), hopeless, costs)
    assert said is not None and said.sentence.endswith(
        "Drafting does not pay here: plain decoding is faster."
    )
    assert "; rejected drafts hold it back most: " in said.sentence


def report(**changes: Any) -> dict[str, Any]:
    row = {"method": "chain", "tau": 3.0, "speedup_vs_ar": 2.0, "efficiency": 0.9, "identical_to_ar": True}
    return {
        "machine": {"weights": {"target": "a"}, "busy": False},
        "settings": {
            "pair": "p",
            "cases": ["c"],
            "max_new_tokens": 9,
            "repeats": 2,
            "methods": {"chain": {"gamma": 5}},
        },
        "rows": [row | changes],
    }


@pytest.mark.parametrize(
    ("changes", "well", "said"),
    [
        ({}, True, "well"),
        ({"speedup_vs_ar": 1.9}, True, "2.00 → 1.90"),
        ({"speedup_vs_ar": 1.5}, False, "speedup vs ar 2.00 → 1.50"),
        ({"tau": 3.0001}, False, "τ was 3.0000, is 3.0001"),
        ({"identical_to_ar": False}, False, "differ from plain decoding"),
        ({"method": "other"}, False, "not measured any more"),
    ],
)
def test_a_guard_holds_acceptance_exactly_and_speed_loosely(
    changes: dict[str, Any], well: bool, said: str
) -> None:
    (finding,) = guard.compare(report(), report(**changes))
    assert finding.well is well and said in finding.sentence


def test_a_guard_compares_like_with_like() -> None:
    now = report(tau=2.5, speedup_vs_ar=1.0)
    now["machine"] = {"weights": {"target": "b"}, "busy": True}
    (finding,) = guard.compare(report(), now)
    assert finding.well and "other weights" in finding.sentence and "busy" in finding.sentence
    other = copy.deepcopy(report())
    other["settings"]["cases"] = ["d"]
    with pytest.raises(ValueError, match="not asked the same: cases"):
        guard.compare(report(), other)
    with pytest.raises(ValueError, match="no report of"):
        guard.settings_of({"rows": []})


def test_ratios_are_held_back_where_the_machine_was_busy() -> None:
    told = report()
    assert measure.held_back(told) is told
    told["machine"] |= {"busy": True, "others_share_before": 0.1, "others_share_meanwhile": 0.6}
    (row,) = measure.held_back(told)["rows"]
    assert row["speedup_vs_ar"] is None and row["efficiency"] is None and row["tau"] == 3.0
    assert "60 %" in measure.busy_sentence(told["machine"])


def test_spread_is_the_interquartile_range_over_the_median() -> None:
    assert measure.quartiles([1.0]) == (None, None) and measure.spread([2.0, None]) is None
    assert measure.spread([8.0, 10.0, 12.0, 10.0, 100.0]) == pytest.approx((12 - 10) / 10)
    assert measure.ratios_of([4.0, None, 6.0], [2.0, 1.0, None]) == [2.0]
