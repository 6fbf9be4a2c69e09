"""Verification: which drafted tokens stay, given the target's scores of a drafted tree.

Strict verification emits exactly the tokens that the target would choose without a draft. A drafted
tree is a function of the text so far and of the seed's draws, so one rule is exact for chains and
trees, greedy and sampled: choose the target's token at every node, then walk from the root to the
child that carries it. Relaxed verification, of lossy methods, accepts other tokens too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specvl_demo.core import highest
from specvl_demo.core.sampling import Sampler
from specvl_demo.core.tree import DraftTree, TreeShape
from specvl_demo.core.types import LaneStart, Scores, Verdict, Verifier


def accepted_path(shape: TreeShape, tokens: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """Return the nodes from the root along the first children with their parent's chosen token."""
    path = [0]
    children = shape.children
    while True:
        want = chosen[path[-1]]
        follower = next((child for child in children[path[-1]] if tokens[child] == want), None)
        if follower is None:
            return path
        path.append(follower)


class LosslessVerifier(Verifier):
    """Lossless verification: the emitted tokens are the target's own, for any tree.

    Where two tokens are so close that rounding may decide between them, `Scores.recompute` decides:
    it gives every lane the same numbers, whatever trees it drafts.
    """

    def verify(self, tree: DraftTree, scores: Scores, sampler: Sampler) -> Verdict:
        """Accept the longest path of tokens that the target chose, then emit its next choice."""
        numbers = sampler.noisy_scores(scores.logits, tree.shape.depth)
        chosen_there = highest.argmax(numbers)
        tokens, chosen = torch.stack((tree.tokens.to(chosen_there.device), chosen_there)).tolist()
        path = accepted_path(tree.shape, tokens, chosen)
        settled = 0
        while scores.recompute is not None and settled < len(path):
            close = sampler.near_ties(numbers[path[settled:]])
            if not any(close):
                break
            at = settled + close.index(True)
            again = scores.recompute(path[: at + 1])[None]
            chosen[path[at]] = int(sampler.noisy_scores(again, [at]).argmax())
            path = accepted_path(tree.shape, tokens, chosen)
            settled = at + 1
        return Verdict(path, [chosen[node] for node in path], relaxed=[False] * (len(path) - 1))


@dataclass(frozen=True)
class Branch:
    """One path from the root to a leaf; lists have one entry per drafted token, none for the root.

    Attributes:
        nodes: Node numbers.
        draft: Drafted tokens.
        target: The target's token at each place.
        signal: The verifier's number.
        free: True if neither token is one that must never be relaxed.
    """

    nodes: Sequence[int]
    draft: Sequence[int]
    target: Sequence[int]
    signal: Sequence[float]
    free: Sequence[bool]

    @property
    def matches(self) -> list[bool]:
        """Whether each drafted token equals the target's."""
        return [d == t for d, t in zip(self.draft, self.target)]


class RelaxedVerifier(Verifier):
    """Accepts the longest branch (the first of equals); subclasses define `may_differ`.

    Every branch is judged independently. End-of-sequence, special and placeholder tokens are never
    relaxed, whether drafted or chosen by the target.
    """

    def begin(self, start: LaneStart) -> None:
        vocabulary = start.vocabulary
        self._never = vocabulary.special | vocabulary.eos | set(vocabulary.banned)

    def verify(self, tree: DraftTree, scores: Scores, sampler: Sampler) -> Verdict:
        """Accept the longest branch, then emit the target's own token."""
        chosen, branches = self._branches(tree, scores, sampler)
        counts = [[*self.accepts(branch), False].index(False) for branch in branches]
        count = max(counts)
        branch = branches[counts.index(count)]
        path = [0, *branch.nodes[:count]]
        relaxed = [not exact for exact in branch.matches[:count]]
        return Verdict(
            path=path,
            tokens=[*branch.draft[:count], chosen[path[-1]]],
            relaxed=relaxed,
            notes={
                "relaxed_nodes": [n for n, r in zip(path[1:], relaxed) if r],
                **self.branch_notes(branch),
            },
        )

    @abstractmethod
    def acceptance_signal(self, scores: Scores, tree: DraftTree) -> Tensor:
        """Return the number [T] by which each drafted token is judged; the root's is not used."""

    def accepts(self, branch: Branch) -> list[bool]:
        """Return for every token of a branch whether it may stay if all before it stay."""
        may_differ = self.may_differ(branch)
        return [
            exact or (free and differs)
            for exact, free, differs in zip(branch.matches, branch.free, may_differ, strict=True)
        ]

    @abstractmethod
    def may_differ(self, branch: Branch) -> list[bool]:
        """Return for every token of a branch whether another than the target's may stay there."""

    @abstractmethod
    def branch_notes(self, branch: Branch) -> Mapping[str, Any]:
        """Return what to record about the accepted branch, as plain Python values."""

    def _branches(
        self, tree: DraftTree, scores: Scores, sampler: Sampler
    ) -> tuple[list[int], list[Branch]]:
        choice = sampler.choose(scores.logits, tree)
        # One host read for all three: ids stay exact in float32 below 2^24, above any vocabulary.
        table = torch.stack(
            [tree.tokens.float(), choice.float(), self.acceptance_signal(scores, tree).float()]
        ).tolist()
        tokens = [int(t) for t in table[0]]
        chosen = [int(t) for t in table[1]]
        branches = []
        for leaf, below in enumerate(tree.shape.children):
            if below:
                continue
            path = tree.shape.path(leaf)
            draft = [tokens[n] for n in path[1:]]
            target = [chosen[n] for n in path[:-1]]
            free = [d not in self._never and t not in self._never for d, t in zip(draft, target)]
            branches.append(Branch(path[1:], draft, target, [table[2][n] for n in path[1:]], free))
        return chosen, branches
