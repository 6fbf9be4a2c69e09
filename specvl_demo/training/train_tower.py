"""The recipe of the pocket target's vision tower alone: see what other hands draw, say it as before.

Given a finished target, trains its tower and projector on crowded scenes by many hands and in bad weather.
The language model stays as it is and so do the heads on its states: every visual token shall say its
words (word alignment), and be what the unchanged tower makes of the same scene cleanly drawn by the steady
hand, wherever that is right. Knows pictures and tokens; no text.
"""

from __future__ import annotations

import copy
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from tqdm import tqdm
from transformers import LlavaForConditionalGeneration, PreTrainedTokenizerFast

from specvl_demo import fingerprints
from specvl_demo.training import batches, optim, pocket
from specvl_demo.training import scenes as world
from specvl_demo.training.scenes import Chart, Scene
from specvl_demo.training.supervise import Pointers
from specvl_demo.training.train_pocket import see


@dataclass
class Recipe:
    """What a run depends on; `steps` may be changed when resuming, the rest may not."""

    seed: int = 1
    steps: int = 8000
    batch: int = 48
    lr: float = 1e-3
    muon_lr: float = 4e-3
    decay: float = 0.9
    free: float = 0.6  # of the pictures, by a free hand
    keep_weight: float = 2.0


class Views(Dataset):
    """Item `step` is a batch of scenes seen twice: pixels as met and pixels cleanly drawn [B, 3, 96, 96], and
    the patch labels [B, N, 6] of both.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def __len__(self) -> int:
        return self.recipe.steps

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        rng = random.Random(self.recipe.seed * 10**9 + 7 * 10**8 + step)
        met, clean, patches = [], [], []
        for i in range(self.recipe.batch):
            scene = _crowd(rng) if i % 8 else world.random_chart(rng, rng.randint(1, 5))
            # Visitors' pictures are seldom square: letterboxed here twice as often as in conversations.
            box = batches.content_box(rng, hard=2.0)
            picture = batches.letterboxed(scene, box, rng, free=rng.random() < self.recipe.free)
            met.append(np.asarray(picture))
            # A chart's bars differ in width from drawing to drawing: it is its own clean view.
            clean.append(met[-1] if isinstance(scene, Chart) else np.asarray(batches.plain(scene, box)))
            patches.append(batches.patch_labels(scene, box))
        return batches.to_pixels(met), batches.to_pixels(clean), torch.from_numpy(np.stack(patches))


def _crowd(rng: random.Random) -> Scene:
    """One to nine objects; half of them digits and more of them small than elsewhere: these are the hard
    ones.
    """
    scene = world.random_scene(rng, rng.randint(1, 9), False)
    things = []
    for t in scene.things:
        kind = rng.choice(world.KINDS) if rng.random() < 0.7 else t.kind
        size = "small" if rng.random() < 0.25 else t.size
        things.append(world.random_thing(rng, t.place, kind=kind, size=size, colour=t.colour))
    return Scene(tuple(things), scene.ground)


class Run:
    """The target whose tower learns, the tower it began with, the optimizers and the step reached."""

    def __init__(self, recipe: Recipe, start: Path, device: torch.device) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.device, self.step = recipe, device, 0
        self.weights = fingerprints.of_folder(start)
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(start)
        self.model = LlavaForConditionalGeneration.from_pretrained(start, dtype=torch.float32).to(device)
        self.before = copy.deepcopy(self.model).requires_grad_(False)
        self.model.requires_grad_(False)
        self.seeing = nn.ModuleList([self.model.model.vision_tower, self.model.model.multi_modal_projector])
        self.seeing.requires_grad_(True)
        self.words = Pointers(self.tokenizer, self.model.config.text_config.hidden_size).to(device)
        self.opts = optim.optimizers([(self.seeing, 1.0)], recipe.lr, recipe.muon_lr)

    def loss(self, met: Tensor, clean: Tensor, patches: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Word alignment of pictures as met, and their distance to what was made of the clean ones."""
        table = self.model.get_input_embeddings().weight
        with torch.no_grad():
            wanted = see(self.before, clean)
            sure = self.words.right(wanted, patches, table)
        seen = see(self.model, met)
        align, named = self.words.align(seen, patches, table)
        away = (seen - wanted).pow(2).mean(-1) / wanted.pow(2).mean()
        keep = away[sure].mean()
        return align + self.recipe.keep_weight * keep, {"kind": named["kind"], "away": keep.item()}

    def update(self, loss: Tensor) -> None:
        optim.set_lr(self.opts, optim.warm_then_linear(self.step / self.recipe.steps, self.recipe.decay))
        for opt in self.opts:
            opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.seeing.parameters(), 1.0)
        for opt in self.opts:
            opt.step()
        self.step += 1

    def save(self, folder: Path) -> None:
        """Write the checkpoint atomically."""
        data = {
            "recipe": asdict(self.recipe),
            "weights": self.weights,
            "step": self.step,
            "seeing": self.seeing.state_dict(),
            "opts": [o.state_dict() for o in self.opts],
        }
        torch.save(data, folder / "state.tmp")
        (folder / "state.tmp").rename(folder / "state.pt")

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint; ValueError where it began from another target or is of another recipe."""
        data = torch.load(folder / "state.pt", map_location=self.device, weights_only=True)
        if data["weights"] != self.weights:
            raise ValueError(
                f"{folder} holds a run that began from the target {data['weights']}, not from "
                f"{self.weights}; name that target with --start, or begin again with --fresh"
            )
        if {**data["recipe"], "steps": self.recipe.steps} != asdict(self.recipe):
            raise ValueError(
                f"{folder} holds a run of another recipe, {data['recipe']}; name its values, or begin again "
                "with --fresh"
            )
        self.step = data["step"]
        self.seeing.load_state_dict(data["seeing"])
        for opt, state in zip(self.opts, data["opts"], strict=True):
            opt.load_state_dict(state)


def main(
    start: Path,
    folder: Path,
    out: Path,
    recipe: Recipe,
    resume: bool = True,
    workers: int = 1,
    save_every_s: float = 300.0,
) -> None:
    """Train the tower of the target in `start`; checkpoints in `folder`, the finished target in `out`."""
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(recipe, start, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if resume and (folder / "state.pt").exists():
        run.load(folder)
    bar, saved = tqdm(total=recipe.steps, initial=run.step, desc="tower", mininterval=5), time.monotonic()
    for batch in batches.stream(Views(recipe), run.step, workers):
        loss, seen = run.loss(*(part.to(run.device) for part in batch))
        run.update(loss)
        bar.update()
        if run.step % 50 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}", **{k: f"{v:.3f}" for k, v in seen.items()})
        if time.monotonic() - saved > save_every_s:
            run.save(folder)
            saved = time.monotonic()
    run.save(folder)
    pocket.save(run.model, pocket.make_processor(run.tokenizer), out)
