"""The soak for a fraction of a minute against the real page, and how it tells growth."""

from __future__ import annotations

import json

import pytest

from tests.robustness import soak
from tests.robustness.footprint import Sample, growth


def test_a_short_soak_reports_what_became_of_everybody(
    served: tuple[str, int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = served
    monkeypatch.setattr(soak, "SETTLE_S", 0.5)
    code = soak.main(["--minutes", "0.08", "--visitors", "3", "--seed", "5", "--url", url])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["wrong"], report["faults"]) == (0, [], [])
    told = sum(report[name] for name in ("served", "refused", "busy", "stopped", "left", "failed"))
    assert report["asked"] == told == sum(report["kinds"].values()) >= 3
    assert report["served"] > 0 and report["failed"] == 0
    assert report["threads"]["end"] > 0 and report["files"]["end"] > 0


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
