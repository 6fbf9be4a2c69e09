"""What the recipes of EAGLE-2, HiViS and DREAM learn from: batches of rows, steps of self-feeding, losses.

Given conversations out of a feature store and the target's embeddings and head, gives one loss and what to
print. Row r is a token; it predicts the feature of that token and the next token. Knows no files and no loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specvl_demo.drafters.blocks import Geometry
from specvl_demo.drafters.dream import compressed
from specvl_demo.training.features import Needs, Rows, text_only
from specvl_demo.training.heads import DreamHead, FeatureHead

Method = Literal["eagle2", "hivis", "dream"]

NEEDS: dict[Method, Needs] = {
    "eagle2": Needs(visual=True, middle=False),
    "hivis": Needs(visual=False, middle=False),
    "dream": Needs(visual=True, middle=True),
}


@dataclass(frozen=True)
class Recipe:
    """What a run depends on.

    steps: of the optimizer; batch: conversations in each, over all processes. stage1: share of the steps
    before the head feeds itself; self_feeding: N, forwards a step after that, 1 for none. reg, cls, top,
    middle: weights of the losses on features (smooth L1), distributions (KL), the target's `top_k` likeliest
    tokens, and DREAM's intermediate layer. survive: K, a row stays while the target's token is among the
    head's K likeliest; 0: all stay. noise: amplitude of uniform noise on features, in their own size.
    step_rows: HiViS's step embeddings. keep: share of visual tokens among DREAM's queries; gate: where its
    gates start; cross: False learns without the cross-attention. ffn: width of the MLPs, 0 for the target's.
    """

    method: Method
    steps: int = 1000
    batch: int = 32
    seed: int = 1
    lr: float = 2e-3
    muon_lr: float = 5e-3
    decay: float = 0.7
    stage1: float = 0.4
    self_feeding: int = 4
    reg: float = 1.0
    cls: float = 0.1
    top: float = 0.0
    top_k: int = 10
    middle: float = 0.0
    survive: int = 0
    noise: float = 0.0
    step_rows: int = 4
    keep: float = 0.75
    gate: float = 0.5
    cross: bool = True
    ffn: int = 0

    def passes(self, step: int) -> int:
        """Forwards that feed on one another at this optimizer step."""
        return 1 if step < self.stage1 * self.steps else self.self_feeding


RECIPES: dict[Method, Recipe] = {
    # arXiv 2406.16858 / 2401.15077: features and tokens, noise in place of self-feeding.
    "eagle2": Recipe("eagle2", self_feeding=1, reg=1.0, cls=0.1, noise=0.2),
    # arXiv 2509.23928 §3.2: two stages, N = 4, K = 5; top-K distillation as in HASS.
    "hivis": Recipe("hivis", self_feeding=4, reg=1.0, cls=0.1, top=1.0, survive=5),
    # arXiv 2505.19201 §3.2.1.
    # choice: it also feeds itself, as one of the published training scripts does.
    "dream": Recipe("dream", self_feeding=3, reg=0.2, cls=1.0, middle=0.2),
}


@dataclass
class Batch:
    """inputs: what the head's forward takes before the number of steps. truth [B, N, D]: the feature each row
    predicts. asked [B, N]: rows whose next token is part of an answer. token [B, N]: that token. middle: what
    the first block is to resemble, or None. first: no row before it is asked."""

    inputs: tuple[Tensor, ...]
    truth: Tensor
    asked: Tensor
    token: Tensor
    middle: Tensor | None
    first: int


@dataclass(frozen=True)
class Sizes:
    """Root mean squares of what a target gives: words' embeddings, projected visual tokens, features, the
    intermediate layer. 1 where a store holds none."""

    words: float
    visual: float
    features: float
    middle: float

    @property
    def visual_scale(self) -> float:
        """What brings visual tokens to the size of words (see `drafters.features.prompt_embeds`)."""
        return self.words / self.visual


class Learner(ABC):
    """A head that learns, with the target's embeddings and output head, which do not.

    embed: ids -> embeddings. say: features -> logits.
    """

    module: nn.Module

    def __init__(
        self,
        recipe: Recipe,
        sizes: Sizes,
        embed: Callable[[Tensor], Tensor],
        say: Callable[[Tensor], Tensor],
        device: torch.device,
    ) -> None:
        self.recipe, self.sizes = recipe, sizes
        self.embed, self.say, self.device = embed, say, device

    @abstractmethod
    def batch(self, rows: Sequence[Rows], noise: torch.Generator | None = None) -> Batch:
        """Conversations, padded on the right. noise: where features are to be blurred."""

    def loss(
        self, batch: Batch, passes: int, forward: Callable[..., list[tuple[Tensor, Tensor | None]]]
    ) -> tuple[Tensor, dict[str, float]]:
        """The weighted sum of all losses, mean over passes, and numbers to print.

        forward: the module, or its distributed wrapper.
        """
        r = self.recipe
        said = forward(*batch.inputs, passes, batch.first)
        truth = batch.truth[batch.asked]
        with torch.no_grad():
            p = self.say(truth).float().softmax(-1)
        number = torch.zeros(batch.asked.shape, dtype=torch.int64, device=self.device)
        number[batch.asked] = torch.arange(len(truth), device=self.device)
        alive, total, seen = batch.asked, truth.new_zeros(()), {}
        for step, (out, early) in enumerate(said):
            first = batch.first if step else 0
            live = alive[:, first:]
            if not bool(live.any()):
                break
            rows, features = number[:, first:][live], out[live].float()
            q = self.say(features).float().log_softmax(-1)
            reg = F.smooth_l1_loss(features, truth[rows])
            kl = F.kl_div(q, p[rows], reduction="batchmean")
            total = total + r.reg * reg + r.cls * kl
            if r.top:
                best = p[rows].topk(min(r.top_k, p.shape[-1]))
                total = total - r.top * (best.values * q.gather(-1, best.indices)).sum(-1).mean()
            if r.middle and early is not None and batch.middle is not None and not step:
                # choice: in its own size, which may be far above that of features.
                middle = F.smooth_l1_loss(
                    early[live].float() / self.sizes.middle, batch.middle[live] / self.sizes.middle
                )
                total = total + r.middle * middle * len(said)
                seen["middle"] = middle.item()
            target = p[rows].argmax(-1)
            seen[f"agree{step + 1}"] = (q.argmax(-1) == target).float().mean().item()
            if not step:
                seen |= {"reg": reg.item(), "kl": kl.item()}
            alive = self._survivors(alive, live, q, target, first) & batch.asked
        return total / len(said), {"loss": total.item() / len(said), **seen}

    @torch.no_grad()
    def right(self, batch: Batch, length: int) -> tuple[list[Tensor], Tensor]:
        """For `acceptance.measure`: which rows guess their next token, by step, and which are asked."""
        steps = []
        for step, (out, _) in enumerate(self.module(*batch.inputs, length, batch.first)):
            first = batch.first if step else 0
            hit = self.say(out[:, batch.first - first :]).argmax(-1) == batch.token[:, batch.first :]
            steps.append(F.pad(hit, (batch.first, 0)))
        return steps, batch.asked

    def _survivors(self, alive: Tensor, live: Tensor, q: Tensor, target: Tensor, first: int) -> Tensor:
        """Rows of the next step: those whose predecessor lives and, with a filter, was not hopeless (HiViS
        eq. 7)."""
        stays = torch.zeros_like(alive)
        on = torch.ones_like(target, dtype=torch.bool)
        if self.recipe.survive:
            on = (q.topk(min(self.recipe.survive, q.shape[-1])).indices == target[:, None]).any(-1)
        stays[:, first:][live] = on
        return F.pad(stays, (1, 0))[:, :-1]

    def _embeds(self, rows: Rows) -> Tensor:
        """Embeddings of all tokens [n, D]: the table's, or the projected visual tokens."""
        embeds = self.embed(rows.ids.long().to(self.device)).float()
        if len(rows.embeds):
            embeds[rows.visual.to(self.device)] = rows.embeds.to(self.device) * self.sizes.visual_scale
        return embeds


