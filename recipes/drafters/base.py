"""What all drafters train with: recipes, the target's shared parts, batches, steps of self-feeding,
the loss.

Row r of a batch is a token; it predicts the feature of that token and the next token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes import trainer
from recipes.features import FeatureSpec, Rows, Store
from specvl_demo.methods.heads.blocks import Geometry
from specvl_demo.vlm.shared_drafter import DRAFT_IDS

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Recipe(trainer.Recipe):
    """What the runs of all kinds depend on; a kind may add its own fields.

    Attributes:
        stage1: Share of the steps before the drafter feeds itself.
        self_feeding: N, forwards per step after that, 1 for none.
        reg, cls, top: Weights of the losses on features (smooth L1), distributions (KL) and the
            target's `top_k` likeliest tokens.
        survive: K, a row stays while the target's token is among the drafter's K likeliest; 0: all
            stay.
        noise: Amplitude of uniform noise on features, relative to their size.
        ffn: Width of the MLPs, 0 for the target's.
        draft_vocab: Size of the draft vocabulary, the tokens that the target emits most often; 0:
            all.
    """

    stage1: float = 0.4
    self_feeding: int = 4
    reg: float = 1.0
    cls: float = 0.1
    top: float = 0.0
    top_k: int = 10
    survive: int = 0
    noise: float = 0.0
    ffn: int = 0
    draft_vocab: int = 0

    def passes(self, step: int) -> int:
        """Return the number of forwards that feed on one another at this optimizer step."""
        return 1 if step < self.stage1 * self.steps else self.self_feeding


@dataclass(frozen=True)
class Shared:
    """What the drafters use of the target and never train: decoder, embeddings, output head."""

    decoder: PreTrainedModel
    embeddings: nn.Embedding
    head: nn.Linear
    softcap: float | None
    geometry: Geometry
    ffn: int
    device: torch.device

    @classmethod
    def of(cls, model: PreTrainedModel, device: torch.device) -> Shared:
        """Return those of a target as the library loads it, with plain rotary positions."""
        decoder = model.get_decoder()
        config = decoder.config
        heads = config.num_attention_heads
        rope = getattr(config, "rope_parameters", None) or {}
        geometry = Geometry(
            width=config.hidden_size,
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_width=getattr(config, "head_dim", None) or config.hidden_size // heads,
            eps=config.rms_norm_eps,
            theta=float(rope.get("rope_theta", getattr(config, "rope_theta", 10000.0))),
        )
        softcap = getattr(config, "final_logit_softcapping", None)
        ends = model.get_input_embeddings(), model.get_output_embeddings()
        return cls(decoder, *ends, softcap, geometry, config.intermediate_size, device)

    def embed(self, ids: Tensor) -> Tensor:
        """Embed ids [...] -> [..., D], without gradients."""
        with torch.no_grad():
            return self.embeddings(ids)

    def say(self, features: Tensor) -> Tensor:
        """Map features [..., D] -> logits [..., V], in the head's own precision."""
        return self._capped(self.head(features.to(self.head.weight.dtype)))

    def part(self, ids: Tensor) -> Callable[[Tensor], Tensor]:
        """Return `say` for some ids [R]: features [..., D] -> logits [..., R]."""
        rows = self.head.weight.detach()[ids.to(self.head.weight.device)]
        return lambda features: self._capped(F.linear(features.to(rows.dtype), rows))

    def _capped(self, logits: Tensor) -> Tensor:
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


@dataclass
class Batch:
    """One batch for a head: its forward's arguments before the number of steps.

    truth: [B, N, D] the feature each row predicts. scored: [B, N] rows whose next token is part of
    an answer. token: [B, N] that token. middle: What the first block must resemble, or None.
    """

    inputs: tuple[Tensor, ...]
    truth: Tensor
    scored: Tensor
    token: Tensor
    middle: Tensor | None = None

    @cached_property
    def first(self) -> int:
        """The first column with a row in `scored`."""
        return int(self.scored.any(0).int().argmax())


@dataclass(frozen=True)
class Sizes:
    """Root mean squares of words' embeddings, visual tokens, features; 1 if a store has none."""

    words: float
    visual: float
    features: float

    @property
    def visual_scale(self) -> float:
        """The factor of visual tokens' scale to words' (see `FeatureHead.prompt_embeds`)."""
        return self.words / self.visual


KINDS: dict[str, type[Learner]] = {}


