"""The recipe of the pocket target: the vision tower learns words, the language model learns to look
them up.

1. tower: projected visual tokens align with word embeddings (crowded scenes, no language model).

2. language: next-token loss on answers, with weighted visual words and pointer supervision of the
middle layer. At the share `split_at` of the steps, every block is split into two that add half of
what it added, so that the deep model starts where the shallow one was and every block contributes.

3. renderings: the tower again, on many renderers with augmentation; the language model is frozen,
so that drafters on its states stay valid.

The loop, its checkpoints and its log are `trainer`'s. Runs on a CPU or one GPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import LlavaForConditionalGeneration, PreTrainedTokenizerFast

from recipes import pocket, trainer
from recipes.batches import Batch, Conversations, Pointers
from recipes.pictures import Renderings, VisionOnly, stream
from recipes.pocket import rescale, see
from recipes.trainer import Trainer
from specvl_demo.pairs import fingerprints


@dataclass(frozen=True)
class Recipe(trainer.Recipe):
    """The settings of a run.

    Attributes:
        tower_steps, steps, rendering_steps: Of the three phases; 0 skips a phase.
        layers: Before they are split.
        begin: Where in the curriculum.
        tower_factor: Factor on the learning rates of the vision parts, in phase 2.
        crowded: Crowded pictures in a batch, only for the tower.
        visual_weight, align_weight, point_weight, keep_weight: Of the losses.
        average: Decay per step of the averaged weights, which are shipped.
    """

    steps: int = 4000
    batch: int = 24
    muon_lr: float = 6e-3
    decay: float = 0.55
    layers: int = 8
    split_at: float = 0.65
    begin: float = 0.0
    tower_steps: int = 3500
    rendering_steps: int = 8000
    tower_factor: float = 0.15
    crowded: int = 12
    visual_weight: float = 2.0
    align_weight: float = 0.3
    point_weight: float = 0.5
    keep_weight: float = 2.0
    average: float = 0.995


class Target:
    """The model in training, its supervision heads and the average that is shipped."""

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: PreTrainedTokenizerFast,
        device: torch.device,
        compiled: bool,
    ) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.compiled = recipe, compiled
        self.model = pocket.make_model(len(tokenizer), recipe.layers).to(device)
        self.pointers = Pointers(tokenizer, self.model.config.text_config.hidden_size).to(device)
        self._prepare()

    @property
    def seeing(self) -> list[nn.Module]:
        """Return the modules that turn pixels into visual tokens."""
        return [self.model.model.vision_tower, self.model.model.multi_modal_projector]

    def tower_optimizers(self) -> list[torch.optim.Optimizer]:
        r, words = self.recipe, self.model.get_input_embeddings()
        return trainer.optimizers([(part, 1.0) for part in (*self.seeing, words)], r.lr, 2 * r.lr)

    def language_optimizers(self) -> list[torch.optim.Optimizer]:
        r = self.recipe
        parts = [
            *((part, r.tower_factor) for part in self.seeing),
            (self.pointers, 1.0),
            (self.model, 1.0),
        ]
        return trainer.optimizers(parts, r.lr, r.muon_lr)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return projected visual tokens [P, N, D], states of an early and a middle layer, and last
        hidden states [B, L, D].
        """
        decoder, embed = self.model.get_decoder(), self.model.get_input_embeddings()
        visual = see(self.model, batch.pixels)
        x, shown = embed(batch.ids), (batch.ids == pocket.IMAGE).unsqueeze(-1)
        x = x.masked_scatter(shown, visual.reshape(-1, x.shape[-1]))
        positions = torch.arange(x.shape[1], device=x.device)[None]
        rotary, early, middle = decoder.rotary_emb(x, positions), x, x
        for i, layer in enumerate(decoder.layers):
            x = layer(x, attention_mask=None, position_ids=positions, position_embeddings=rotary)
            if i + 1 == len(decoder.layers) // 4:
                early = x
            if i + 1 == len(decoder.layers) // 2:
                middle = x
        return visual, early, middle, decoder.norm(x)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Return the sum of the language phase's losses, and what to log."""
        r, table = self.recipe, self.model.get_input_embeddings().weight
        batch = batch.to(table.device)
        visual, early, middle, last = self.forward(batch)
        target = batch.labels[:, 1:]
        scored = target != -100
        seen = batch.visual[:, 1:][scored]
        logits = self.model.lm_head(last[:, :-1][scored])
        ce = F.cross_entropy(logits, target[scored], reduction="none")
        weight = 1 + (r.visual_weight - 1) * seen.float()
        crowded = see(self.model, batch.crowded)
        cells, labels = (visual, crowded), (batch.patches, batch.crowded_patches)
        align, named = self.pointers.align(torch.cat(cells), torch.cat(labels), table)
        point, read = self.pointers.point(middle, batch, table)
        shown = batch.ids == pocket.IMAGE
        change, changed = self.pointers.changed(middle[shown].view(*visual.shape), batch)
        which, numbered = self.pointers.numbered(early[shown].view(*visual.shape), batch)
        total = (
            (ce * weight).sum() / weight.sum()
            + r.align_weight * align
            + r.point_weight * (point + change + which)
        )
        right = (logits.argmax(-1) == target[scored])[seen].float().mean().item()
        return total, {"nll": ce.mean().item(), "visual": right, "tower": named["kind"]} | {
            "@" + k: v for k, v in (read | changed | numbered).items()
        }

    def split(self, opts: list[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
        """Split every block of the language model into two; the new optimizers inherit the state of
        both.
        """
        old = {
            p: opt.state.get(p, {}) for opt in opts for g in opt.param_groups for p in g["params"]
        }
        twins = pocket.split_layers(self.model)
        self._prepare()
        opts = self.language_optimizers()
        for opt in opts:
            for p in (p for g in opt.param_groups for p in g["params"]):
                opt.state[p] = {k: v.clone() for k, v in old[twins.get(p, p)].items()}
        return opts

    def _prepare(self) -> None:
        """Start the average from the current model, and compile its layers if requested."""
        mean = get_ema_multi_avg_fn(self.recipe.average)
        self.average = AveragedModel(self.model, multi_avg_fn=mean)
        if self.compiled:
            torch._dynamo.config.recompile_limit = 256
            for part in (self.model.get_decoder(), self.model.model.vision_tower.encoder):
                for layer in part.layers:
                    layer.compile(dynamic=True)


@dataclass(frozen=True)
class Run:
    """One call of `main`. phase: a trainer that knows where checkpoints are and what they depend
    on.
    """

    phase: Callable[..., Trainer]
    workers: int
    save_every_s: float

    def train(self, loop: Trainer, data: Any, loss: Callable[[Any], Any], **more: Any) -> None:
        """Go through a data set from the phase's current step."""
        more["save_every_s"] = self.save_every_s
        loop.train(lambda step: stream(data, step, self.workers), loss, **more)


def train_tower(target: Target, run: Run) -> None:
    """Run phase 1: visual tokens point at the embeddings of the words for what they show."""
    recipe, model = target.recipe, target.model
    parts, opts = {"model": model, "pointers": target.pointers}, target.tower_optimizers()
    loop = run.phase("tower", parts=parts, opts=opts, steps=recipe.tower_steps, decay=0.5)
    loop.resume()
    table = model.get_input_embeddings().weight
    last: list[Tensor] = []

    def loss(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, float]]:
        pixels, patches = (part.to(table.device) for part in batch)
        last[:] = [pixels]
        return target.pointers.align(see(model, pixels), patches, table)

    run.train(loop, VisionOnly(recipe.seed, recipe.tower_steps, 32), loss)
    if last:
        rescale(model, last[0])
        loop.save()


def train_language(target: Target, tokenizer: PreTrainedTokenizerFast, run: Run) -> None:
    """Run phase 2: next-token loss on answers; at `split_at`, if below 1, the model doubles its
    depth.
    """
    r = target.recipe

    def phase(opts: list[torch.optim.Optimizer]) -> Trainer:
        parts = {"model": target.model, "pointers": target.pointers, "average": target.average}
        return run.phase("language", parts=parts, opts=opts, steps=r.steps, decay=r.decay)

    def average() -> None:
        if loop.step > 0.5 * r.steps:
            target.average.update_parameters(target.model)

    loop = phase(target.language_optimizers())
    saved = loop.checkpoint()
    split_at = round(r.split_at * r.steps)
    if saved is not None and saved["step"] > split_at:
        loop = phase(target.split(loop.opts))
    if saved is not None:
        loop.load(saved)
    data = Conversations(tokenizer, r.seed, r.steps, r.batch, r.crowded, r.begin)
    if loop.step <= split_at < r.steps:
        run.train(loop, data, target.loss, after=average, stop_at=split_at)
        step, loop = loop.step, phase(target.split(loop.opts))
        loop.step = step
    run.train(loop, data, target.loss, after=average)


def train_renderings(
    model: LlavaForConditionalGeneration, words: Pointers, recipe: Recipe, run: Run
) -> None:
    """Run phase 3: word alignment of varied renderings.

    Visual tokens stay close to the previous tower's output for the same scenes cleanly drawn,
    wherever that is right.
    """
    before = copy.deepcopy(model).requires_grad_(False)
    model.requires_grad_(False)
    seeing = nn.ModuleList([model.model.vision_tower, model.model.multi_modal_projector])
    opts = trainer.optimizers([(seeing.requires_grad_(True), 1.0)], recipe.lr / 2, 2 * recipe.lr)
    parts, steps = {"seeing": seeing}, recipe.rendering_steps
    loop = run.phase("renderings", parts=parts, opts=opts, steps=steps, decay=0.9)
    loop.resume()
    table = model.get_input_embeddings().weight

    def loss(batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, dict[str, float]]:
        varied, clean, patches = (part.to(table.device) for part in batch)
        with torch.no_grad():
            wanted = see(before, clean)
            sure = words.right(wanted, patches, table)
        seen = see(model, varied)
        align, named = words.align(seen, patches, table)
        away = (seen - wanted).pow(2).mean(-1) / wanted.pow(2).mean()
        keep = away[sure].mean() if sure.any() else align.new_zeros(())
        return align + recipe.keep_weight * keep, {"kind": named["kind"], "away": keep.item()}

    run.train(loop, Renderings(recipe.seed, recipe.rendering_steps, 2 * recipe.batch), loss)


def main(
    folder: Path,
    out: Path,
    recipe: Recipe,
    fresh: bool = False,
    workers: int = 1,
    compiled: bool = True,
    save_every_s: float = 300.0,
    start: Path | None = None,
) -> None:
    """Train (or continue training) the pocket target; checkpoints in `folder`, the finished model
    in `out`.

    Args:
        fresh: Do not continue from a checkpoint.
        start: Folder of a finished model of `recipe.layers` layers to start from, instead of random
            weights and the first phase.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    path = folder / "tokenizer"
    known = path if path.exists() else start
    read = PreTrainedTokenizerFast.from_pretrained
    tokenizer = read(known) if known else pocket.train_tokenizer()
    tokenizer.save_pretrained(path)
    target = Target(recipe, tokenizer, device, compiled)
    identity = asdict(recipe) | ({"start": fingerprints.of_folder(start)} if start else {})
    phase = partial(Trainer, folder=folder, identity=identity, fresh=fresh)
    run = Run(phase, workers, save_every_s)
    if start:
        trained = LlavaForConditionalGeneration.from_pretrained(start, dtype=torch.float32)
        target.model.load_state_dict(trained.state_dict())
    elif recipe.tower_steps:
        train_tower(target, run)
    if recipe.steps:
        train_language(target, tokenizer, run)
    model = target.average.module if recipe.steps else target.model
    if recipe.rendering_steps:
        train_renderings(model, target.pointers, recipe, run)
    pocket.save(model, pocket.make_processor(tokenizer), out)