class FeatureLearner(Learner):
    """EAGLE-2 and HiViS. Row r is token r + 1 with the feature of token r."""

    def __init__(
        self,
        recipe: Recipe,
        geometry: Geometry,
        ffn: int,
        sizes: Sizes,
        embed: Callable[[Tensor], Tensor],
        say: Callable[[Tensor], Tensor],
        device: torch.device,
    ) -> None:
        super().__init__(recipe, sizes, embed, say, device)
        steps = recipe.step_rows if recipe.method == "hivis" else 0
        scales = (1 / sizes.words, 1 / sizes.features)
        self.module = FeatureHead(geometry, ffn, steps, scales).to(device)

    def batch(self, rows: Sequence[Rows], noise: torch.Generator | None = None) -> Batch:
        """Visual rows are dropped before tokens and features are paired (HiViS)."""
        if self.recipe.method == "hivis":
            rows = [text_only(r) for r in rows]
        n = max(len(r.ids) for r in rows) - 1
        embeds = torch.stack([_padded(self._embeds(r)[1:], n) for r in rows])
        features = torch.stack([_padded(r.features.to(self.device)[:-1], n) for r in rows])
        truth = torch.stack([_padded(r.features.to(self.device)[1:], n) for r in rows])
        asked = torch.stack([_padded(r.answer[2:], n) for r in rows]).to(self.device)
        token = torch.stack([_padded(r.ids[2:].long(), n) for r in rows]).to(self.device)
        if noise is not None and self.recipe.noise:
            blur = torch.rand(features.shape, generator=noise).to(self.device) - 0.5
            features = features + blur * (self.recipe.noise * self.sizes.features)
        return Batch((embeds, features), truth, asked, token, None, _first(asked))


