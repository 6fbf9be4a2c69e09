"""Captions that the target samples itself, weighted by how well people's captions agree with them.

Self-critical sequence training (Rennie et al. 2017, arXiv 1612.00563, eq. 7): the gradient of a sampled
caption's log-likelihood counts as often as its CIDEr is above that of the other samples of the photograph
(their mean as the baseline: arXiv 2003.09971, eq. 4).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedTokenizerBase

from specvl_demo.training.photo import Learner
from specvl_demo.training.photo_data import Photo, Views
from specvl_demo.training.photo_model import Node, Row
from specvl_demo.vlm.photo_assembly import FUSED, LORA_SCALE
from specvl_demo.world.photo_scores import Cider

SAMPLES, MOST = 5, 26
"""Captions of one photograph, and the tokens that one may have."""
SCALE = 3.0
"""How much a caption counts whose CIDEr is one above the others'."""
END = " eos"
"""A word that closes every complete caption, so that one which breaks off is scored as lacking it."""


class Rewarder:
    """Samples captions below the rows that ask for them. language: the base, of which a copy is kept."""

    def __init__(
        self,
        learner: Learner,
        language: LlamaForCausalLM,
        tokenizer: PreTrainedTokenizerBase,
        photos: Sequence[Photo],
        views: Views,
        short: Tensor,
    ) -> None:
        self.learner, self.tokenizer, self.views = learner, tokenizer, views
        self.short = short[short != learner.image]
        self.told = [[caption + END for caption in p.captions] for p in photos]
        self.cider = Cider(self.told)
        self.model = copy.deepcopy(language).to(learner.device, learner.dtype).eval().requires_grad_(False)

    @torch.no_grad()
    def _take_over(self) -> None:
        """Merge the updates of this step into the model that samples."""
        decoder = self.learner.decoder
        updates = {k: v.to(self.learner.dtype) for k, v in decoder.lora.state_dict().items()}
        for i, (layer, frozen) in enumerate(zip(self.model.model.layers, decoder.frozen, strict=True)):
            for name, (part, projections) in FUSED.items():
                a, b = (updates[f"{i}.{name}_{side}"] for side in "ab")
                merged = torch.addmm(frozen[name], b, a, alpha=LORA_SCALE)
                modules = [getattr(getattr(layer, part), p) for p in projections]
                for m, w in zip(modules, merged.split([m.out_features for m in modules]), strict=True):
                    m.weight.copy_(w)

    @torch.no_grad()
    def _sample(self, x: Tensor, seed: str) -> list[list[int]]:
        """`SAMPLES` captions, one after another, of each of the prompts [R, P, D], made of short answers'
        tokens."""
        dice = torch.Generator(x.device).manual_seed(random.Random(seed).getrandbits(63))
        cache, eos = DynamicCache(), self.tokenizer.eos_token_id
        hidden = self.model.model(inputs_embeds=x, past_key_values=cache, use_cache=True).last_hidden_state
        cache.batch_repeat_interleave(SAMPLES)
        hidden = hidden[:, -1].repeat_interleave(SAMPLES, 0)
        table, said = self.learner.decoder.embedding[self.short], []
        for _ in range(MOST):
            likely = F.linear(hidden, table).float().softmax(-1)
            said.append(self.short[torch.multinomial(likely, 1, generator=dice)[:, 0]])
            if torch.stack(said).eq(eos).any(0).all():
                break
            out = self.model.model(input_ids=said[-1][:, None], past_key_values=cache, use_cache=True)
            hidden = out.last_hidden_state[:, -1]
        rows = torch.stack(said, 1).tolist()
        return [row[: row.index(eos) + 1] if eos in row else row for row in rows]

    @torch.no_grad()
    def fill(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows; below the first question of those that are `sampled` hang captions with their weights.

        All of these must ask the same question.
        """
        asked = [row for row in rows if row.sampled]
        if not asked:
            return rows
        self._take_over()
        places = [(index, number) for row in asked for _, index, number in row.pictures]
        visual, _ = self.learner.look(*self.views.get(places))
        ids = torch.tensor([row.root.ids + row.root.children[0].ids for row in asked])
        x = self.learner.embed(ids.flatten().to(self.learner.device), visual).view(*ids.shape, -1)
        captions, eos = self._sample(x, str(places)), self.tokenizer.eos_token_id
        for i, (row, (index, _)) in enumerate(zip(asked, places, strict=True)):
            some = captions[i * SAMPLES : (i + 1) * SAMPLES]
            texts = [
                self.tokenizer.decode(said, skip_special_tokens=True) + (END if said[-1] == eos else "")
                for said in some
            ]
            scores = torch.tensor(self.cider.scores(texts, self.told[index]))
            better = (scores - scores.mean()) * SAMPLES / (SAMPLES - 1)
            row.root.children[0].children = [
                Node(said, taught=True, kind="sampled", weight=SCALE * weight)
                for said, weight in zip(some, better.tolist(), strict=True)
            ]
            row.reward = scores.mean().item()
        return rows
