"""What the page offers, and the words about its examples: made from records, which other records
would change.
"""

import json
import sys
from pathlib import Path

import pytest

from specvl_demo import pairs, records
from specvl_demo.methods import base
from specvl_demo.methods.base import METHODS
from specvl_demo.pairs import PAIRS, Checkpoint, PairSpec, find, fitting
from specvl_demo.pairs.machine import Gpu, Machine
from specvl_demo.places import ROOT
from specvl_demo.serving import choosing
from specvl_demo.ui.page import catalog
from specvl_demo.ui.page.handlers import PageHandlers
from tests.page.made_up import race_records
from tests.shared.lanes import recorded

sys.path.insert(0, str(ROOT / "examples"))
import findings  # noqa: E402


def found(method: str, example: str):
    lanes = records.validate_trace(race_records(("ar", method), 60))
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
    cost = f"{rho['draft']:.1f} autoregressive steps to draft and {rho['verify']:.1f} to verify"
    assert cost in words
    assert f"{totals.n_relaxed} of {one.n_tokens} tokens relaxed" in words
    assert "relaxed" not in findings.said(found("tabed", "scene"))


TILES = json.loads((ROOT / "examples" / "examples.json").read_text("utf-8"))["examples"]
WINS = [one for one in TILES if not one["fails"]]
PAPERS = {"tabed", "sage", "lvspec", "hivis", "dream"}


def race(one: dict) -> list[records.LaneRecords]:
    return recorded(one["trace"].removesuffix(".trace.jsonl"))


@pytest.mark.parametrize("one", TILES, ids=lambda one: one["id"])
def test_every_examples_answer_was_read_and_says_what_is_wrong(one: dict):
    """A race that was recorded anew with other answers fails here until somebody has read them."""
    plain, *lanes = race(one)
    assert [each.begin.method for each in race(one)] == ["ar", *one["methods"]]
    # What the form asks for when the example is chosen, and Run gives.
    chosen = choosing.choose(find(one["pair"]), one["methods"][0], one.get("settings"))
    assert chosen.settings.items() <= lanes[0].begin.settings.items()
    read = one["read"]
    assert read["of"] == findings.checksum(race(one))
    assert one["recorded"]["when"]
    assert bool(one["fails"]) == (not (read["plain"] and read["method"]))
    assert bool(one["price"]) == (read["plain"] and not read["method"])
    assert {lane.text for lane in lanes if lane.begin.lossless} <= {plain.text}
    assert one["why"] == findings.sentences(findings.find_all(one["id"], race(one)))


TRIED = {"espresso", "two", "stream", "cat"}
"""Races with a narrower margin whose answers were the same with one, two and four threads, and with
products and convolutions as on AVX2.
"""


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile["id"])
def test_no_examples_answer_hangs_on_what_another_processor_decides(tile: dict):
    """No token of any lane was nearly another one, so Run gives what the tile shows. Without a
    picture the last bits are the same everywhere.
    """
    wide = findings.least_margin(race(tile)) >= findings.NARROW[tile["pair"]]
    assert wide or not tile["media"] or tile["id"] in TRIED


@pytest.mark.parametrize("pair", sorted({tile["pair"] for tile in WINS}))
def test_the_race_that_a_pair_begins_with_has_a_rejected_draft(pair: str):
    """It is the first right one, and showing rejected drafts changes its answer."""
    _, lane = race(next(tile for tile in WINS if tile["pair"] == pair))
    assert any(r.tokens[-1].origin == "target" and r.path[-1] in r.tree.parent for r in lane.rounds)


def test_the_weights_of_recorded_views_go_where_the_lesson_says():
    weights, lesson = {}, base.find("tabed").learn
    for tile in TILES:
        if tile["methods"] == ["tabed"]:
            assert lesson and f"“{tile['title']}”" in lesson.look
            lane = race(tile)[1]
            weights[tile["id"]] = [r.notes["weights"]["multimodal"] for r in lane.rounds]
    assert set(weights["garden"][1:]) == {1.0} and weights["garden"][0] == 0.5
    assert set(weights["brushes"][1:]) == {1.0} and weights["brushes"][0] == 0.5
    assert len(weights) == 2


