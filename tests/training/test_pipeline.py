"""From a target to its drafters, as commands do it: stopped, taken up, refused for another target."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specvl_demo import pairs, registry
from specvl_demo.drafters.heads import open_head
from specvl_demo.registry import Loaded
from specvl_demo.targets import loading
from specvl_demo.targets.vlm import VLM
from specvl_demo.training import answers, commands, train_drafter, train_pair
from specvl_demo.training.learners import RECIPES
from tests import pocketlike

N, HELD_OUT = 4, 2


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with target/ and drafter/, whose target says little."""
    pocketlike.save_pair(tmp_path)
    regenerate = answers.regenerate

    def briefly(folder: Path, out: Path, n: int, seed: int) -> None:
        regenerate(folder, out, n, seed, max_new_tokens=8)

    monkeypatch.setattr(answers, "regenerate", briefly)
    monkeypatch.setattr(answers, "MOST_TURNS", 1)
    return tmp_path


def other_target(folder: Path) -> None:
    """Put other weights of the same shape where the target's lie."""
    for file in (folder / "drafter").glob("*.safetensors"):
        shutil.copy(file, folder / "target" / file.name)


def drafter(folder: Path, *more: str) -> None:
    """`train drafter` with everything below `folder`."""
    places = ("target", "out", "folder", "answers")
    names = (folder / "target", folder / "small", folder / "run", folder / "answers.jsonl")
    words = [word for place, name in zip(places, names, strict=True) for word in (f"--{place}", str(name))]
    sizes = ["--conversations", str(N), "--steps", "4", "--batch", "2", "--layers", "2", "--threads", "1"]
    assert commands.main("drafter", [*words, *sizes, *more]) == 0


def test_a_drafter_is_distilled_and_taken_up(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run stopped while it saves ends with the weights of one that was not stopped."""
    drafter(pair)
    whole = torch.load(pair / "run" / "drafter.pt", weights_only=True)
    assert whole["step"] == 4
    shutil.rmtree(pair / "run")

    class Stopped(Exception):
        """Stands for the machine being switched off in the middle of writing a checkpoint."""

    save = torch.save
    said = pair / "answers.jsonl"
    options = {"layers": 2, "steps": 4, "batch": 2}

    def half_written(data: dict, path: Path) -> None:
        save(data, path)
        if data["step"] == 3:
            path.write_bytes(b"half")
            raise Stopped

    monkeypatch.setattr(torch, "save", half_written)
    with pytest.raises(Stopped):
        train_drafter.main(
            pair / "target", said, pair / "run", pair / "small", save_every=1, seed=1, **options
        )
    monkeypatch.setattr(torch, "save", save)
    assert torch.load(pair / "run" / "drafter.pt", weights_only=True)["step"] == 2
    drafter(pair)
    again = torch.load(pair / "run" / "drafter.pt", weights_only=True)
    for name, weight in whole["model"].items():
        torch.testing.assert_close(again["model"][name], weight, rtol=1e-5, atol=1e-6)
    VLM(loading.model(pair / "small", loading.Plan(), "small"), "small")


def test_a_new_target_keeps_nothing_of_the_old(pair: Path) -> None:
    """Its answers are asked for anew, and a drafter of the old one is neither gone on from nor saved."""
    drafter(pair)
    before = (pair / "small" / "model.safetensors").read_bytes()
    other_target(pair)
    with pytest.raises(ValueError, match=r"answers.jsonl holds the answers of other weights; delete it"):
        drafter(pair)
    (pair / "answers.jsonl").unlink()
    with pytest.raises(ValueError, match=r"run holds a run with other weights; pass --fresh"):
        drafter(pair)
    assert (pair / "small" / "model.safetensors").read_bytes() == before
    drafter(pair, "--fresh")
    assert (pair / "small" / "model.safetensors").read_bytes() != before
    with pytest.raises(ValueError, match=r"with other steps; pass --fresh"):
        drafter(pair, "--steps", "6")


def head(pair: Path, method: str, fresh: bool = False) -> dict:
    """`train METHOD` for the pair on drawn scenes."""
    places = train_pair.Places(
        pair / f"run-{method}", pair / f"head-{method}", pair / "work", pair / "answers.jsonl"
    )
    recipe = replace(RECIPES[method], steps=3, batch=2, stage1=0.5)
    return train_pair.main(loaded(pair), recipe, places, N, HELD_OUT, fresh=fresh)


def loaded(pair: Path) -> Loaded:
    return registry.load(registry.custom(str(pair / "target")), roles=())


def test_heads_follow_their_target(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method trains on one store; another target's answers, features and checkpoints are refused."""
    with pytest.raises(ValueError, match="knows more than drawn scenes"):
        head(pair, "hivis")
    monkeypatch.setattr(pairs, "ASSETS", pair)
    cards = [head(pair, method) for method in ("dream", "eagle2", "hivis")]
    assert [card["finished"] for card in cards] == [True] * 3 and len({c["weights"] for c in cards}) == 1
    stores = {"held-out-dream", "train-dream"}
    assert {path.name for path in (pair / "work").iterdir()} == {"answers-held-out.jsonl", *stores}
    decoder = VLM(loading.model(pair / "target", loading.Plan(), "target"), "target").decoder
    for method in ("dream", "eagle2", "hivis"):
        open_head(pair / f"head-{method}", decoder, (method,))
    other_target(pair)
    with pytest.raises(ValueError, match="run-hivis holds a run on another target's weights; pass --fresh"):
        head(pair, "hivis")
    with pytest.raises(ValueError, match="train-dream holds features of other weights; delete it"):
        head(pair, "hivis", fresh=True)
    shutil.rmtree(pair / "work")
    with pytest.raises(ValueError, match=r"answers.jsonl holds the answers of other weights"):
        head(pair, "hivis", fresh=True)
    (pair / "answers.jsonl").unlink()
    card = head(pair, "hivis", fresh=True)
    assert card["weights"] != cards[0]["weights"]
    assert head(pair, "hivis") == card, "the same target goes on from where it was"


def test_a_line_that_was_cut_off_is_said_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    rows = [{"seed": i, "weights": "abc", "answers": ["yes"]} for i in range(2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"seed": 2, "wei')
    assert answers.said_by("abc", path) == 2 and len(answers.read(path)) == 2
    with pytest.raises(ValueError, match="other weights"):
        answers.said_by(None, path)
