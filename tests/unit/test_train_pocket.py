"""The recipe learns, and continues where it was stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import repeat

import pytest
import torch
from safetensors.torch import load_file

from recipes import pocket, train_pocket
from recipes.batches import Conversations
from recipes.pictures import Renderings
from recipes.train_pocket import Recipe, Target
from recipes.trainer import Trainer

OPTIONS = {"workers": 0, "compiled": False}
TINY = Recipe(layers=2, tower_steps=2, steps=4, rendering_steps=2, batch=4, crowded=2)


@pytest.fixture(scope="module")
def tokenizer():
    return pocket.train_tokenizer(800)


@pytest.fixture(autouse=True)
def small_models(monkeypatch):
    monkeypatch.setattr(
        pocket, "make_model", partial(pocket.make_model, hidden=64, ffn=96, tower=(32, 2))
    )


def test_twelve_steps_on_one_batch_lower_its_loss(tokenizer, tmp_path):
    target = Target(TINY, tokenizer, torch.device("cpu"), compiled=False)
    batch = Conversations(tokenizer, 1, 10, 4, 2)[3]
    losses = []

    def loss(batch):
        value, seen = target.loss(batch)
        losses.append(value.item())
        return value, seen

    run = Trainer("language", tmp_path, {}, {}, target.language_optimizers(), 12, 0.9)
    assert run.train(lambda step: repeat(batch), loss)
    assert losses[-1] < 0.85 * losses[0]


def test_a_stopped_run_ends_where_an_uninterrupted_one_does(tokenizer, tmp_path, monkeypatch):
    class Stopped(Exception):
        """Stands for the machine being switched off in the middle of a step."""

    monkeypatch.setattr(pocket, "train_tokenizer", lambda: tokenizer)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_pocket.main(whole, whole / "model", TINY, save_every_s=1e9, **OPTIONS)

    loss, calls = Target.loss, []

    def stop(target, batch):
        calls.append(1)
        if len(calls) in (2, 4):  # before and after the blocks were split
            raise Stopped
        return loss(target, batch)

    monkeypatch.setattr(Target, "loss", stop)
    for _ in range(2):
        with pytest.raises(Stopped):
            train_pocket.main(parts, parts / "model", TINY, save_every_s=0.0, **OPTIONS)
    train_pocket.main(parts, parts / "model", TINY, save_every_s=0.0, **OPTIONS)
    a, b = (load_file(f / "model" / "model.safetensors") for f in (whole, parts))
    for key in a:  # written in half precision
        torch.testing.assert_close(a[key], b[key], rtol=1e-3, atol=1e-3)


def test_phases_may_be_left_out_and_a_split_that_never_comes_changes_no_depth(tokenizer, tmp_path):
    recipe = replace(TINY, tower_steps=0, steps=2, rendering_steps=0, split_at=1.0)
    train_pocket.main(tmp_path, tmp_path / "model", recipe, **OPTIONS)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["text_config"]["num_hidden_layers"] == 2


def test_the_last_phase_alone_changes_what_sees_and_goes_on(tokenizer, tmp_path, monkeypatch):
    """From a finished model: the language model stays, other options and other weights are
    refused.
    """
    torch.manual_seed(0)
    processor = pocket.make_processor(tokenizer)
    starts = [tmp_path / "start", tmp_path / "other"]
    for start in starts:
        pocket.save(pocket.make_model(len(tokenizer), 2), processor, start)
    last = replace(TINY, steps=0, rendering_steps=3)
    options = {**OPTIONS, "start": starts[0]}
    train_pocket.main(tmp_path, tmp_path / "model", last, **options)
    folders = starts[0], tmp_path / "model"
    old, new = (load_file(folder / "model.safetensors") for folder in folders)
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed and all("vision_tower" in name or "projector" in name for name in changed)
    train_pocket.main(tmp_path, tmp_path / "more", replace(last, rendering_steps=4), **options)
    for options["start"], recipe in ((starts[0], replace(last, lr=0.5)), (starts[1], last)):
        with pytest.raises(ValueError, match="other (lr|start); pass --fresh"):
            train_pocket.main(tmp_path, tmp_path / "model", recipe, **options)


def test_both_views_show_the_same_scene():
    varied, clean, patches = Renderings(1, 4, 8)[0]
    assert varied.shape == clean.shape == (8, 3, 96, 96)
    assert patches.shape == (8, pocket.N_PATCHES, 6)
    assert torch.equal(varied[0], clean[0]), "a chart is its own clean view"
    apart = (varied[1:] - clean[1:]).abs().mean((1, 2, 3))
    assert (apart > 0).all() and apart.mean() < 0.4


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
    # Two half steps are nearly the whole step.
    assert (after - before).norm() < 0.2 * (before - bare).norm()

    pocket.save(model, pocket.make_processor(tokenizer), tmp_path)
    again = type(model).from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert len(again.get_decoder().layers) == 4
    torch.testing.assert_close(again(input_ids=ids).logits, after, rtol=1e-2, atol=2e-3)