def test_the_recorded_comparison_can_be_asked_again():
    """It comes with questions of each of its kinds, and with their files."""
    report = PageHandlers.open_report(None, "", None)  # type: ignore[arg-type]
    kinds = {question["kind"]: question["media"] for question in report["asked"]}
    assert kinds.keys() == report["rows"][0]["by_kind"].keys()
    assert [len(kinds[kind]) for kind in ("text", "story", "two pictures")] == [0, 1, 2]
    assert all((ROOT / file["path"]).is_file() for media in kinds.values() for file in media)


def branches(lane: records.LaneRecords) -> int:
    """Rounds whose tree has a node with two children."""
    return sum(len(set(r.tree.parent)) < len(r.tree.parent) for r in lane.rounds)


def test_the_gallery_shows_long_right_answers_of_all_five_papers_and_real_trees():
    """At least ten are long; four have a tree that branches in three rounds; one is relaxed."""
    lanes = [race(one)[1] for one in WINS]
    assert sum(len(lane.token_ids) >= 40 for lane in lanes) >= 10
    assert {lane.begin.method for lane in lanes} >= PAPERS
    assert sum(branches(lane) >= 3 for lane in lanes) >= 4
    relaxed = [r.n_relaxed for lane in lanes if lane.begin.method == "lvspec" for r in lane.rounds]
    assert sum(relaxed) > 0
    assert {one["pair"] for one in WINS} == {"photo", "pocket"} and len(TILES) > len(WINS)


def test_drawn_scenes_are_offered_to_what_learnt_them(tmp_path: Path, monkeypatch):
    """The shipped models were trained on them; a person's own, in a folder too, was not."""
    own = PairSpec("own", "Own", "LLaVA", Checkpoint(str(tmp_path), 1e6, "own", local=True), {})
    assert not own.shipped
    few = (*(pair for pair in PAIRS if pair.shipped), own)
    monkeypatch.setattr(catalog, "PAIRS", few)
    entries = catalog.build_catalog("pocket")["pairs"]
    told = {entry["id"]: entry["knows"] == "scenes" for entry in entries}
    assert told == {pair.id: pair.id == "pocket" for pair in few}


@pytest.mark.parametrize("gpu", ["NVIDIA L4", None])
def test_every_pair_offers_a_method_it_supports_first(gpu: str | None, monkeypatch):
    gpus = () if gpu is None else (Gpu(gpu, 80_000_000_000, (8, 9)),)
    machine = Machine(8, 64_000_000_000, "x86_64", gpus)
    monkeypatch.setattr(catalog, "detect_machine", lambda: machine)
    for pair in catalog.build_catalog("pocket")["pairs"]:
        (first,) = pair["first"]
        assert METHODS[first].offered is not None
        assert first in choosing.supported_methods(pairs.find(pair["id"]))


def test_what_runs_on_this_gpu_is_listed_first(monkeypatch):
    """After the pair that a visitor starts with; each says what it needs, or why it does not."""
    card = Gpu("NVIDIA L4", 24_000_000_000, (8, 9))
    monkeypatch.setattr(
        catalog, "detect_machine", lambda: Machine(8, 64 * 10**9, "x86_64", (card,), kernels=True)
    )
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(fitting, "_has_bitsandbytes", lambda: False)
    listed = catalog.build_catalog("qwen2.5-vl-72b")["pairs"]
    assert listed[0]["id"] == "qwen2.5-vl-72b" and not listed[0]["available"]
    runs = [pair["available"] for pair in listed[1:]]
    assert runs == sorted(runs, reverse=True) and set(runs) == {True, False}
    assert all("needs about" in pair["reason"] for pair in listed if pair["available"])
    assert all("needs about" in pair["help"] for pair in listed if pair["device"] == "cuda:0")
    places = [pair["device"] for pair in listed[1:] if pair["available"]]
    assert places == sorted(places, reverse=True) and set(places) == {"cuda:0", "cpu"}


def test_every_parameter_says_what_it_does_and_the_papers_value():
    papers = []
    for name in choosing.supported_methods(pairs.find("pocket")):
        for param in catalog.method_panel("pocket", name, {})["params"]:
            assert param["title"] and len(param["help"]) > 10, (name, param["key"])
            papers += [(name, param["key"], param["paper"])] * (param["paper"] is not None)
    assert {("sage", "max_nodes", 64), ("lvspec", "gamma", 10)} <= {*papers} and len(papers) >= 10
