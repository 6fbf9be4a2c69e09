"""The recipe learns, and goes on where it was stopped."""

from __future__ import annotations

import pytest
import torch

from specvl_demo.training import pocket, train_pocket
from specvl_demo.training.batches import Conversations
from specvl_demo.training.train_pocket import Recipe, Run

TINY = Recipe(layers=2, tower_steps=2, steps=4, batch=4, glances=2)


@pytest.fixture(scope="module")
def tokenizer():
    return pocket.train_tokenizer(800)


def test_twelve_steps_on_one_batch_lower_its_loss(tokenizer):
    run = Run(TINY, tokenizer, torch.device("cpu"), compiled=False)
    batch = Conversations(tokenizer, 1, 10, 4, 2)[3]
    losses = []
    for _ in range(12):
        loss, _ = run.loss(batch)
        run.update(loss, run.opts, 0.3)
        losses.append(loss.item())
    assert losses[-1] < 0.85 * losses[0]


def test_a_stopped_run_ends_where_an_uninterrupted_one_does(tokenizer, tmp_path, monkeypatch):
    class Stopped(Exception):
        """Stands for the machine being switched off after the third step."""

    monkeypatch.setattr(pocket, "train_tokenizer", lambda: tokenizer)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = {"workers": 0, "compiled": False}
    train_pocket.main(whole, whole / "model", TINY, save_every_s=1e9, **options)

    update, done = Run.update, []

    def stop_after_three(run, loss, opts, factor):
        if run.step == 3 and not done:
            done.append(True)
            raise Stopped
        update(run, loss, opts, factor)

    monkeypatch.setattr(Run, "update", stop_after_three)
    with pytest.raises(Stopped):
        train_pocket.main(parts, parts / "model", TINY, save_every_s=0.0, **options)
    train_pocket.main(parts, parts / "model", TINY, save_every_s=0.0, **options)
    a, b = (torch.load(f / "state.pt", weights_only=True)["model"] for f in (whole, parts))
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=1e-5, atol=1e-6)
    assert (parts / "model" / "model.safetensors").exists()
