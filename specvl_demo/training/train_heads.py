"""The loop behind `train eagle2 | hivis | dream`: features from disk, steps, checkpoints, weights with their
card.

Given a recipe, a feature store and the target's embeddings and head, trains one head, on a CPU, a GPU, or
several processes started by `accelerate launch`. A stopped run goes on to the same weights as one that was
not stopped. Knows no conversations and no target beyond what the store holds.
"""

from __future__ import annotations

import json
import platform
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm

from specvl_demo.drafters.blocks import Geometry
from specvl_demo.drafters.checkpoints import OWN
from specvl_demo.training import acceptance, optim
from specvl_demo.training.features import Store
from specvl_demo.training.learners import LEARNERS, Learner, Recipe, Sizes

CLASS_NAMES = {"eagle2": "EAGLE-2", "hivis": "HiViS", "dream": "DREAM"}
LOG_EVERY = 25


@dataclass(frozen=True)
class Vocabulary:
    """The target's ends, shared and never trained: embeddings and output head with its soft cap."""

    embeddings: nn.Module
    head: nn.Module
    softcap: float | None

    @classmethod
    def of(cls, model: nn.Module) -> Vocabulary:
        """Those of a target as the library loads it."""
        config = model.get_decoder().config
        return cls(
            model.get_input_embeddings(),
            model.get_output_embeddings(),
            getattr(config, "final_logit_softcapping", None),
        )

    def embed(self, ids: Tensor) -> Tensor:
        """ids [...] -> embeddings [..., D]; nothing is learned through them."""
        with torch.no_grad():
            return self.embeddings(ids)

    def say(self, features: Tensor) -> Tensor:
        """Features [..., D] -> logits [..., V], in the head's own precision."""
        logits = self.head(features.to(self.head.weight.dtype))
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


def geometry_of(model: nn.Module) -> tuple[Geometry, int]:
    """The target's own geometry for its head, with plain rotary positions, and the width of its MLPs."""
    config = model.get_decoder().config
    heads = config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    theta = rope.get("rope_theta", getattr(config, "rope_theta", 10000.0))
    geometry = Geometry(
        width=config.hidden_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_width=getattr(config, "head_dim", None) or config.hidden_size // heads,
        eps=config.rms_norm_eps,
        theta=float(theta),
    )
    return geometry, config.intermediate_size


def learner_for(recipe: Recipe, model: nn.Module, store: Store, device: torch.device) -> Learner:
    """A fresh head for this target. Sizes of embeddings and features are read off the store's first shard."""
    geometry, ffn = geometry_of(model)
    ends = Vocabulary.of(model)
    some = [store[i] for i in range(min(64, len(store)))]
    ids = torch.cat([r.ids[~r.visual] for r in some]).long()
    words = ends.embed(ids.to(ends.head.weight.device)).float().cpu()
    rest = (torch.cat([getattr(r, name) for r in some]) for name in ("embeds", "features", "middle"))
    sizes = Sizes(*(x.pow(2).mean().sqrt().item() if len(x) else 1.0 for x in (words, *rest)))
    torch.manual_seed(recipe.seed)
    return LEARNERS[recipe.method](recipe, geometry, recipe.ffn or ffn, sizes, ends.embed, ends.say, device)


class Picker:
    """Which conversations step number s learns from: a shuffle an epoch, conversations of like length
    together."""

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
                sorted(order[i : i + wide], key=self._lengths.__getitem__) for i in range(0, len(order), wide)
            ]
            order = [i for group in groups for i in group]
            batches = [order[i : i + self._batch] for i in range(0, len(order), self._batch)]
            rng.shuffle(batches)
            self._epoch, self._batches = epoch, batches
        return self._batches[place]


