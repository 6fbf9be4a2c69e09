"""The tower alone learns other hands: its language model stays, and a stopped run goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import LlavaForConditionalGeneration

from specvl_demo.training import pocket, train_tower
from specvl_demo.training.train_tower import Recipe, Run, Views

TINY = Recipe(steps=4, batch=8)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A target of the pocket family with random weights."""
    folder, tokenizer = tmp_path_factory.mktemp("start"), pocket.train_tokenizer(800)
    torch.manual_seed(0)
    model = pocket.make_model(len(tokenizer), 2, hidden=64, ffn=96, tower=(32, 2))
    pocket.save(model, pocket.make_processor(tokenizer), folder)
    return folder


def test_steps_on_one_batch_lower_its_loss(start):
    run, batch = Run(TINY, start, torch.device("cpu")), Views(TINY)[1]
    losses = []
    for _ in range(12):
        loss, _ = run.loss(*batch)
        run.step = 2  # in the middle of its schedule
        run.update(loss)
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_both_views_show_the_same_scene(start):
    met, clean, patches = Views(TINY)[0]
    assert met.shape == clean.shape == (8, 3, 96, 96) and patches.shape == (8, pocket.N_PATCHES, 6)
    assert torch.equal(met[0], clean[0]), "a chart is its own clean view"
    apart = (met[1:] - clean[1:]).abs().mean((1, 2, 3))
    assert (apart > 0).all() and apart.mean() < 0.4


def test_only_what_sees_is_changed(start, tmp_path):
    train_tower.main(start, tmp_path, tmp_path / "model", TINY, workers=0)
    old, new = (
        LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).state_dict()
        for folder in (start, tmp_path / "model")
    )
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed and all("vision_tower" in name or "projector" in name for name in changed)


def test_a_stopped_run_ends_where_an_uninterrupted_one_does(start, tmp_path, monkeypatch):
    class Stopped(Exception):
        """Stands for the machine being switched off after the third step."""

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_tower.main(start, whole, whole / "model", TINY, workers=0)
    update, done = Run.update, []

    def stop_after_three(run, loss):
        if run.step == 3 and not done:
            done.append(True)
            raise Stopped
        update(run, loss)

    monkeypatch.setattr(Run, "update", stop_after_three)
    with pytest.raises(Stopped):
        train_tower.main(start, parts, parts / "model", TINY, workers=0, save_every_s=0.0)
    train_tower.main(start, parts, parts / "model", TINY, workers=0, save_every_s=0.0)
    with pytest.raises(ValueError, match="began from the target"):
        train_tower.main(whole / "model", parts, parts / "model", TINY, workers=0)
    with pytest.raises(ValueError, match="another recipe"):
        train_tower.main(start, parts, parts / "model", replace(TINY, lr=0.5), workers=0)
    a, b = (torch.load(folder / "state.pt", weights_only=True)["seeing"] for folder in (whole, parts))
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=1e-5, atol=1e-6)
