"""Heads beside a pair on disk, as a person meets them: command line, ablations, the search for trees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from specvl_demo import pairs
from specvl_demo.__main__ import main
from specvl_demo.bench import ablations, cases, trees
from specvl_demo.drafters.blocks import Geometry
from tests import corpus, pocketlike
from tests.drafters.support import random_module
from tests.drafters.test_checkpoints import write

GEOMETRY = Geometry(width=64, heads=2, kv_heads=2, head_width=32, eps=1e-6)
FOLDERS = {
    "eagle2": "eagle2",
    "hivis": "hivis",
    "hivis-stage-1": "hivis",
    "dream": "dream",
    "dream-no-cross": "dream",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random pocket-like pair with random heads, and a picture."""
    folder = tmp_path_factory.mktemp("place")
    pocketlike.save_pair(folder / "pocket")
    for seed, (name, kind) in enumerate(FOLDERS.items()):
        module = random_module(kind, GEOMETRY, seed)
        if name.endswith("no-cross"):
            with torch.no_grad():
                module.layers[1].cross_attn_attn_gate.zero_()
                module.layers[1].cross_attn_mlp_gate.zero_()
        write(folder / "pocket" / name, module.published(), num_attention_heads=2, specvl={"method": kind})
    corpus.halves((200, 100)).save(folder / "a.png")
    return folder


@pytest.fixture(autouse=True)
def assets(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "ASSETS", place)
    monkeypatch.chdir(place)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("method", ["eagle2", "hivis", "dream"])
def test_generate_gives_the_plain_answer(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    question = ("--prompt", "what is in the picture", "--image", "a.png", "--max-new-tokens", "12")
    plain = said(capsys, "generate", "--method", "ar", *question)
    for more in ((), ("--set", "policy=chain")):
        fast = said(capsys, "generate", "--method", method, *question, *more)
        assert fast["token_ids"] == plain["token_ids"] and fast["lossless"]


def test_sampled_answers_are_the_plain_ones_of_the_seed(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--prompt", "what is it", "--image", "a.png", "--max-new-tokens", "10", "--temperature", "1.2")
    plain = said(capsys, "generate", "--method", "ar", *asked, "--seed", "5")
    for method in ("eagle2", "hivis", "dream"):
        assert (
            said(capsys, "generate", "--method", method, *asked, "--seed", "5")["token_ids"]
            == plain["token_ids"]
        )


def test_every_ablation_is_a_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "POCKET", (("where", 1),))
    monkeypatch.setattr(cases, "CALIBRATION", (("where", 1),))
    report = said(capsys, "bench", "--suite", "ablations", "--repeats", "1", "--max-new-tokens", "6")
    rows = {row["method"]: row for row in report["rows"]}
    assert [name for name in rows if not name.startswith("hf-")] == [
        "ar",
        *(name for name, *_ in ablations.ROWS),
    ]
    assert all(row["identical_to_ar"] for name, row in rows.items() if not name.startswith("hf-"))
    assert report["settings"]["methods"]["hivis-chain-stage-1"]["variant"] == "stage-1"


def test_the_search_ranks_trees_by_measured_costs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "POCKET", (("where", 1),))
    monkeypatch.setattr(cases, "CALIBRATION", (("where", 1),))
    monkeypatch.setattr(trees, "TREES", ((6, 2, 3), (8, 3, 3)))
    monkeypatch.setattr(trees, "GAMMAS", (2, 4))
    report = said(capsys, "bench", "--suite", "trees", "--methods", "hivis", "--max-new-tokens", "8")
    rows = report["rows"]
    assert len(rows) == 4 and [r["speedup"] for r in rows] == sorted(
        (r["speedup"] for r in rows), reverse=True
    )
    for row in rows:
        assert row["speedup"] == pytest.approx(row["tau"] / row["rho"]) and row["rho"] > 1
    costs = report["costs"]["hivis"]
    assert costs["verify"]["1"] > 0 and costs["root"] > 0 and costs["level"]["10"] > 0


def test_unknown_variants_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--method", "hivis", "--prompt", "x", "--set", "variant=stage-9"]) == 2
    assert "variant is one of full, stage-1" in capsys.readouterr().err
