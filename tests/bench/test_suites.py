"""The suites on a tiny pair: what they count is right, what they print can be read, written and drawn."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import psutil
import pytest

from specvl_demo.__main__ import main
from specvl_demo.bench import (
    cases,
    clocks,
    costs,
    drawing,
    followups,
    lossless,
    measure,
    pages,
    provenance,
    retention,
    scaling,
    serving,
)
from specvl_demo.methods import choose
from specvl_demo.registry import Loaded

CHAIN = choose("chain", {"gamma": 3})


def test_counted_forwards_are_those_of_the_rounds(loaded: Loaded) -> None:
    asked = measure.requests(loaded, cases.scenes_alone(1), 10)
    work = costs.count(loaded, CHAIN, asked)
    for one, widths in zip(work.rounds, work.widths, strict=True):
        assert len(widths) == one.n_drafted and set(widths) <= {1}  # a chain feeds one node a step
    assert sum(len(one.tokens) for one in work.rounds) == 10
    for one, verify, steps in zip(work.rounds, work.verify_s, work.steps_s, strict=True):
        assert len(steps) == one.n_drafted
        assert 0 < verify <= one.verify_s and 0 <= sum(steps) <= one.draft_s  # each lies inside its phase
    blind = costs.count(loaded, choose("ngram"), asked)
    assert not any(blind.widths)  # prompt lookup makes no forward
    found = costs.measure(loaded, CHAIN, asked[0], repeats=2, nodes=(1, 4), widths=(1, 2))
    assert found.step > 0 and found.root > 0 and set(found.level) == {1, 2} and found.rest > 0


def test_methods_beside_each_other(loaded: Loaded) -> None:
    asked = [case for case in cases.pocket() if case.kind in ("where", "follow-up")][:2]
    report = measure.bench(loaded, asked, [choose("ar"), CHAIN], repeats=2, max_new_tokens=6)
    json.dumps(report, allow_nan=False)
    rows = {row["method"]: row for row in report["rows"]}
    for name in ("ar", "chain"):
        assert set(measure.COLUMNS) | set(measure.WHOLE) <= set(rows[name])
        assert rows[name]["limit"] > 0 and rows[name]["held_back_by"]
        assert 0 < rows[name]["efficiency"] <= 1 + 1e-9
        assert 0 < rows[name]["share_before"] < 1
        assert rows[name]["first_token_ms"] < rows[name]["answer_ms"]
    assert rows["ar"]["speedup_vs_ar"] == rows["ar"]["speedup_total_vs_ar"] == 1.0
    assert rows["chain"]["identical_to_ar"] is True
    told = report["machine"]
    assert told["weights"]["target"] and told["versions"]["torch"] and "others_share_meanwhile" in told
    text = pages.answers(report).markdown()
    assert "From pictures to answer" in text and "× our AR" in text and told["weights"]["target"] in text


def test_differences_are_counted_and_placed(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = cases.mixed(2)
    report = lossless.lossless(loaded, asked, [choose("ar"), CHAIN, choose("fly")], 8)
    (row,) = report["rows"]  # a lossy method makes no promise to hold
    assert (row["method"], row["prompts"], row["differences"]) == ("chain", 2, 0) and row["tokens"] == 16
    # A method that changes its third token must be found out.
    gather = lossless.gather

    def spoilt(records: object) -> list:
        lanes = gather(records)
        for lane in lanes[1:]:
            ids = [token for one in lane.rounds for token in one.tokens]
            object.__setattr__(ids[2], "id", ids[2].id + 1)
        return lanes

    monkeypatch.setattr(lossless, "gather", spoilt)
    (row,) = lossless.lossless(loaded, asked, [CHAIN], 8)["rows"]
    assert row["differences"] == 2 and row["first_token"] == 2 and row["logit_gap"] > 0
    assert row["first_case"] == asked[0].name


def test_clocks_alone_and_in_a_race(loaded: Loaded) -> None:
    choices = [choose("ar"), CHAIN, choose("ngram")]
    report = clocks.clocks(loaded, cases.scenes_alone(1), choices, repeats=2, max_new_tokens=6)
    assert [row["method"] for row in report["rows"]] == ["ar", "chain", "ngram"]
    for row in report["rows"]:
        assert row["runs"] == 2 and row["alone_ms"] > 0
        assert row["kept"] is (abs(row["difference"]) <= clocks.WANTED)


def test_a_follow_up_beside_its_first_question(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row a method and kind of picture; the second question finds the memory of the first."""
    monkeypatch.setattr(followups, "FRAMES", (1, 2))
    asked: list[bool] = []
    remembered = followups.session.request

    def noted(*args: object, memory: object, **kwargs: object) -> object:
        asked.append(bool(memory.encoded))
        return remembered(*args, memory=memory, **kwargs)

    monkeypatch.setattr(followups.session, "request", noted)
    report = followups.followups(loaded, [choose("ar"), CHAIN], repeats=2, max_new_tokens=6)
    assert asked == [False, True] * 12
    rows = report["rows"]
    assert [row["method"] for row in rows] == ["ar", "chain"] * 2
    assert rows[2]["visual"] == 2 * rows[0]["visual"] > 0
    for row in rows:
        assert row["runs"] == 2 and row["follow_up_ms"] > 0 and row["spread"] >= 0
        assert row["within"] is (row["of_first"] <= followups.WANTED)
    busy = report | {"machine": report["machine"] | {"busy": True}}
    assert all(row["of_first"] is None for row in measure.held_back(busy)["rows"])
    assert "follow-up / first" in pages.followed(report).markdown()


