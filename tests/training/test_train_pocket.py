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


def test_split_layers_add_up_to_what_they_were_and_load_from_disk(tokenizer, tmp_path):
    torch.manual_seed(0)
    model = pocket.make_model(len(tokenizer), 2).eval()
    for layer in model.get_decoder().layers:
        for p in (layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight):
            p.data.normal_(std=0.001)
    ids = torch.arange(10, 40)[None]
    embedded = model.get_input_embeddings()(ids)
    before = model(input_ids=ids).logits
    origin = pocket.split_layers(model)
    after = model(input_ids=ids).logits
    layers = model.get_decoder().layers
    assert len(layers) == 4 and len(origin) == 2 * len(list(layers[0].parameters()))
    bare = model.lm_head(model.get_decoder().norm(embedded))
    assert (after - before).norm() < 0.2 * (before - bare).norm()  # two half steps are nearly the whole step

    pocket.save(model, pocket.make_processor(tokenizer), tmp_path)
    again = type(model).from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert len(again.get_decoder().layers) == 4
    torch.testing.assert_close(again(input_ids=ids).logits, after, rtol=1e-2, atol=2e-3)