class Run:
    """A learner, its optimizers and the step reached: everything a checkpoint holds.

    weights: whose features it learns from (see `fingerprints`).
    """

    def __init__(self, learner: Learner, accelerator: Accelerator, weights: str | None = None) -> None:
        self.learner, self.accelerator, self.weights = learner, accelerator, weights
        r = learner.recipe
        self.opts = optim.optimizers([(learner.module, 1.0)], r.lr, r.muon_lr)
        self.forward = accelerator.prepare_model(learner.module)
        self.step = 0

    def update(self, store: Store, picks: list[int]) -> dict[str, float]:
        """One step of the optimizers on these conversations (this process takes its share)."""
        r, acc = self.learner.recipe, self.accelerator
        mine = picks[acc.process_index :: acc.num_processes] or picks[:1]
        noise = torch.Generator().manual_seed(
            r.seed * 10**9 + self.step * acc.num_processes + acc.process_index
        )
        if r.method == "hivis" and r.passes(self.step) > 1 and r.passes(max(0, self.step - 1)) == 1:
            self._expand()
        batch = self.learner.batch([store[i] for i in mine], noise)
        with acc.autocast():
            loss, seen = self.learner.loss(batch, r.passes(self.step), self.forward)
        optim.set_lr(self.opts, optim.warm_then_linear(self.step / r.steps, r.decay))
        for opt in self.opts:
            opt.zero_grad(set_to_none=True)
        acc.backward(loss)
        acc.clip_grad_norm_(self.learner.module.parameters(), 1.0)
        for opt in self.opts:
            opt.step()
        self.step += 1
        return seen

    def save(self, folder: Path) -> None:
        """Write the checkpoint, complete or not at all."""
        if not self.accelerator.is_main_process:
            return
        data = {
            "recipe": asdict(self.learner.recipe),
            "weights": self.weights,
            "step": self.step,
            "head": self.learner.module.state_dict(),
            "opts": [opt.state_dict() for opt in self.opts],
        }
        torch.save(data, folder / "state.part")
        (folder / "state.part").rename(folder / "state.pt")

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint, where there is one; ValueError where it is another run's."""
        data = reached(folder, self.learner.recipe, self.weights)
        if data is None:
            return
        self.learner.module.load_state_dict(data["head"])
        for opt, state in zip(self.opts, data["opts"], strict=True):
            opt.load_state_dict(state)
        self.step = data["step"]

    @torch.no_grad()
    def _expand(self) -> None:
        """Stage 2 begins: every step embedding starts from the one there was (HiViS §3.2's two stages)."""
        rows = self.learner.module.residual
        rows[1:] = rows[:1]


def reached(folder: Path, recipe: Recipe, weights: str | None) -> dict[str, Any] | None:
    """The checkpoint in a folder, None where there is none yet; ValueError where its recipe was another or
    its target had other weights."""
    if not (folder / "state.pt").exists():
        return None
    data = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
    for what, other in (
        ("of another recipe", data["recipe"] != asdict(recipe)),
        ("on another target's weights", data.get("weights", "unknown") != weights),
    ):
        if other:
            raise ValueError(f"{folder} holds a run {what}; pass --fresh, or give another --folder")
    return data


def train(
    run: Run,
    store: Store,
    folder: Path,
    minutes: float | None = None,
    stop_at: int | None = None,
    save_every: int = 200,
) -> bool:
    """Run the recipe to its end; False where time ran out or `stop_at` was reached first. Checkpoints in
    `folder`, which a later call goes on from."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe, began = run.learner.recipe, time.monotonic()
    picker = Picker(store, recipe.batch, recipe.seed)
    main = run.accelerator.is_main_process
    bar = tqdm(
        total=recipe.steps,
        initial=run.step,
        desc=recipe.method,
        mininterval=5,
        disable=None if main else True,
    )
    recent: list[dict[str, float]] = []
    while run.step < min(recipe.steps, stop_at or recipe.steps):
        recent.append(run.update(store, picker(run.step)))
        bar.update()
        if run.step % LOG_EVERY == 0 or run.step == recipe.steps:
            mean = {k: round(v, 4) for k, v in _means(recent)}
            bar.set_postfix({k: mean[k] for k in ("loss", "agree1") if k in mean})
            recent = []
            if main:
                with (folder / "log.jsonl").open("a") as log:
                    log.write(json.dumps({"step": run.step, **mean}) + "\n")
        if run.step % save_every == 0:
            run.save(folder)
        if minutes is not None and _is_up(60 * minutes, began, run.accelerator):
            break
    run.save(folder)
    bar.close()
    return run.step >= recipe.steps


def processes() -> PartialState:
    """This process among those that train together: one, or as many as were launched.

    One of them may compute features for days while the others wait for it.
    """
    return PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(days=30))


def _is_up(seconds: float, began: float, accelerator: Accelerator) -> bool:
    """Whether time has run out by the first process's clock: all must stop after the same step."""
    up = torch.tensor(float(time.monotonic() - began > seconds), device=accelerator.device)
    return bool(broadcast(up))


def accepted(learner: Learner, held_out: Store, length: int = 5, batch: int = 16) -> dict[str, Any]:
    """Acceptance by depth on held-out conversations (see `acceptance`)."""
    order = sorted(range(len(held_out)), key=held_out.length)
    batches = (
        learner.batch([held_out[i] for i in order[start : start + batch]])
        for start in range(0, len(order), batch)
    )
    return acceptance.measure(batches, learner.right, length)


