"""The recipe of the photo target: a pretrained language model learns to read a vision tower.

1. warm: without the language model, the projected cells point at the word embeddings of the words
in a photograph's captions, so that the frozen model starts with inputs similar to words.

2. language: next-token loss through the frozen language model into its low-rank updates, the
projector and the tower's upper half, on a mixture of tasks (`photo_tasks`); plain chat is preserved
by distillation from the base, the classification by distillation from the published tower.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from recipes.photo_data import VIEWS, Photo, Place, pixels_of
from recipes.photo_model import FULL, Decoder, Row, pack
from specvl_demo.vlm.efficientnet_lite import EfficientNetLiteModel
from specvl_demo.vlm.photo_assembly import IMAGE


@dataclass
class Recipe:
    """What a run depends on; numbers of steps may be changed when resuming, the rest may not.

    batch: Rows of a step, over all processes. lr: Of projector and low-rank updates. hold, distil:
    Weights of the two distillations. imitate_steps: Of a tower that learns another's cells. common:
    The fewest photographs with a word that the warm phase learns. nexts: Answers to
    what may happen next that the base writes first. reward: Share of the visits whose captions are
    sampled and rewarded.
    """

    seed: int = 1
    rank: int = 16
    warm_steps: int = 200
    warm_batch: int = 48
    imitate_steps: int = 400
    steps: int = 4000
    batch: int = 12
    lr: float = 1e-3
    tower_lr: float = 1e-4
    decay: float = 0.6
    hold: float = 1.0
    distil: float = 30.0
    common: int = 12
    nexts: int = 700
    reward: float = 0.0


# How much a token of each kind of answer counts.
WEIGHTS = {"question": 3.0, "thing": 2.0, "own": 0.2, "wrong": 6.0}
SAID = 0.25
"""Weight of the next-token loss of plain chat relative to the divergence from the base."""


class Learner:
    """Tower and decoder with their trained parts, and the losses of both phases."""

    def __init__(
        self,
        recipe: Recipe,
        base: LlamaForCausalLM,
        tower: EfficientNetLiteModel,
        tokenizer: PreTrainedTokenizerBase,
        paths: Mapping[str, Sequence[Path]],
        device: torch.device,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.paths, self.device, self.dtype = recipe, paths, device, dtype
        self.decoder = Decoder(base.to(device), recipe.rank, dtype).to(device)
        self.tower = tower.float().to(device).to(memory_format=torch.channels_last)
        half = dtype == torch.bfloat16
        self.precision = torch.autocast(device.type, torch.bfloat16, enabled=half)
        self.image = tokenizer.convert_tokens_to_ids(IMAGE)
        self.published = {k: v.clone() for k, v in tower.upper.state_dict().items()}
        for p in self.tower.parameters():
            p.requires_grad_(False)
        for p in (*tower.upper.parameters(), *self._projector()):
            p.requires_grad_(True)
        with torch.no_grad():
            # A cell starts with about the length of a word.
            tower.linear_2.weight.mul_(5 * self.decoder.embedding.float().std())

    def _projector(self) -> list[nn.Parameter]:
        t = self.tower
        return [t.position, *t.linear_1.parameters(), *t.linear_2.parameters()]

    def optimizer(self) -> torch.optim.Optimizer:
        """Return AdamW over all trained parameters; the tower has its own rate."""
        groups: list[dict[str, Any]] = [
            {"params": list(self.tower.upper.parameters()), "lr": self.recipe.tower_lr},
            {"params": self._projector()},
            {"params": list(self.decoder.lora.parameters()), "weight_decay": 0.01},
        ]
        return torch.optim.AdamW(groups, lr=self.recipe.lr, betas=(0.9, 0.98), weight_decay=0.0)

    def halfway(
        self, tower: EfficientNetLiteModel, places: Iterable[Place]
    ) -> tuple[Tensor, Tensor]:
        """Return the output of a tower's frozen lower half for pictures: maps, and colours."""
        pixels = pixels_of(self.paths, places, tower.config.image_size)
        pixels = pixels.to(self.device, memory_format=torch.channels_last)
        with torch.no_grad(), self.precision:
            return tower.lower(pixels), tower.colours(pixels)

    def look(self, places: Iterable[Place]) -> tuple[Tensor, Tensor]:
        """Return visual rows [P, rows, D] of pictures, and how far the classes have moved."""
        fine, colours = self.halfway(self.tower, places)
        with self.precision:
            top = self.tower.upper(fine)
            cells = self.tower.cells(top, fine, colours)
            rows = torch.cat([cells, self.tower.word_rows(top).to(cells.dtype)], 1)
            with torch.no_grad():
                before = torch.func.functional_call(self.tower.upper, self.published, (fine,))
                before_log = self.tower.classify(before.float()).float().log_softmax(-1)
        now = self.tower.classify(top.float()).log_softmax(-1)
        return rows, F.kl_div(now, before_log, reduction="batchmean", log_target=True)

    def embed(self, ids: Tensor, rows: Tensor | None) -> Tensor:
        """Return token embeddings [N, D], with the visual rows at image tokens."""
        x = F.embedding(ids, self.decoder.embedding)
        if rows is None:
            return x
        shown = (ids == self.image).nonzero()[:, 0]
        return x.index_copy(0, shown, rows.reshape(-1, x.shape[-1]).to(x.dtype))

    def loss(self, rows: Sequence[Row], short: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of one step's rows, and the mean loss of each kind of answer.

        short: The tokens that short answers consist of; their softmax is over those only.
        """
        visual, moved = self.look([place for row in rows for place in row.pictures])
        packed = pack(rows, self.dtype, self.device)
        hidden = self.decoder(self.embed(packed.ids, visual), packed)[packed.sources]

        def among(*kinds: str) -> Tensor:
            return torch.tensor([kind in kinds for kind in packed.kinds], device=self.device)

        plain, sampled, full = among("plain"), among("sampled"), among(*FULL)
        place = torch.full((len(self.decoder.embedding),), -100, device=self.device)
        place[short] = torch.arange(len(short), device=self.device)
        losses = hidden.new_zeros(len(hidden), dtype=torch.float32)
        for chosen, tokens in ((full & ~plain, None), (~full, short)):
            if chosen.any():
                target = packed.targets[chosen] if tokens is None else place[packed.targets[chosen]]
                logits = self.decoder.logits(hidden[chosen], tokens)
                found = F.cross_entropy(logits, target, reduction="none")
                losses = losses.masked_scatter(chosen, found)
        if plain.any():
            losses = losses.masked_scatter(plain, self.plain_loss(rows, hidden[plain]))
        # What is wrong in its own answers is unlearned: -log(1 - p) (arXiv 1908.04319, eq. 5).
        unlikely = -torch.log(-torch.expm1(-losses.clamp(min=1e-3)))
        losses = torch.where(among("wrong"), unlikely, losses)
        counts = torch.tensor([WEIGHTS.get(k, 1.0) for k in packed.kinds], device=self.device)
        by_kind: dict[str, list[float]] = defaultdict(list)
        for kind, value in zip(packed.kinds, losses.tolist(), strict=True):
            by_kind[kind].append(value)
        seen = {kind: sum(values) / len(values) for kind, values in sorted(by_kind.items())}
        # Rewarded captions and plain chat have separate means: in one mean, the weights and lengths
        # of some kinds would leave next to nothing of the others.
        weighed = losses * packed.weights * counts
        total = self.recipe.hold * moved
        for part, weight in ((~sampled & ~plain, 1.0), (sampled, 1.0), (plain, self.recipe.distil)):
            if part.any():
                total = total + weight * weighed[part].sum() / counts[part].sum()
        rewards = [r.reward for r in rows]
        seen["reward"] = float(np.nanmean(rewards)) if any(r.sampled for r in rows) else math.nan
        return total, seen | {"moved": moved.item()}

    def plain_loss(self, rows: Sequence[Row], hidden: Tensor) -> Tensor:
        """Return the KL divergence [M] of the trained model from the base on the taught tokens of
        plain rows, with a share `SAID` of their next-token loss.
        """
        packed = pack([r for r in rows if not r.pictures], self.dtype, self.device)
        self.decoder.adapted = False
        with torch.no_grad():
            logits = self.decoder(self.embed(packed.ids, None), packed)[packed.sources]
            logits = self.decoder.logits(logits).log_softmax(-1)
        self.decoder.adapted = True
        now = self.decoder.logits(hidden).log_softmax(-1)
        apart = F.kl_div(now, logits, reduction="none", log_target=True).sum(-1)
        return apart + SAID * F.nll_loss(now, packed.targets, reduction="none")


class Words(nn.Module):
    """The warm phase's task: predict which of the common caption words a photograph has, from its
    cells: its best cells must point at the word's embedding. Scale and biases are trained.
    """

    def __init__(
        self, learner: Learner, photos: Sequence[Photo], tokenizer: PreTrainedTokenizerBase
    ) -> None:
        super().__init__()
        self.learner = learner
        texts = [{w for c in p.captions for w in re.findall("[a-z]+", c.lower())} for p in photos]
        every = set().union(*texts)
        first = {w: tokenizer(" " + w, add_special_tokens=False).input_ids[0] for w in every}
        self.words_of = [{first[w] for w in words} for words in texts]
        counts = Counter(t for tokens in self.words_of for t in tokens)
        # Words of most captions carry no information.
        least, most = learner.recipe.common, 0.6 * len(photos)
        common = [t for t in sorted(counts) if least <= counts[t] <= most] or sorted(counts)
        self.column = {t: i for i, t in enumerate(common)}
        table = learner.decoder.embedding[torch.tensor(common)].float()
        self.length, self.table = table.norm(dim=1).mean(), F.normalize(table, dim=1)
        self.bias = nn.Parameter(torch.full((len(common),), -4.0, device=learner.device))
        self.scale = nn.Parameter(torch.tensor(4.0, device=learner.device))

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.0)

    def batch(self, step: int) -> list[Place]:
        """Return the photographs of a step."""
        recipe = self.learner.recipe
        rng = random.Random(f"{recipe.seed}/warm/{step}")
        chosen = rng.sample(range(len(self.words_of)), min(recipe.warm_batch, len(self.words_of)))
        return [("train", i, rng.choice(VIEWS["train"])) for i in chosen]

    def loss(self, places: list[Place]) -> tuple[Tensor, dict[str, float]]:
        """Return binary cross-entropy over the words; cells are kept near a word's length."""
        there = torch.zeros(len(places), len(self.column), device=self.learner.device)
        for row, (_, i, _) in enumerate(places):
            there[row, [self.column[t] for t in self.words_of[i] if t in self.column]] = 1
        visual, moved = self.learner.look(places)
        cells = visual[:, : self.learner.tower.config.grid**2].float() / self.length
        likely = (cells @ self.table.T) * self.scale * 2
        logits = torch.logsumexp(likely, 1) - math.log(cells.shape[1]) + self.bias
        named = F.binary_cross_entropy_with_logits(logits, there, reduction="sum") / len(places)
        long = (cells.norm(dim=-1) - 1).pow(2).mean()
        best = logits.topk(min(8, len(self.column)), 1).indices
        seen = {"words": named.item(), "right_of_8": there.gather(1, best).mean().item()}
        return named + 5 * long + self.learner.recipe.hold * moved, seen | {"moved": moved.item()}


class Cells:
    """The task of a tower that replaces another, `old`: to output the cells that the language model
    knows, interpolated to its finer or coarser grid.
    """

    def __init__(self, learner: Learner, old: EfficientNetLiteModel) -> None:
        self.learner = learner
        self.old = old.eval().to(learner.device).to(memory_format=torch.channels_last)

    def batch(self, step: int) -> list[Place]:
        """Return the pictures of a step, of all sets."""
        recipe = self.learner.recipe
        counts = {name: len(some) for name, some in self.learner.paths.items()}
        rng = random.Random(f"{recipe.seed}/imitate/{step}")
        chosen = rng.choices(list(counts), list(counts.values()), k=recipe.warm_batch)
        return [(name, rng.randrange(counts[name]), rng.choice(VIEWS[name])) for name in chosen]

    def loss(self, places: list[Place]) -> tuple[Tensor, dict[str, float]]:
        """Return the squared distance in the old cells' variance, and one minus the cosine."""
        visual, moved = self.learner.look(places)
        cells = visual[:, : self.learner.tower.config.grid**2].float()
        with torch.no_grad():
            fine, colours = self.learner.halfway(self.old, places)
            old = self.old.cells(self.old.upper(fine.float()), fine.float(), colours)
            square = old.transpose(1, 2).unflatten(2, (self.old.config.grid,) * 2)
            size = (self.learner.tower.config.grid,) * 2
            old = F.interpolate(square, size, mode="bilinear").flatten(2).transpose(1, 2)
            mean = old.mean((0, 1))
        far = (cells - old).pow(2).mean() / (old - mean).pow(2).mean()
        apart = 1 - F.cosine_similarity(cells - mean, old - mean, dim=-1).mean()
        seen = {"far": far.item(), "apart": apart.item(), "moved": moved.item()}
        return far + apart + self.learner.recipe.hold * moved, seen