class DreamLearner(Learner):
    """DREAM. Queries are all text and the visual tokens the target attends to most."""

    def __init__(
        self,
        recipe: Recipe,
        geometry: Geometry,
        ffn: int,
        sizes: Sizes,
        embed: Callable[[Tensor], Tensor],
        say: Callable[[Tensor], Tensor],
        device: torch.device,
    ) -> None:
        super().__init__(recipe, sizes, embed, say, device)
        module = DreamHead(geometry, ffn, recipe.gate if recipe.cross else 0.0, 1 / sizes.words)
        if not recipe.cross:
            cross = module.layers[1]
            cross.requires_grad_(False)
        self.module = module.to(device)

    def batch(self, rows: Sequence[Rows], noise: torch.Generator | None = None) -> Batch:
        """Features keep all positions, queries those that are left."""
        at = [self._queries(r) for r in rows]
        n, size = max(map(len, at)), max(len(r.ids) for r in rows)
        embeds = torch.stack([_padded(self._embeds(r)[a], n) for r, a in zip(rows, at, strict=True)])
        features = torch.stack([_padded(r.features.to(self.device), size) for r in rows])
        where = torch.stack([_padded(a, n) for a in at])
        nexts = [_padded(r.answer[1:], len(r.ids)).to(self.device)[a] for r, a in zip(rows, at, strict=True)]
        tokens = [
            _padded(r.ids[1:].long(), len(r.ids)).to(self.device)[a] for r, a in zip(rows, at, strict=True)
        ]
        asked = torch.stack([_padded(x, n) for x in nexts])
        token = torch.stack([_padded(x, n) for x in tokens])
        n_prompt = torch.tensor([int(r.answer.int().argmax()) - 1 for r in rows], device=self.device)
        index = where[..., None]
        truth = features.gather(1, index.expand(-1, -1, features.shape[-1]))
        middle = torch.stack([_padded(r.middle.to(self.device), size) for r in rows])
        middle = middle.gather(1, index.expand(-1, -1, middle.shape[-1]))
        return Batch((embeds, where, features, n_prompt), truth, asked, token, middle, _first(asked))

    def _queries(self, rows: Rows) -> Tensor:
        importance = torch.zeros(len(rows.ids))
        importance[rows.visual] = rows.importance
        return compressed(rows.visual, importance, self.recipe.keep).to(self.device)


LEARNERS: dict[Method, type[FeatureLearner] | type[DreamLearner]] = {
    "eagle2": FeatureLearner,
    "hivis": FeatureLearner,
    "dream": DreamLearner,
}


def _padded(x: Tensor, n: int) -> Tensor:
    """[m, ...] -> [n, ...] with zeros behind."""
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, n - x.shape[0]))


def _first(asked: Tensor) -> int:
    """The first column with a row that is asked."""
    return int(asked.any(0).int().argmax())