def export(run: Run, out: Path, card: dict[str, Any]) -> None:
    """Write weights in half precision under the published names, config.json, and the card twice: for
    programs and for people."""
    learner = run.learner
    recipe, g = learner.recipe, learner.module.geometry
    out.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.half().contiguous().cpu() for k, v in learner.module.published().items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": [f"{CLASS_NAMES[recipe.method]} head"],
        "hidden_size": g.width,
        "intermediate_size": tensors["layers.0.mlp.down_proj.weight"].shape[1],
        "num_attention_heads": g.heads,
        "num_key_value_heads": g.kv_heads,
        "head_dim": g.head_width,
        "num_hidden_layers": 1,
        "rms_norm_eps": g.eps,
        "rope_theta": g.theta,
        "hidden_act": "silu",
        OWN: {"method": recipe.method, **_own(learner)},
    }
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    card = card_of(run, card, sum(v.numel() for v in tensors.values()))
    (out / "card.json").write_text(json.dumps(card, indent=1) + "\n")
    (out / "README.md").write_text(readable(card))


def _own(learner: Learner) -> dict[str, float]:
    """What drafting must know beyond the published format."""
    if learner.recipe.method == "hivis":
        return {}
    keep = {"keep": learner.recipe.keep} if learner.recipe.method == "dream" else {}
    return {**keep, "visual_scale": learner.sizes.visual_scale}


def card_of(run: Run, more: dict[str, Any], n_parameters: int) -> dict[str, Any]:
    """Where these weights come from."""
    recipe = run.learner.recipe
    names = ("torch", "transformers", "accelerate")
    return {
        "method": recipe.method,
        "parameters": n_parameters,
        "steps": run.step,
        "finished": run.step >= recipe.steps,
        "recipe": asdict(recipe),
        "versions": {"python": platform.python_version(), **{n: metadata.version(n) for n in names}},
        **more,
    }


def readable(card: dict[str, Any]) -> str:
    """The card as a page."""
    tested, lines = card.get("acceptance") or {}, []
    if tested.get("tau") is not None:
        depths = ", ".join(f"{100 * share:.1f} %" for share in tested["accepted_by_depth"])
        lines = [
            f"On {tested['tokens']} held-out tokens a chain of {tested['chain']} gives "
            f"{tested['tau']:.2f} tokens per target forward, the target's own among them.",
            f"Share of rounds that accept at least 1, 2, ... tokens: {depths}.",
        ]
    about = {
        "target": card.get("target"),
        "data": card.get("data"),
        "parameters": f"{card['parameters']:,}",
        "steps": f"{card['steps']} of {card['recipe']['steps']}, batches of {card['recipe']['batch']}",
        "seed": card["recipe"]["seed"],
        "loss": card.get("loss"),
        "versions": ", ".join(f"{name} {version}" for name, version in card["versions"].items()),
    }
    rows = [f"| {key} | {value} |" for key, value in about.items() if value is not None]
    title = f"# {CLASS_NAMES[card['method']]} head for {card.get('target', 'a target')}"
    table = ["| | |", "|---|---|", *rows]
    return "\n".join([title, "", *lines, *([""] if lines else []), *table, ""])


def last_loss(folder: Path) -> dict[str, float] | None:
    """The last line of a run's log."""
    log = folder / "log.jsonl"
    return json.loads(log.read_text().splitlines()[-1]) if log.exists() else None


def main(
    recipe: Recipe,
    model: nn.Module,
    store: Store,
    held_out: Store | None,
    folder: Path,
    out: Path,
    card: dict[str, Any],
    weights: str | None,
    minutes: float | None = None,
    fresh: bool = False,
) -> dict[str, Any]:
    """Train, or go on training, a head for `model`, whose weights are `weights`; gives the card, which is
    also written beside the head."""
    cuda = torch.cuda.is_available()
    processes()
    accelerator = Accelerator(mixed_precision="bf16" if cuda else "no", cpu=not cuda)
    model = model.to(accelerator.device).requires_grad_(False)
    run = Run(learner_for(recipe, model, store, accelerator.device), accelerator, weights)
    if not fresh:
        run.load(folder)
    train(run, store, folder, minutes)
    accelerator.wait_for_everyone()
    if not accelerator.is_main_process:
        return card
    card = {**card, "conversations": len(store), "loss": last_loss(folder)}
    if held_out is not None:
        card["acceptance"] = accepted(run.learner, held_out)
    export(run, out, card)
    return json.loads((out / "card.json").read_text())


def _means(rows: list[dict[str, float]]) -> Iterator[tuple[str, float]]:
    for key in dict.fromkeys(k for row in rows for k in row):
        values = [row[key] for row in rows if key in row]
        yield key, sum(values) / len(values)