class Learner(ABC):
    """A drafter in training, with the target's frozen embeddings and output head. A subclass is a
    kind of drafter, and the recipe NAME trains it.

    recipe: The kind's default, and an instance's own. needs: What of the target is stored.
    shift, reads: Row r is token r + shift, and reads these of the token before it.
    scaled: Visual tokens are scaled to the size of words.
    """

    name: str
    title: str
    recipe: Recipe
    needs: FeatureSpec
    module: Any
    shift: int = 1
    reads: str | None = "features"
    scaled: bool = True

    def __init_subclass__(cls) -> None:
        KINDS[cls.name] = cls

    def __init__(
        self,
        recipe: Recipe,
        shared: Shared,
        sizes: Sizes,
        store: Store,
        start: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Make a learner. start: Published tensors of a finished drafter to continue from."""
        self.recipe, self.shared, self.sizes = recipe, shared, sizes
        self.start = start or {}
        self.device = shared.device
        self.ids: Tensor | None = None
        """[R] what `guess` numbers, where that is a draft vocabulary."""
        self._say: Callable[[Tensor], Tensor] = shared.say
        if DRAFT_IDS in self.start:
            self.ids = self.start[DRAFT_IDS].long().to(self.device)
        elif recipe.draft_vocab:
            vocab = shared.head.weight.shape[0]
            self.ids = draft_vocabulary(store, recipe.draft_vocab, vocab).to(self.device)
        if self.ids is not None:
            self._say = shared.part(self.ids)
        self.module = self.make().to(self.device)
        if start is not None:
            self.module.begin_with(start)

    @abstractmethod
    def make(self) -> nn.Module:
        """Return a fresh module."""

    def batch(self, rows: Sequence[Rows], noise: torch.Generator | None = None) -> Batch:
        """Return conversations, right-padded. noise: for kinds that blur their inputs."""
        n, s = max(len(r.ids) for r in rows) - 1, self.shift
        embeds = self.stacked([self.embeds(r)[s:][: len(r.ids) - 1] for r in rows], n)
        truth = self.stacked([r.features[s:][: len(r.ids) - 1] for r in rows], n)
        scored = self.stacked([r.answer[s + 1 :] for r in rows], n)
        token = self.stacked([r.ids[s + 1 :].long() for r in rows], n)
        inputs: tuple[Tensor, ...] = (embeds,)
        if self.reads is not None:
            read = self.stacked([getattr(r, self.reads)[:-1] for r in rows], n)
            if noise is not None and self.recipe.noise:
                blur = torch.rand(read.shape, generator=noise).to(self.device) - 0.5
                read = read + blur * (self.recipe.noise * self.sizes.features)
            inputs = (embeds, read)
        return Batch(inputs, truth, scored, token)

    def stacked(self, some: Sequence[Tensor], n: int) -> Tensor:
        """Stack tensors [m, ...] -> [B, n, ...] on the device, zero-padded."""
        return torch.stack([padded(x.to(self.device), n) for x in some])

    def loss(
        self, batch: Batch, passes: int, forward: Callable[..., list[tuple[Tensor, Tensor | None]]]
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the weighted sum of all losses, averaged over passes, and numbers to print."""
        r = self.recipe
        outputs = forward(*batch.inputs, passes, batch.first)
        truth = batch.truth[batch.scored]
        with torch.no_grad():
            p = self.wanted(truth)
        number = torch.zeros(batch.scored.shape, dtype=torch.int64, device=self.device)
        number[batch.scored] = torch.arange(len(truth), device=self.device)
        alive, total, seen = batch.scored, truth.new_zeros(()), {}
        for step, (out, early) in enumerate(outputs):
            first = batch.first if step else 0
            live = alive[:, first:]
            if not bool(live.any()):
                break
            rows, features = number[:, first:][live], out[live].float()
            q = self.guess(features).float().log_softmax(-1)
            reg = F.smooth_l1_loss(features, truth[rows])
            # choice: arXiv 2505.19201 §3.2.1 names the draft first; as in its code, the target's
            # distribution is the reference.
            kl = F.kl_div(q, p[rows], reduction="batchmean")
            total = total + r.reg * reg + r.cls * kl
            if r.top:
                # choice: in both stages; arXiv 2509.23928 does not say whether the first has it
                # (eq. 10).
                best = p[rows].topk(min(r.top_k, p.shape[-1]))
                total = total - r.top * (best.values * q.gather(-1, best.indices)).sum(-1).mean()
            if early is not None and not step:
                middle = self.early_loss(early[live].float(), batch, live)
                total = total + middle * len(outputs)
                seen["middle"] = middle.item()
            target = p[rows].argmax(-1)
            seen[f"agree{step + 1}"] = (q.argmax(-1) == target).float().mean().item()
            if not step:
                seen |= {"reg": reg.item(), "kl": kl.item()}
            alive = self._survivors(alive, live, q, target, first) & batch.scored
        return total / len(outputs), {"loss": total.item() / len(outputs), **seen}

    def early_loss(self, early: Tensor, batch: Batch, live: Tensor) -> Tensor:
        """Return the loss of a first block's output on `scored` rows, if the kind has one."""
        raise ValueError(f"{self.title} has no loss on a first block")

    def before(self, step: int) -> None:  # noqa: B027 - most kinds do nothing here
        """Do something before every optimizer step; most kinds do nothing."""

    def tensors(self) -> dict[str, Tensor]:
        """Return a folder's tensors under the published names, and the draft vocabulary."""
        own = self.module.published()
        return own if self.ids is None else {**own, DRAFT_IDS: self.ids.int()}

    def settings(self) -> dict[str, Any]:
        """Return what drafting must know beyond the published format."""
        return {"visual_scale": self.sizes.visual_scale} if self.scaled else {}

    def config(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the config.json of the published format."""
        g, down = self.module.geometry, "mlp.down_proj.weight"
        return {
            "architectures": [f"{self.title} head"],
            "hidden_size": g.width,
            "intermediate_size": next(v for k, v in tensors.items() if k.endswith(down)).shape[1],
            "num_attention_heads": g.heads,
            "num_key_value_heads": g.kv_heads,
            "head_dim": g.head_width,
            "num_hidden_layers": 1,
            "rms_norm_eps": g.eps,
            "rope_theta": g.theta,
            "hidden_act": "silu",
        }

    def wanted(self, truth: Tensor) -> Tensor:
        """Return the target's distribution [k, R] over what can be drafted at features [k, D]."""
        return self._say(truth).float().softmax(-1)

    def guess(self, out: Tensor) -> Tensor:
        """Map the module's output [..., D] -> logits over the draft vocabulary."""
        return self._say(out)

    def token_of(self, guessed: Tensor) -> Tensor:
        """Map indices of `guess` to the target's ids."""
        return guessed if self.ids is None else self.ids[guessed]

    @torch.no_grad()
    def right(self, batch: Batch, length: int) -> tuple[list[Tensor], Tensor]:
        """Return which rows predict their next token, by step, and which are in `scored`."""
        steps = []
        for step, (out, _) in enumerate(self.module(*batch.inputs, length, batch.first)):
            first = batch.first if step else 0
            guessed = self.token_of(self.guess(out[:, batch.first - first :]).argmax(-1))
            hit = guessed == batch.token[:, batch.first :]
            steps.append(F.pad(hit, (batch.first, 0)))
        return steps, batch.scored

    def _survivors(
        self, alive: Tensor, live: Tensor, q: Tensor, target: Tensor, first: int
    ) -> Tensor:
        """Return the next step's rows: whose predecessor lives (arXiv 2509.23928 eq. 7)."""
        stays = torch.zeros_like(alive)
        on = torch.ones_like(target, dtype=torch.bool)
        if self.recipe.survive:
            on = (q.topk(min(self.recipe.survive, q.shape[-1])).indices == target[:, None]).any(-1)
        stays[:, first:][live] = on
        return F.pad(stays, (1, 0))[:, :-1]

    def embeds(self, rows: Rows) -> Tensor:
        """Return embeddings of all tokens [n, D]: the table's, or the projected visual tokens."""
        embeds = self.shared.embed(rows.ids.long().to(self.device)).float()
        if len(rows.embeds):
            scale = self.sizes.visual_scale if self.scaled else 1.0
            embeds[rows.visual.to(self.device)] = rows.embeds.to(self.device) * scale
        return embeds


def padded(x: Tensor, n: int) -> Tensor:
    """Pad [m, ...] -> [n, ...] with zeros at the end."""
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, n - x.shape[0]))


def draft_vocabulary(store: Store, size: int, vocab: int) -> Tensor:
    """Return the ids [R] that are most frequent in a store's answers, most frequent first."""
    counts = torch.zeros(vocab, dtype=torch.int64)
    for i in range(len(store)):
        rows = store[i]
        counts += torch.bincount(rows.ids[rows.answer].long(), minlength=vocab)
    return counts.argsort(descending=True, stable=True)[:size]
