"""What the line reports to those who wait: seconds, from the real durations of runs."""

from __future__ import annotations

import pytest

from specvl_demo.ui.serve.queue import FIRST_LANE_S, OVERDUE, Durations, Run


def begun(at: float, lanes: int = 1) -> Run:
    run = Run(None, lanes)
    run.began = at
    return run


def measured(*lane_s: float) -> Durations:
    """Durations after runs of two lanes to their end."""
    durations = Durations()
    for each in lane_s:
        durations.see(begun(0.0, 2), 2 * each)
    return durations


def test_the_next_visitor_waits_for_the_rest_of_the_run() -> None:
    durations = measured(4.0)
    assert durations.wait_s([begun(100.0, lanes=4)], 1, 100.0) == pytest.approx(16.0)
    assert durations.wait_s([begun(100.0, lanes=4)], 1, 106.0) == pytest.approx(10.0)


def test_a_run_that_outlasts_the_estimate_is_not_about_to_end() -> None:
    assert measured(4.0).wait_s([begun(100.0)], 1, 120.0) == pytest.approx(OVERDUE * 20.0)


def test_those_ahead_count_by_their_lanes() -> None:
    line = [begun(0.0), Run(None, 2), Run(None, 3)]
    assert measured(4.0).wait_s(line, 1, 1.0) == pytest.approx(3.0 + 8.0 + 12.0)


def test_a_run_that_had_to_load_says_nothing_of_the_others() -> None:
    assert measured(4.0, 90.0, 4.0).wait_s([begun(0.0)], 1, 0.0) == pytest.approx(4.0)


def test_several_seats_are_taken_as_they_become_free() -> None:
    durations = measured(4.0)
    assert durations.wait_s([begun(0.0)], 2, 0.0) == 0.0
    line = [begun(0.0, lanes=3), begun(0.0), Run(None, 1), Run(None, 1)]
    assert durations.wait_s(line, 2, 0.0) == pytest.approx(12.0)


@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_runs_that_were_cut_short_teach_nothing(how: str) -> None:
    durations, run = Durations(), begun(0.0)
    if how == "stopped":
        run.stopped = True
    else:
        run.add({"k": "error", "text": "The run failed."})
    durations.see(run, 0.5)
    assert durations.wait_s([begun(1.0, lanes=2)], 1, 1.0) == pytest.approx(2 * FIRST_LANE_S)


def test_a_run_that_was_told_to_end_is_not_waited_for() -> None:
    run = begun(0.0)
    run.told_to_end = True
    assert measured(4.0).wait_s([run], 1, 1.0) == 0.0
