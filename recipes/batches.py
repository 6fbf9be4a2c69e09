"""Training batches of the pocket target, the supervision of every token, and the losses.

Word alignment: each projected visual token is close (cosine) to the embeddings of its cell's kind,
colour, size, ground and place. Pointing: the hidden state of a middle layer, at every visual word,
is close to the words of what that word refers to. The heads of these losses are discarded after
training. Batch number `step` of seed `seed` is always the same batch, so that a resumed run gets
the same data as an uninterrupted one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from recipes import pictures, pocket
from recipes.pictures import GROUP_NAMES
from recipes.world import samples, texts
from recipes.world.texts import GROUPS, Piece, Sample, Turn, Word

WEIGHT = {"kind": 1.0, "colour": 0.7, "size": 0.4, "ground": 0.15, "place": 0.5, "number": 0.5}


@dataclass
class Batch:
    """`B` conversations of at most `L` tokens over `P` pictures of `N` patches."""

    ids: Tensor  # [B, L]
    labels: Tensor  # [B, L], -100 outside answers
    visual: Tensor  # [B, L] bool: tokens the picture decides
    attended: Tensor  # [K, 4]: row, position, group, index
    rests: Tensor  # [R, 2 + 9]: row, position, which places are still to be named
    pixels: Tensor  # [P, 3, 96, 96] in [-1, 1]
    patches: Tensor  # [P, N, 6]: index per group, -100 where the group says nothing
    which: Tensor  # [P]: place among its conversation's pictures, -100 where it is the only one
    changed: Tensor  # [P, N]: 1 where a patch differs from the picture before, -100 in the first
    crowded: Tensor  # [G, 3, 96, 96]: crowded pictures only for the vision tower
    crowded_patches: Tensor  # [G, N, 6]

    def to(self, device: torch.device) -> Batch:
        return Batch(
            **{f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)}
        )


@dataclass
class Encoded:
    """One conversation.

    labels: -100 outside answers. visual: tokens the picture decides. attended: (position, group,
    index), rests: (position, nine places), as in `Batch`.
    """

    ids: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    visual: list[bool] = field(default_factory=list)
    attended: list[tuple[int, int, int]] = field(default_factory=list)
    rests: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, ids: Sequence[int], answer: bool = False) -> None:
        """Append ids, of an answer or between answers."""
        self.ids += ids
        self.labels += ids if answer else [-100] * len(ids)
        self.visual += [False] * len(ids)

    def say(
        self, tokenizer: PreTrainedTokenizerFast, pieces: Sequence[Piece], answer: bool
    ) -> None:
        """Append the ids of some text, with marks on its visual words."""
        encoded = tokenizer(
            texts.text_of(pieces), add_special_tokens=False, return_offsets_mapping=True
        )
        start, at = len(self.ids), 0
        self.add(encoded["input_ids"], answer)
        for piece in pieces:
            text = texts.text_of([piece])
            if isinstance(piece, Word):
                spans = enumerate(encoded["offset_mapping"])
                inside = [start + j for j, (a, b) in spans if a < at + len(text) and b > at]
                for j in inside:
                    self.visual[j] = answer
                self.mark(piece, inside[-1])
            at += len(text)

    def mark(self, marked: Word | Turn, position: int) -> None:
        """Mark what a word points at, or what a turn needs looked up first, for the pointer
        losses.
        """
        for group, word in marked.look.items():
            self.attended.append((position, GROUP_NAMES.index(group), GROUPS[group].index(word)))
        if marked.rest is not None:
            self.rests.append((position, *(int(p in marked.rest) for p in range(9))))


def encode(tokenizer: PreTrainedTokenizerFast, sample: Sample) -> Encoded:
    """Return the conversation as the chat template writes it, with labels on answers and marks on
    visual words.
    """
    out = Encoded()
    out.add([pocket.BOS])
    for i, turn in enumerate(sample.turns):
        shown = pocket.picture_ids(tokenizer, len(sample.pictures)) if i == 0 else []
        out.add([pocket.USER, *shown])
        out.say(tokenizer, [" ", *turn.question], answer=False)
        out.mark(turn, len(out.ids))
        out.add([pocket.ASSISTANT])
        out.say(tokenizer, turn.answer, answer=True)
        out.add([pocket.EOS], answer=True)
    return out


def collate(
    tokenizer: PreTrainedTokenizerFast, some: Sequence[Sample], rng: random.Random, n_crowded: int
) -> Batch:
    encoded = [encode(tokenizer, s) for s in some]
    attended = [(b, *mark) for b, e in enumerate(encoded) for mark in e.attended]
    rests = [(b, *mark) for b, e in enumerate(encoded) for mark in e.rests]
    pixels, patches, changed = [], [], []
    which: list[int] = []
    for s in some:
        box = pictures.content_box(rng)
        pixels += [pictures.letterboxed(p, box, rng) for p in s.pictures]
        patches += [pictures.patch_labels(p, box) for p in s.pictures]
        which += range(len(s.pictures)) if len(s.pictures) > 1 else [-100]
        changed.append(pictures.changes(s.pictures, box))

    def rows(values: Sequence[Sequence[int]], rest: int) -> Tensor:
        tensors = [torch.tensor(row) for row in values]
        return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=rest)

    return Batch(
        rows([e.ids for e in encoded], pocket.PAD),
        rows([e.labels for e in encoded], -100),
        rows([e.visual for e in encoded], 0),
        torch.tensor(attended, dtype=torch.long).reshape(-1, 4),
        torch.tensor(rests, dtype=torch.long).reshape(-1, 11),
        pictures.to_pixels(pixels),
        torch.from_numpy(np.stack(patches)),
        torch.tensor(which),
        torch.from_numpy(np.concatenate(changed)),
        *pictures.crowded(rng, n_crowded),
    )


@dataclass
class Conversations:
    """Item `step` is batch number `step`. The curriculum, easy look-ups first, then everything,
    goes from progress `begin` to 1 in `total` steps.
    """

    tokenizer: PreTrainedTokenizerFast
    seed: int
    total: int
    batch: int
    n_crowded: int
    begin: float = 0.0

    def __getitem__(self, step: int) -> Batch:
        rng = random.Random(self.seed * 10**9 + step)
        progress = self.begin + (1 - self.begin) * step / self.total
        most = 2 + min(4, int(progress * 25))  # objects in a scene
        several = 0.0 if progress < 0.10 else min(0.5, 0.12 + progress * 0.9)
        if rng.random() < several:
            drilled = max(0.3, 0.9 - progress)
            draw = [
                samples.several_pictures(rng, min(4, most), 125, drilled)
                for _ in range(self.batch * 3 // 4)
            ]
        else:
            drilled, charts = max(0.15, 0.85 - 3.0 * progress), 0.0 if progress < 0.06 else 0.2
            draw = [
                samples.one_picture(rng, rng.randint(1, most), 125, drilled, charts)
                for _ in range(self.batch)
            ]
        return collate(self.tokenizer, draw, rng, self.n_crowded)


# ---------------------------------------------------------------- losses


class Pointers(nn.Module):
    """The word groups as ids, and linear read-outs for places still to name, for changed patches
    and for the number of a patch's picture.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, width: int) -> None:
        super().__init__()
        for group, words in GROUPS.items():
            ids = [tokenizer.encode(" " + w, add_special_tokens=False)[0] for w in words]
            assert len(set(ids)) == len(ids), f"words of group {group} share a token"
            self.register_buffer(group, torch.tensor(ids), persistent=False)
        self.rest, self.change, self.which = (nn.Linear(width, n) for n in (9, 1, 9))

    def scores(self, group: str, x: Tensor, embeddings: Tensor, sharpness: float) -> Tensor:
        """Return scaled cosines of states [K, D] to a group's words [K, W]."""
        words = F.normalize(embeddings[getattr(self, group)], dim=-1)
        return sharpness * F.normalize(x, dim=-1) @ words.t()

    def align(
        self, visual: Tensor, patches: Tensor, embeddings: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """Return loss and accuracies of word alignment of projected visual tokens [P, N, D] with
        `patches` [P, N, 6].
        """
        known = [(patches[..., g] >= 0).flatten() for g in range(len(GROUP_NAMES))]
        states = [visual.flatten(0, 1)[some] for some in known]
        targets = [patches[..., g].flatten()[some] for g, some in enumerate(known)]
        return self._named(states, targets, embeddings, 20.0)

    def _named(
        self,
        states: Sequence[Tensor],
        targets: Sequence[Tensor],
        embeddings: Tensor,
        sharpness: float,
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the cross-entropy of each group's states [K, D] against its words [K], and
        accuracies by group.
        """
        loss, seen = embeddings.new_zeros(()), {}
        for group, x, target in zip(GROUP_NAMES, states, targets, strict=True):
            if len(target):
                scores = self.scores(group, x, embeddings, sharpness)
                loss = loss + WEIGHT[group] * F.cross_entropy(scores, target)
                seen[group] = _accuracy(scores, target, skip_zero=group == "kind")
        return loss, seen

    def right(self, visual: Tensor, patches: Tensor, embeddings: Tensor) -> Tensor:
        """Return which visual tokens [P, N, D] encode every word that `patches` [P, N, 6] has: [P,
        N] bool.
        """
        out = torch.ones(patches.shape[:2], dtype=torch.bool, device=visual.device)
        for g, group in enumerate(GROUP_NAMES):
            chosen = self.scores(group, visual, embeddings, 1.0).argmax(-1)
            out &= (chosen == patches[..., g]) | (patches[..., g] < 0)
        return out

    def point(
        self, middle: Tensor, batch: Batch, embeddings: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """Return pointer losses on a middle layer's states [B, L, D], and accuracies."""
        marks = [batch.attended[batch.attended[:, 2] == g] for g in range(len(GROUP_NAMES))]
        states = [middle[rows[:, 0], rows[:, 1]] for rows in marks]
        loss, seen = self._named(states, [rows[:, 3] for rows in marks], embeddings, 15.0)
        if len(batch.rests):
            logits = self.rest(middle[batch.rests[:, 0], batch.rests[:, 1]])
            target = batch.rests[:, 2:].float()
            loss = loss + 1.5 * F.binary_cross_entropy_with_logits(logits, target)
            seen["rest"] = ((logits > 0) == (target > 0)).all(-1).float().mean().item()
        return loss, seen

    def changed(self, states: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Predict which patches differ from the picture before, from states at visual tokens [P, N,
        D].
        """
        known = batch.changed >= 0
        if not known.any():
            return states.new_zeros(()), {}
        logits, target = self.change(states[known]).squeeze(-1), batch.changed[known].float()
        loss = F.binary_cross_entropy_with_logits(logits, target, pos_weight=states.new_tensor(4.0))
        hit = ((logits > 0) & (target > 0)).sum() / target.sum().clamp_min(1)
        return 0.5 * loss, {"change": hit.item()}

    def numbered(self, states: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Predict which of several pictures a patch belongs to, from early states at visual tokens
        [P, N, D], since what is looked up later is a place of one picture.
        """
        known = (batch.which >= 0) & (batch.which < self.which.out_features)
        if not known.any():
            return states.new_zeros(()), {}
        logits = self.which(states[known]).flatten(0, 1)
        target = batch.which[known].repeat_interleave(states.shape[1])
        right = _accuracy(logits, target, skip_zero=False)
        return 0.5 * F.cross_entropy(logits, target), {"which": right}


def _accuracy(scores: Tensor, target: Tensor, skip_zero: bool) -> float:
    right = (scores.argmax(-1) == target)[target >= int(skip_zero)]
    return right.float().mean().item() if len(right) else float("nan")
