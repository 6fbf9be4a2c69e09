"""Loose verification: LVSpec lets visually irrelevant tokens through, FLy those the target hesitates over.

Given a scored tree, gives a Verdict whose relaxed tokens the target alone would not have said: not lossless.
Every branch is judged by itself; the longest accepted one wins, the first of equals. End-of-sequence, special
and placeholder tokens are never relaxed, on either side. Knows tokens, hidden states, visual positions.
Sources: LVSpec (arXiv 2604.05650) section 3, FLy (arXiv 2511.22972) and its published code.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Sampler, Scores, Start, Verdict


@dataclass(frozen=True)
class Branch:
    """One way from the root to a leaf; all lists have one entry per drafted token, the root has none.

    draft and target: the drafted token and the target's own in its place. signal: the verifier's number.
    free: neither token is one of those that must never be relaxed.
    """

    nodes: Sequence[int]
    draft: Sequence[int]
    target: Sequence[int]
    signal: Sequence[float]
    free: Sequence[bool]

    @property
    def exact(self) -> list[bool]:
        """Where the draft is what the target says."""
        return [d == t for d, t in zip(self.draft, self.target, strict=True)]


class LooseVerifier(ABC):
    """The walk over branches that both methods share; a subclass says which tokens of a branch may stay."""

    lossless = False
    name: str

    def begin(self, start: Start) -> None:
        """Refuses sampling: both papers compare with the target's likeliest token."""
        if not start.sampling.greedy:
            raise ValueError(
                f"{self.name} compares drafts with the target's likeliest token and has no meaning at "
                f"temperature {start.sampling.temperature:g}; set it to 0 or choose a lossless method"
            )
        vocabulary = start.vocabulary
        self._never = vocabulary.special | vocabulary.eos | set(vocabulary.banned)

    def judge(self, tree: DraftTree, scores: Scores, sampler: Sampler) -> Verdict:
        """The longest accepted branch, then the target's own token after it."""
        chosen, branches = self._branches(tree, scores, sampler)
        best, stays = [], []
        for branch in branches:
            flags = self.accepts(branch)
            length = flags.index(False) if False in flags else len(flags)
            if not best or length > len(stays):
                best, stays = [branch], flags[:length]
        branch, count = best[0], len(stays)
        path = [0, *branch.nodes[:count]]
        relaxed = [not exact for exact in branch.exact[:count]]
        return Verdict(
            path=path,
            tokens=[*branch.draft[:count], chosen[path[-1]]],
            relaxed=relaxed,
            chosen=chosen,
            notes={
                "relaxed_nodes": [n for n, r in zip(path[1:], relaxed, strict=True) if r],
                **self.notes(branch),
            },
        )

    @abstractmethod
    def signal(self, scores: Scores, tree: DraftTree) -> Tensor:
        """[T] the number by which a drafted token is judged; the root's is not used."""

    @abstractmethod
    def accepts(self, branch: Branch) -> list[bool]:
        """For every token of a branch, whether it may stay if all before it stay."""

    @abstractmethod
    def notes(self, branch: Branch) -> Mapping[str, Any]:
        """What to record about the branch that won; plain Python values."""

    def _branches(self, tree: DraftTree, scores: Scores, sampler: Sampler) -> tuple[list[int], list[Branch]]:
        choice = sampler.choose(scores.logits, tree)
        # One host read for all three: ids stay exact in float32 below 2^24, above any vocabulary.
        table = torch.stack([tree.tokens.float(), choice.float(), self.signal(scores, tree).float()]).tolist()
        tokens, chosen = [int(t) for t in table[0]], [int(t) for t in table[1]]
        branches = []
        for leaf, below in enumerate(tree.shape.children):
            if below:
                continue
            path = tree.shape.path(leaf)
            draft, target = [tokens[n] for n in path[1:]], [chosen[n] for n in path[:-1]]
            free = [d not in self._never and t not in self._never for d, t in zip(draft, target, strict=True)]
            branches.append(Branch(path[1:], draft, target, [table[2][n] for n in path[1:]], free))
        return chosen, branches


