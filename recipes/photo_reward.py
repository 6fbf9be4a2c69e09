"""Captions sampled from the target, weighted by how well they agree with people's captions.

Self-critical sequence training (Rennie et al. 2017, arXiv 1612.00563, eq. 7): the gradient of a
sampled caption's log-likelihood is weighted by how far its CIDEr is above that of the other samples
of the photograph (their mean as the baseline: arXiv 2003.09971, eq. 4).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM

from recipes.photo import Learner
from recipes.photo_model import Node, Row
from recipes.photo_scores import Cider
from recipes.photo_tasks import Tasks
from specvl_demo.vlm import photo_assembly

SAMPLES, MOST = 5, 22
"""Captions of one photograph, and the tokens that one may have."""
SCALE = 12.0
"""Weight of a caption whose CIDEr is one above the others'."""
END = " eos"
"""A word that closes every complete caption, so that an incomplete one is scored as lacking it."""


class Rewarder:
    """The rows of `Tasks`, with captions sampled by `language` where requested."""

    def __init__(
        self, learner: Learner, language: LlamaForCausalLM, tasks: Tasks, short: Tensor
    ) -> None:
        self.learner, self.tasks = learner, tasks
        self.tokenizer = tasks.tokenizer
        self.short = short[short != learner.image]
        photos = {("train", i): p.captions for i, p in enumerate(tasks.photos)}
        scenes = {("things", seen.thing.index): seen.captions for seen in tasks.looked_at}
        self.references = {
            picture: [caption + END for caption in captions]
            for picture, captions in (photos | scenes).items()
        }
        self.cider = Cider([self.references[picture] for picture in photos])
        self.language = language
        model = copy.deepcopy(language).to(learner.device, learner.dtype)
        self.model = model.eval().requires_grad_(False)

    def rows(self, step: int, n: int) -> list[Row]:
        rows = self.tasks.rows(step, n)
        sampled = [row for row in rows if row.sampled]
        for row, captions in zip(sampled, self.sample(sampled, f"{step}"), strict=True):
            self._weigh(row, captions)
        return rows

    @torch.no_grad()
    def sample(self, rows: Sequence[Row], seed: str) -> list[list[list[int]]]:
        """Return `SAMPLES` answers of short answers' tokens to the rows' one first question."""
        if not rows:
            return []
        # The base, with this step's updates.
        self.model.load_state_dict(self.language.state_dict())
        photo_assembly.merge_lora(self.model, self.learner.decoder.lora.state_dict())
        visual, _ = self.learner.look([place for row in rows for place in row.pictures])
        ids = torch.tensor([row.root.ids + row.root.children[0].ids for row in rows])
        x = self.learner.embed(ids.flatten().to(self.learner.device), visual).view(*ids.shape, -1)
        cache, eos = DynamicCache(), self.tokenizer.eos_token_id
        out = self.model.model(inputs_embeds=x, past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(SAMPLES)
        hidden = out.last_hidden_state[:, -1].repeat_interleave(SAMPLES, 0)
        dice = torch.Generator(x.device).manual_seed(random.Random(seed).getrandbits(63))
        table, tokens = self.learner.decoder.embedding[self.short], []
        for _ in range(MOST):
            likely = F.linear(hidden, table).float().softmax(-1)
            tokens.append(self.short[torch.multinomial(likely, 1, generator=dice)[:, 0]])
            if torch.stack(tokens).eq(eos).any(0).all():
                break
            new = tokens[-1][:, None]
            out = self.model.model(input_ids=new, past_key_values=cache, use_cache=True)
            hidden = out.last_hidden_state[:, -1]
        found = torch.stack(tokens, 1).tolist()
        found = [one[: one.index(eos) + 1] if eos in one else one for one in found]
        return [found[k : k + SAMPLES] for k in range(0, len(found), SAMPLES)]

    def _weigh(self, row: Row, captions: Sequence[list[int]]) -> None:
        """Add captions below a row's first question, each with its weight."""
        references, eos = self.references[row.pictures[0][:2]], self.tokenizer.eos_token_id
        ends = (END if tokens[-1] == eos else "" for tokens in captions)
        texts = self.tokenizer.batch_decode(captions, skip_special_tokens=True)
        whole = [text + end for text, end in zip(texts, ends, strict=True)]
        scores = torch.tensor(self.cider.scores(whole, references))
        better = (scores - scores.mean()) * SAMPLES / (SAMPLES - 1)
        row.root.children[0].children = [
            Node(tokens, taught=True, kind="sampled", weight=SCALE * weight)
            for tokens, weight in zip(captions, better.tolist(), strict=True)
        ]
        row.reward = scores.mean().item()
