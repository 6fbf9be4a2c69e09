"""Losses that teach the pocket target to look: visual tokens and hidden states point at words.

Word alignment: each projected visual token is close (cosine) to the embeddings of its cell's kind, colour,
size, ground and place. Pointing: the hidden state of a middle layer, at every visual word, is close to the
words of what that word refers to. The heads here are thrown away after training. Knows tensors and word
ids; nothing of pictures.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from specvl_demo.training.batches import Batch
from specvl_demo.training.pictures import GROUP_NAMES
from specvl_demo.world.texts import GROUPS

WEIGHT = {"kind": 1.0, "colour": 0.7, "size": 0.4, "ground": 0.15, "place": 0.5, "number": 0.5}


class Pointers(nn.Module):
    """The word groups as ids, and linear read-outs for places still to name, for changed patches and for the
    number of a patch's picture."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, width: int) -> None:
        super().__init__()
        for group, words in GROUPS.items():
            ids = [tokenizer.encode(" " + w, add_special_tokens=False)[0] for w in words]
            assert len(set(ids)) == len(ids), f"words of group {group} share a token"
            self.register_buffer(group, torch.tensor(ids), persistent=False)
        self.rest, self.change, self.which = nn.Linear(width, 9), nn.Linear(width, 1), nn.Linear(width, 9)

    def scores(self, group: str, x: Tensor, embeddings: Tensor, sharpness: float) -> Tensor:
        """Scaled cosine of states [K, D] to a group's words [K, W]."""
        return sharpness * F.normalize(x, dim=-1) @ F.normalize(embeddings[getattr(self, group)], dim=-1).t()

    def align(self, visual: Tensor, patches: Tensor, embeddings: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Word alignment of projected visual tokens [P, N, D] with `patches` [P, N, 6]: loss, accuracies."""
        loss, seen = visual.new_zeros(()), {}
        for g, group in enumerate(GROUP_NAMES):
            target = patches[..., g].flatten()
            known = target >= 0
            if known.any():
                scores = self.scores(group, visual.flatten(0, 1)[known], embeddings, 20.0)
                loss = loss + WEIGHT[group] * F.cross_entropy(scores, target[known])
                seen[group] = _accuracy(scores, target[known], skip_zero=group == "kind")
        return loss, seen

    def right(self, visual: Tensor, patches: Tensor, embeddings: Tensor) -> Tensor:
        """Which visual tokens [P, N, D] say every word that `patches` [P, N, 6] knows: [P, N] bool."""
        out = torch.ones(patches.shape[:2], dtype=torch.bool, device=visual.device)
        for g, group in enumerate(GROUP_NAMES):
            said = self.scores(group, visual, embeddings, 1.0).argmax(-1)
            out &= (said == patches[..., g]) | (patches[..., g] < 0)
        return out

    def point(self, middle: Tensor, batch: Batch, embeddings: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Pointer losses on a middle layer's states [B, L, D]; loss and accuracies."""
        loss, seen = middle.new_zeros(()), {}
        for g, group in enumerate(GROUP_NAMES):
            rows = batch.attended[batch.attended[:, 2] == g]
            if len(rows):
                scores = self.scores(group, middle[rows[:, 0], rows[:, 1]], embeddings, 15.0)
                loss = loss + WEIGHT[group] * F.cross_entropy(scores, rows[:, 3])
                seen[group] = _accuracy(scores, rows[:, 3], skip_zero=group == "kind")
        if len(batch.rests):
            logits = self.rest(middle[batch.rests[:, 0], batch.rests[:, 1]])
            target = batch.rests[:, 2:].float()
            loss = loss + 1.5 * F.binary_cross_entropy_with_logits(logits, target)
            seen["rest"] = ((logits > 0) == (target > 0)).all(-1).float().mean().item()
        return loss, seen

    def changed(self, states: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Which patches differ from the picture before, read from states at visual tokens [P, N, D]."""
        known = batch.changed >= 0
        if not known.any():
            return states.new_zeros(()), {}
        logits, target = self.change(states[known]).squeeze(-1), batch.changed[known].float()
        loss = F.binary_cross_entropy_with_logits(logits, target, pos_weight=states.new_tensor(4.0))
        hit = ((logits > 0) & (target > 0)).sum() / target.sum().clamp_min(1)
        return 0.5 * loss, {"change": hit.item()}

    def numbered(self, states: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Which of several pictures a patch belongs to, read from early states at visual tokens [P, N, D]:
        what is looked up later is a place of one picture.
        """
        known = (batch.which >= 0) & (batch.which < self.which.out_features)
        if not known.any():
            return states.new_zeros(()), {}
        logits = self.which(states[known]).flatten(0, 1)
        target = batch.which[known].repeat_interleave(states.shape[1])
        return 0.5 * F.cross_entropy(logits, target), {"which": _accuracy(logits, target, skip_zero=False)}


def _accuracy(scores: Tensor, target: Tensor, skip_zero: bool) -> float:
    right = (scores.argmax(-1) == target)[target >= int(skip_zero)]
    return right.float().mean().item() if len(right) else float("nan")