class VisualVerifier(LooseVerifier):
    """LVSpec: the tokens of a draft least related to the picture need not match, the others must.

    loose: λ, the share of a branch's tokens that need not match. anchors: N, how many of the most similar
    visual positions a token's relevance is the mean of. shift: also let a token stay where the target's own
    token appears anywhere else in the branch (position shift tolerance, section 3.3).
    """

    name = "LVSpec"

    def __init__(self, loose: float = 0.7, anchors: int = 10, shift: bool = True) -> None:
        if not 0.0 <= loose <= 1.0:
            raise ValueError(f"the loose share λ is between 0 and 1, got {loose}")
        if anchors < 1:
            raise ValueError(f"relevance needs at least one visual anchor, got {anchors}")
        self.loose = loose
        self.anchors = anchors
        self.shift = shift

    def begin(self, start: Start) -> None:
        """Keeps the unit vectors of the last hidden states at visual positions (H_V, eq. 7)."""
        super().begin(start)
        visual = start.encoded.visual[: len(start.prefill.hidden)]
        self._visual = normalize(start.prefill.hidden[visual].float(), dim=-1)

    def signal(self, scores: Scores, tree: DraftTree) -> Tensor:
        """Visual relevance A [T]: mean of the N largest cosines with visual positions (eq. 8).

        The hidden state is the one at the position whose input is the drafted token.
        """
        if not len(self._visual):
            return scores.hidden.new_zeros(len(tree))
        cosine = normalize(scores.hidden.float(), dim=-1) @ self._visual.T
        return cosine.topk(min(self.anchors, len(self._visual)), dim=-1).values.mean(-1)

    def accepts(self, branch: Branch) -> list[bool]:
        """Exact, or least relevant, or (shift) the target's token stands elsewhere in the branch (eq. 11).

        # choice: without a picture there is no relevance, so everything is strict.
        """
        if not len(self._visual):
            return branch.exact
        loosened = least_relevant(branch.signal, self.loose)
        elsewhere = set(branch.draft) if self.shift else set()
        return [
            exact or (free and (i in loosened or target in elsewhere))
            for i, (exact, free, target) in enumerate(
                zip(branch.exact, branch.free, branch.target, strict=True)
            )
        ]

    def notes(self, branch: Branch) -> Mapping[str, Any]:
        """Relevance of the branch's tokens by node, nodes loosened, their highest relevance."""
        if not len(self._visual):
            return {"strict": "the prompt shows no picture, so every token must match"}
        loosened = sorted(least_relevant(branch.signal, self.loose))
        return {
            "nodes": list(branch.nodes),
            "relevance": [round(value, 4) for value in branch.signal],
            "loosened": [branch.nodes[i] for i in loosened],
            "cut": round(max(branch.signal[i] for i in loosened), 4) if loosened else None,
        }


class EntropyVerifier(LooseVerifier):
    """FLy: a mismatch may stay where the target is unsure and agrees again at once.

    gate: a mismatch is refused where the entropy of the target's three likeliest tokens is below this (nats).
    window: W, a mismatch may stay if the next W - 1 tokens all match; 0 is the gate alone.
    """

    name = "FLy"

    def __init__(self, gate: float = 0.3, window: int = 6) -> None:
        if gate < 0:
            raise ValueError(f"the entropy gate is not negative, got {gate}")
        if window < 0:
            raise ValueError(f"the window is 0 (none) or a number of tokens, got {window}")
        self.gate = gate
        self.window = window

    def signal(self, scores: Scores, tree: DraftTree) -> Tensor:
        """Entropy [T] of the distribution each token was judged by, that is the one at its parent.

        # choice: the published code's −Σ p ln p over the three largest probabilities, not renormalised.
        """
        top = scores.logits.float().softmax(-1).topk(min(3, scores.logits.shape[-1]), dim=-1).values
        entropy = -torch.xlogy(top, top).sum(-1)
        return entropy[tree.shape.parent_on(entropy.device)]

    def accepts(self, branch: Branch) -> list[bool]:
        """Exact, or unsure there and right again for the rest of the window."""
        return [
            exact or (free and unsure >= self.gate and self._agrees_again(branch.exact, i))
            for i, (exact, free, unsure) in enumerate(
                zip(branch.exact, branch.free, branch.signal, strict=True)
            )
        ]

    def _agrees_again(self, exact: Sequence[bool], i: int) -> bool:
        if not self.window:
            return True
        # choice: as published, a mismatch among the last W is refused, even the one whose window just fits.
        return i + self.window < len(exact) and all(exact[i + 1 : i + self.window])

    def notes(self, branch: Branch) -> Mapping[str, Any]:
        """Entropy of the branch's tokens, by node."""
        return {
            "nodes": list(branch.nodes),
            "entropy": [round(value, 4) for value in branch.signal],
            "gate": self.gate,
        }


def least_relevant(relevance: Sequence[float], loose: float) -> Collection[int]:
    """Places of the λ·K least relevant of K tokens (eq. 9).

    # choice: λ·K rounded down, K being what this branch really has; of equals the earlier one is loosened.
    """
    order = sorted(range(len(relevance)), key=lambda i: relevance[i])
    return set(order[: math.floor(loose * len(relevance) + 1e-6)])
