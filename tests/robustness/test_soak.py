"""The soak for a fraction of a minute against the real page, and its judgement of what it saw."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from tests.robustness import soak, visits
from tests.robustness.footprint import Sample, growth


def test_a_short_soak_reports_what_became_of_everybody(
    served: tuple[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    url, _ = served
    code = soak.main(["--minutes", "0.15", "--visitors", "3", "--seed", "5", "--url", url])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["wrong"], report["faults"]) == (0, [], [])
    told = sum(report[name] for name in ("served", "refused", "busy", "stopped", "left", "failed"))
    assert report["asked"] == told == sum(report["kinds"].values()) >= 3
    assert report["served"] > 0 and report["failed"] == 0
    assert report["threads"]["end"] > 0 and report["files"]["end"] > 0


def report(**changes: Any) -> dict[str, Any]:
    """What a soak without a fault reports."""
    well = {
        "seconds": 300.0,
        "asked": 100,
        "served": 60,
        "failed": 0,
        "memory": {"growth": 0.01},
        "threads": {"start": 40, "end": 44},
        "files": {"start": 40, "end": 44},
    }
    return well | changes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"failed": 2}, "2 of 100 visitors did not get what they must."),
        ({"served": 0}, "Nobody was served."),
        ({"memory": {"growth": 0.031}}, "Memory grew by 3.1% after the warm-up, more than 3%."),
        ({"memory": {"growth": 0.031}, "asked": 60}, None),
        ({"memory": {"growth": None}, "threads": None, "files": None}, None),
        (
            {"threads": {"start": 40, "end": 140}},
            "The server held 40 threads at the start and 140 at the end.",
        ),
        ({"files": {"start": 40, "end": 90}}, "The server held 40 files at the start and 90 at the end."),
    ],
)
def test_the_verdict(changes: dict[str, Any], said: str | None) -> None:
    assert soak.verdict(report(**changes)) == ([] if said is None else [said])


def test_a_scene_that_the_page_does_not_draw_is_a_fault_of_the_page() -> None:
    """Its sentence is kept; the soak goes on."""

    class Refusing:
        async def server(self, name: str, argument: Any) -> Any:
            return {"problem": "The disk is full."}

    class Always(random.Random):
        def random(self) -> float:
            return 0.0

    visit = visits.Visit(Refusing(), Always(0), visits.Tally(), "pocket", ["ar"])
    with pytest.raises(visits.Wrong, match="The disk is full"):
        asyncio.run(visit.file())


def samples(sizes: list[int], extra: bool = False) -> list[Sample]:
    """Looks at one process of these sizes in MB, a second apart; every other time a decoder is there too."""
    return [
        Sample(float(at), {1: mb << 20} | ({100 + at: 500 << 20} if extra and at % 2 else {}), 5, 5)
        for at, mb in enumerate(sizes)
    ]


def test_growth_is_what_comes_after_the_warm_up_in_what_stays() -> None:
    rising = samples([100, 400, 700] + [1000 + at for at in range(60)], extra=True)
    told = growth(rising, settled_at=3.0)
    assert told["processes"] == 1 and told["start_mb"] == pytest.approx(1005.5, abs=1)
    assert told["slope_mb_per_min"] == pytest.approx(60.0) and told["growth"] == pytest.approx(
        0.048, abs=0.003
    )
    assert growth(samples([1000] * 30), 0.0)["growth"] == 0.0
    assert growth(samples([1000] * 5), 0.0)["growth"] is None
