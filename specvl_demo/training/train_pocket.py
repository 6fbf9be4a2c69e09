"""The recipe of the pocket target: the vision tower learns words, the language model learns to look them up.

1. tower: projected visual tokens align with word embeddings (crowded scenes, no language model).
2. language: next-token loss on answers, visual words weighted, with pointer supervision of the middle layer.
   At the share `split_at` of the steps every block is split into two that add half of what it added, so that
   the deep model starts where the shallow one stood and every one of its blocks carries weight.

One run has one schedule; the optimizer's state is saved, so a stopped run goes on where it was. Runs on a
CPU or one GPU.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm
from transformers import LlavaForConditionalGeneration, PreTrainedTokenizerFast

from specvl_demo.training import optim, pocket
from specvl_demo.training.batches import Batch, Conversations, Glances, stream
from specvl_demo.training.supervise import Pointers


@dataclass
class Recipe:
    """What a run depends on; `steps` may be changed when resuming, the rest may not."""

    seed: int = 1
    layers: int = 8
    split_at: float = 0.65
    begin: float = 0.0
    tower_steps: int = 3500
    steps: int = 4000
    batch: int = 24
    lr: float = 2e-3
    muon_lr: float = 6e-3
    tower_factor: float = 0.15
    glances: int = 12
    decay: float = 0.55
    visual_weight: float = 2.0
    align_weight: float = 0.3
    point_weight: float = 0.5
    average: float = 0.995


class Run:
    """Model, heads, optimizers and the step reached: everything a checkpoint holds."""

    def __init__(
        self, recipe: Recipe, tokenizer: PreTrainedTokenizerFast, device: torch.device, compiled: bool
    ) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.tokenizer, self.device, self.compiled = recipe, tokenizer, device, compiled
        self.model = pocket.make_model(len(tokenizer), recipe.layers).to(device)
        self.pointers = Pointers(tokenizer, self.model.config.text_config.hidden_size).to(device)
        self.average: dict[str, Tensor] | None = None
        self.tower_step = self.step = 0
        self._prepare()

    def _prepare(self) -> None:
        """Build the optimizers, and compile the layers where asked."""
        r, m = self.recipe, self.model
        vision = [(m.model.vision_tower, r.tower_factor), (m.model.multi_modal_projector, r.tower_factor)]
        self.opts = optim.optimizers([*vision, (self.pointers, 1.0), (m, 1.0)], r.lr, r.muon_lr)
        self.tower_opts = optim.optimizers(
            [
                (m.model.vision_tower, 1.0),
                (m.model.multi_modal_projector, 1.0),
                (m.get_input_embeddings(), 1.0),
            ],
            r.lr,
            2 * r.lr,
        )
        if self.compiled:
            torch._dynamo.config.recompile_limit = 256
            for layer in [*m.get_decoder().layers, *m.model.vision_tower.encoder.layers]:
                layer.compile(dynamic=True)

    @property
    def n_layers(self) -> int:
        return len(self.model.get_decoder().layers)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Projected visual tokens [P, N, D]; states of an early and a middle layer, last hidden states
        [B, L, D]."""
        decoder, embed = self.model.get_decoder(), self.model.get_input_embeddings()
        visual = see(self.model, batch.pixels)
        x = embed(batch.ids)
        x = x.masked_scatter((batch.ids == pocket.IMAGE).unsqueeze(-1), visual.reshape(-1, x.shape[-1]))
        positions = torch.arange(x.shape[1], device=x.device)[None]
        rotary, early, middle = decoder.rotary_emb(x, positions), x, x
        for i, layer in enumerate(decoder.layers):
            x = layer(x, attention_mask=None, position_ids=positions, position_embeddings=rotary)
            if i + 1 == self.n_layers // 4:
                early = x
            if i + 1 == self.n_layers // 2:
                middle = x
        return visual, early, middle, decoder.norm(x)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """All losses of the language phase, and what to print."""
        r, table = self.recipe, self.model.get_input_embeddings().weight
        visual, early, middle, last = self.forward(batch)
        target = batch.labels[:, 1:]
        asked = target != -100
        seen = batch.visual[:, 1:][asked]
        logits = self.model.lm_head(last[:, :-1][asked])
        ce = F.cross_entropy(logits, target[asked], reduction="none")
        weight = 1 + (r.visual_weight - 1) * seen.float()
        glances = see(self.model, batch.glances)
        align, named = self.pointers.align(
            torch.cat([visual, glances]), torch.cat([batch.patches, batch.glance_patches]), table
        )
        point, read = self.pointers.point(middle, batch, table)
        shown = batch.ids == pocket.IMAGE
        change, changed = self.pointers.changed(middle[shown].view(*visual.shape), batch)
        which, numbered = self.pointers.numbered(early[shown].view(*visual.shape), batch)
        total = (
            (ce * weight).sum() / weight.sum()
            + r.align_weight * align
            + r.point_weight * (point + change + which)
        )
        right = (logits.argmax(-1) == target[asked])[seen].float().mean().item()
        return total, {"nll": ce.mean().item(), "visual": right, "tower": named["kind"]} | {
            "@" + k: v for k, v in (read | changed | numbered).items()
        }

    def update(self, loss: Tensor, opts: list[torch.optim.Optimizer], factor: float) -> None:
        optim.set_lr(opts, factor)
        for opt in opts:
            opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for opt in opts:
            opt.step()

    @torch.no_grad()
    def fold_average(self) -> None:
        """Keep a running average of the weights: what is shipped."""
        state = self.model.state_dict()
        if self.average is None:
            self.average = {k: v.clone() for k, v in state.items()}
        decay = self.recipe.average
        for k, v in state.items():
            self.average[k].lerp_(v, 1 - decay) if v.is_floating_point() else self.average[k].copy_(v)

    def save(self, folder: Path) -> None:
        """Write the checkpoint atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        data = {
            "recipe": asdict(self.recipe),
            "n_layers": self.n_layers,
            "tower_step": self.tower_step,
            "step": self.step,
            "model": self.model.state_dict(),
            "pointers": self.pointers.state_dict(),
            "average": self.average,
            "opts": [o.state_dict() for o in self.opts],
            "tower_opts": [o.state_dict() for o in self.tower_opts],
        }
        torch.save(data, folder / "state.tmp")
        (folder / "state.tmp").rename(folder / "state.pt")

    def split(self) -> None:
        """Turn every block of the language model into two; both inherit its optimizer state."""
        old = {p: opt.state.get(p, {}) for opt in self.opts for g in opt.param_groups for p in g["params"]}
        twins = pocket.split_layers(self.model)
        self.average = None
        self._prepare()
        for opt in self.opts:
            for p in (p for g in opt.param_groups for p in g["params"]):
                opt.state[p] = {k: v.clone() for k, v in old[twins.get(p, p)].items()}

    def load(self, folder: Path) -> None:
        """Go on from a checkpoint."""
        data = torch.load(folder / "state.pt", map_location=self.device, weights_only=True)
        if data["n_layers"] > self.n_layers:
            self.split()
        self.model.load_state_dict(data["model"])
        self.pointers.load_state_dict(data["pointers"])
        self.average, self.step, self.tower_step = data["average"], data["step"], data["tower_step"]
        for opt, state in zip(
            [*self.opts, *self.tower_opts], [*data["opts"], *data["tower_opts"]], strict=True
        ):
            opt.load_state_dict(state)


def see(model: LlavaForConditionalGeneration, pixels: Tensor) -> Tensor:
    """Projected visual tokens [P, N, D] of pictures [P, 3, 96, 96]."""
    out = model.model.get_image_features(pixel_values=pixels).pooler_output
    return torch.stack(list(out))


@torch.no_grad()
def rescale(model: LlavaForConditionalGeneration, pixels: Tensor) -> None:
    """Alignment fixes directions, not lengths: give word rows and visual tokens the lengths a language model
    starts well from.
    """
    table = model.get_input_embeddings().weight
    table.mul_(0.02 * table.shape[1] ** 0.5 / table.norm(dim=1, keepdim=True).clamp_min(1e-3))
    factor = 0.04 / see(model, pixels).pow(2).mean().sqrt()
    last = model.model.multi_modal_projector.linear_2
    last.weight.mul_(factor)
    last.bias.mul_(factor)


def train_tower(run: Run, workers: int, log: Path) -> None:
    """Phase 1."""
    total = run.recipe.tower_steps
    bar = tqdm(total=total, initial=run.tower_step, desc="tower", mininterval=5)
    table = run.model.get_input_embeddings().weight
    for pixels, patches in stream(Glances(run.recipe.seed, total, 32), run.tower_step, workers):
        loss, seen = run.pointers.align(see(run.model, pixels.to(run.device)), patches.to(run.device), table)
        run.update(loss, run.tower_opts, optim.warm_then_linear(run.tower_step / total, 0.5))
        run.tower_step += 1
        bar.update()
        if run.tower_step % 50 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}")
            _log(log, {"tower_step": run.tower_step, "loss": loss.item()} | seen)
        if run.tower_step == total:
            rescale(run.model, pixels.to(run.device))


def train_language(run: Run, workers: int, folder: Path, save_every_s: float) -> None:
    """Phase 2."""
    r = run.recipe
    bar = tqdm(total=r.steps, initial=run.step, desc="language", mininterval=5)
    recent: list[dict[str, float]] = []
    saved, began, tokens = time.monotonic(), time.monotonic(), 0
    data = Conversations(run.tokenizer, r.seed, r.steps, r.batch, r.glances, r.begin)
    for batch in stream(data, run.step, workers):
        progress = run.step / r.steps
        if progress >= r.split_at and run.n_layers == r.layers:
            run.split()
        loss, seen = run.loss(batch.to(run.device))
        run.update(loss, run.opts, optim.warm_then_linear(progress, r.decay))
        run.step += 1
        if progress > 0.5:
            run.fold_average()
        recent.append(seen)
        tokens += batch.ids.numel()
        bar.update()
        if run.step % 25 == 0:
            mean = _means(recent)
            recent = []
            rate = tokens / (time.monotonic() - began)
            bar.set_postfix(
                nll=f"{mean['nll']:.3f}", visual=f"{mean['visual']:.3f}", rate=f"{rate:.0f} tok/s"
            )
            _log(
                folder / "log.jsonl", {"step": run.step, "layers": run.n_layers, "tok_s": round(rate)} | mean
            )
        if time.monotonic() - saved > save_every_s:
            run.save(folder)
            saved = time.monotonic()


def _means(rows: list[dict[str, float]]) -> dict[str, float]:
    keys = {k for row in rows for k in row}
    out = {}
    for k in sorted(keys):
        values = [row[k] for row in rows if k in row and row[k] == row[k]]
        if values:
            out[k] = round(sum(values) / len(values), 4)
    return out


def _log(path: Path, row: dict) -> None:
    with path.open("a") as f:
        f.write(json.dumps(row) + "\n")


def main(
    folder: Path,
    out: Path,
    recipe: Recipe | None = None,
    resume: bool = True,
    workers: int = 1,
    compiled: bool = True,
    save_every_s: float = 300.0,
    start: Path | None = None,
) -> None:
    """Train (or go on training) the pocket target; checkpoints in `folder`, the finished model in `out`.

    `start` is the folder of a finished model of `recipe.layers` layers to begin with, instead of at random.
    """
    folder.mkdir(parents=True, exist_ok=True)
    recipe = recipe or Recipe()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    path = folder / "tokenizer"
    known = path if path.exists() else start
    tokenizer = PreTrainedTokenizerFast.from_pretrained(known) if known else pocket.train_tokenizer()
    tokenizer.save_pretrained(path)
    run = Run(recipe, tokenizer, device, compiled)
    if resume and (folder / "state.pt").exists():
        run.load(folder)
    elif start:
        trained = LlavaForConditionalGeneration.from_pretrained(start, dtype=torch.float32)
        run.model.load_state_dict(trained.state_dict())
        run.tower_step = recipe.tower_steps
    if run.tower_step < recipe.tower_steps:
        train_tower(run, workers, folder / "log.jsonl")
        run.save(folder)
    train_language(run, workers, folder, save_every_s)
    run.save(folder)
    export(folder, out)


def export(folder: Path, out: Path) -> None:
    """Write the averaged weights of a checkpoint as a folder that `transformers` loads."""
    data = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer")
    model = pocket.make_model(len(tokenizer), data["n_layers"])
    model.load_state_dict(data["average"] or data["model"])
    pocket.save(model, pocket.make_processor(tokenizer), out)