def test_what_loose_verification_keeps(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "LOOSE", (1.0,))
    rows = retention.retention(loaded, 1, 12)["rows"]
    assert [row["method"] for row in rows] == ["ar", "lvspec, exact", "lvspec, λ 1"]
    assert rows[1]["same_as_ar"] == 1.0 and rows[1]["relaxed_share"] == 0
    assert rows[0]["visual_right"] == 0.0 and rows[0]["retention"] is None  # random weights see nothing


def test_costs_are_drawn_with_what_theory_expects(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, few in (("LENGTHS", (8, 16)), ("NODES", (1, 4)), ("SIDES", (48, 96)), ("FRAMES", (1, 2))):
        monkeypatch.setattr(scaling, name, few)
    monkeypatch.setattr(scaling, "ANSWERS", (4, 30))
    report = scaling.scaling(loaded, [choose("ar")], repeats=2)
    curves = {row["name"]: row for row in report["rows"]}
    assert set(curves) == {"prefill", "step", "verify", "picture", "vision", "frames", "answer-ar"}
    assert [x for x, _ in curves["answer-ar"]["points"]] == [4, 30]  # no end of sequence cuts it
    assert curves["verify"]["slope"] > 0 and curves["picture"]["slope"] == 0.0
    page = pages.curves(report)
    for _, svg in page.drawings.values():
        assert ET.fromstring(svg).tag.endswith("svg")
    file = tmp_path / "performance.md"
    file.write_text("# Title\n<!-- bench:scaling:begin -->\nold\n<!-- bench:scaling:end -->\nend\n")
    pages.write(page, file, "scaling")
    text = file.read_text()
    assert "old" not in text and text.startswith("# Title\n") and text.endswith("end\n")
    assert "![Verification against nodes](performance/verify.svg)" in text and "ms per frame " in text
    assert (tmp_path / "performance" / "verify.svg").is_file()
    with pytest.raises(ValueError, match="no section for this suite"):
        pages.write(page, file, "pocket")


def test_a_line_is_fitted_and_drawn() -> None:
    assert drawing.line([(0, 1), (1, 3), (2, 5)]) == (2.0, 1.0, 1.0)
    assert drawing.line([(2, 5), (2, 7)]) == (0.0, 6.0, 0.0)
    svg = drawing.curve("a < b", "x", "y", [(0, 0), (10, 0)], [(0, 0), (10, 5)])
    assert "a &lt; b" in svg and svg.count("<circle") == 2 and ET.fromstring(svg) is not None


def test_a_page_that_does_not_start_says_why(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, "-c", "raise SystemExit('no port')"], stderr=out)
        process.wait()
    with pytest.raises(ValueError, match="ended at its start: no port"):
        serving._wait("http://127.0.0.1:9", process, log)


def test_the_most_memory_is_that_of_now() -> None:
    with serving._peak(psutil.Process()) as most:
        held = bytearray(50_000_000)
        time.sleep(0.4)
        del held
    assert 50e6 < most[1] <= most[0] < 1e11


def test_where_figures_come_from_is_said() -> None:
    told = provenance.describe()
    assert told["threads"] >= 1 and told["versions"]["transformers"] and told["when"].endswith("+00:00")
    assert told["title"] in pages.origin({**told, "others_share_before": 0, "others_share_meanwhile": 0})
    assert [pages.origin({"threads": n}) for n in (1, 2)] == ["1 thread.", "2 threads."]
    busy = provenance.Watch()
    assert busy.read()["seconds"] > 0 and isinstance(busy.read()["busy"], bool)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench", "--guard", "nowhere.json"], "nowhere.json cannot be read"),
        (["bench", "--suite", "lossless", "--data", "nowhere.jsonl"], "no file or folder"),
        (["bench", "improve"], "nvalid choice: 'improve'"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err
