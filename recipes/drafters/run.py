"""Trains a drafter of a pair on stored features: batches, export, the card with its provenance."""

from __future__ import annotations

import itertools
import json
import platform
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from safetensors.torch import save_file
from torch import Tensor

from recipes import acceptance, packing
from recipes.drafters.base import Batch, Learner, Recipe, Shared, Sizes
from recipes.features import Store
from recipes.trainer import Trainer, optimizers
from specvl_demo.methods.heads import files
from specvl_demo.vlm.shared_drafter import SECTION

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def learner_for(
    kind: type[Learner],
    recipe: Recipe,
    model: PreTrainedModel,
    store: Store,
    device: torch.device,
    start: Path | None = None,
) -> Learner:
    """Return a drafter for this target: fresh, scaled by the first shard, or from a folder."""
    shared = Shared.of(model, device)
    some = [store[i] for i in range(min(64, len(store)))]
    ids = torch.cat([r.ids[~r.visual] for r in some]).long()
    words = shared.embed(ids.to(shared.head.weight.device)).float().cpu()
    rest = (torch.cat([getattr(r, name) for r in some]) for name in ("embeds", "features"))
    sizes = Sizes(*(x.pow(2).mean().sqrt().item() if len(x) else 1.0 for x in (words, *rest)))
    torch.manual_seed(recipe.seed)
    return kind(recipe, shared, sizes, store, files.read_head(start)[0] if start else None)


class Picker:
    """Chooses each step's conversations: a shuffle per epoch, similar lengths together."""

    def __init__(self, store: Store, batch: int, seed: int) -> None:
        self._lengths = [store.length(i) for i in range(len(store))]
        self._batch, self._seed = min(batch, len(store)), seed
        self._epoch, self._batches = -1, [[0]]

    def __call__(self, step: int) -> list[int]:
        per_epoch = len(self._lengths) // self._batch
        epoch, place = divmod(step, per_epoch)
        if epoch != self._epoch:
            rng = random.Random(self._seed * 10**6 + epoch)
            order = rng.sample(range(len(self._lengths)), per_epoch * self._batch)
            wide = 8 * self._batch
            groups = [
                sorted(order[i : i + wide], key=self._lengths.__getitem__)
                for i in range(0, len(order), wide)
            ]
            order = [i for group in groups for i in group]
            batches = [order[i : i + self._batch] for i in range(0, len(order), self._batch)]
            rng.shuffle(batches)
            self._epoch, self._batches = epoch, batches
        return self._batches[place]


class Run(Trainer):
    """A learner in training. origin: fingerprints of the weights it depends on."""

    def __init__(
        self,
        learner: Learner,
        folder: Path,
        accelerator: Accelerator,
        origin: Mapping[str, str | None] | None = None,
    ) -> None:
        r = learner.recipe
        name, opts = learner.name, optimizers([(learner.module, 1.0)], r.lr, r.muon_lr)
        parts, identity = {"head": learner.module}, identity_of(name, r, origin or {})
        super().__init__(name, folder, identity, parts, opts, r.steps, r.decay, accelerator)
        self.learner = learner
        self.forward = accelerator.prepare_model(learner.module)

    def fit(self, store: Store, minutes: float | None = None, stop_at: int | None = None) -> bool:
        """Train on a store; return False if it stopped before the recipe's end."""
        r = self.learner.recipe
        picker = Picker(store, r.batch, r.seed)

        def batches(step: int) -> Iterator[Batch]:
            acc = self.accelerator
            for at in itertools.count(step):
                picks = picker(at)
                mine = picks[acc.process_index :: acc.num_processes] or picks[:1]
                seed = r.seed * 10**9 + at * acc.num_processes + acc.process_index
                noise = torch.Generator().manual_seed(seed)
                yield self.learner.batch([store[i] for i in mine], noise)

        def loss(batch: Batch) -> tuple[Tensor, dict[str, float]]:
            self.learner.before(self.step)
            return self.learner.loss(batch, r.passes(self.step), self.forward)

        return self.train(batches, loss, minutes=minutes, stop_at=stop_at)


def identity_of(name: str, recipe: Recipe, origin: Mapping[str, str | None]) -> dict[str, Any]:
    """Return what a run of this kind and recipe depends on: also the weights it begins with."""
    return {"method": name, **asdict(recipe), **origin}


def accepted(learner: Learner, held_out: Store, length: int = 5) -> dict[str, Any]:
    """Return acceptance by depth on held-out conversations (see `acceptance`)."""
    order = sorted(range(len(held_out)), key=held_out.length)
    picks = (order[start : start + 16] for start in range(0, len(order), 16))
    batches = (learner.batch([held_out[i] for i in some]) for some in picks)
    return acceptance.measure(batches, learner.right, length)


def export(run: Run, out: Path, card: dict[str, Any], small: bool = False) -> None:
    """Write weights in half precision under the published names, config.json, and the card.

    small: In eight bits (`recipes.packing`). card: Facts in addition to the run's.
    """
    learner = run.learner
    out.mkdir(parents=True, exist_ok=True)
    tensors = {
        k: (v.half() if v.is_floating_point() else v).contiguous().cpu()
        for k, v in learner.tensors().items()
    }
    stored = packing.packed(tensors) if small else tensors
    save_file(stored, out / "model.safetensors", metadata={"format": "pt"})
    own = {"method": learner.name, **learner.settings()}
    config = {**learner.config(tensors), SECTION: own}
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    names = ("torch", "transformers", "accelerate")
    card = {
        "method": learner.name,
        "parameters": sum(v.numel() for v in tensors.values() if v.is_floating_point()),
        "steps": run.step,
        "finished": run.step >= learner.recipe.steps,
        "recipe": asdict(learner.recipe),
        "versions": {
            "python": platform.python_version(),
            **{n: metadata.version(n) for n in names},
        },
        **card,
    }
    (out / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    (out / "README.md").write_text(readable(learner.title, card))


def readable(title: str, card: dict[str, Any]) -> str:
    """Return the card as text: the measurements in two sentences, then all fields."""
    tested = card.get("acceptance") or {}
    lines = [f"# {title} drafter for {card.get('target', 'a target')}"]
    if tested.get("tau") is not None:
        depths = ", ".join(f"{100 * share:.1f} %" for share in tested["accepted_by_depth"])
        lines += [
            f"On {tested['tokens']} held-out tokens a chain of {tested['chain']} gives "
            f"{tested['tau']:.2f} tokens per target forward, the target's own among them.",
            f"Share of rounds that accept at least 1, 2, ... tokens: {depths}.",
        ]
    return "\n\n".join([*lines, f"```json\n{json.dumps(card, indent=1)}\n```"]) + "\n"
