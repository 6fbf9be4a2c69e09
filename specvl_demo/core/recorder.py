"""What a round leaves behind: tokens with their text and origin, the tree, likely alternatives.

Given a scored tree and what was kept of it, gives the parts of a Round. Everything that lies on the device is
put into one tensor and read at once. Knows records and tensors; nothing of clocks, caches or rules of
acceptance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from specvl_demo.core.detokenizer import Detokenizer, TokenTexts
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Drafter, Scores, Verdict
from specvl_demo.records import Candidate, Origin, Token, Tree

TOP = 5
"""How many candidates of the target are recorded for an emitted token."""

VIEW_TOP = 3
"""The same for every view of the drafter."""

Alternatives = list[list[Candidate]]


class Written(NamedTuple):
    """The fields of a Round that say what happened, without its seconds."""

    tokens: list[Token]
    tree: Tree
    path: list[int]
    candidates: Alternatives | None
    views: dict[str, Alternatives] | None


class Said(NamedTuple):
    """What a drafter's views said along a path, still on the device: log-probabilities [m, fed, V], and for
    every node of the path whether it was fed.
    """

    views: tuple[str, ...]
    logp: Tensor
    fed: tuple[bool, ...]


class Recorder:
    """One lane's. before: the prompt's last token. full: candidates and target log-probabilities too."""

    def __init__(self, lexicon: TokenTexts, before: int, full: bool) -> None:
        self._word = lexicon.word
        self._speaker = Detokenizer(lexicon, before)
        self._full = full

    def ask(self, drafter: Drafter, tree: DraftTree, path: Sequence[int]) -> Said | None:
        """What the drafter's views held likely along the path; to be asked before the drafter commits."""
        if not self._full or tree.rows is None:
            return None
        rows = [tree.rows[node] for node in path]
        fed = [row for row in rows if row >= 0]
        said = drafter.views(fed) if fed else {}
        if not said:
            return None
        return Said(tuple(said), torch.stack(tuple(said.values())), tuple(row >= 0 for row in rows))

    def write(
        self,
        tree: DraftTree,
        scores: Scores,
        verdict: Verdict,
        kept: Sequence[int],
        said: Said | None,
        last: bool,
    ) -> Written:
        """kept: the emitted ids, the verdict's or the first of them. last: the answer ends here."""
        n, size = len(kept), len(tree)
        numbers = iter(_on_device(tree, scores, verdict.path[:n], said, self._full).tolist())
        ids = [int(i) for i in islice(numbers, size)]
        draft_logp = list(islice(numbers, size)) if tree.logp is not None else None
        target_logp = candidates = None
        if self._full:
            target_logp = [None, *islice(numbers, 1, size)]
            candidates = self._alternatives(numbers, n, min(TOP, scores.logits.shape[-1]))
        views = None if said is None else self._views(numbers, said)
        drawn = Tree(ids, list(tree.shape.parent), list(map(self._word, ids)), draft_logp, target_logp)
        path = verdict.path[: min(n, verdict.n_accepted) + 1]
        return Written(self._tokens(verdict, kept, last), drawn, path, candidates, views)

    def _tokens(self, verdict: Verdict, kept: Sequence[int], last: bool) -> list[Token]:
        origins: list[Origin] = ["relaxed" if relaxed else "draft" for relaxed in verdict.relaxed]
        end = len(kept) - 1
        return [
            Token(token, self._speaker.say(token, last=last and i == end), origin)
            for i, (token, origin) in enumerate(zip(kept, (*origins, "target"), strict=False))
        ]

    def _views(self, numbers: Iterator[float], said: Said) -> dict[str, Alternatives]:
        top = min(VIEW_TOP, said.logp.shape[-1])
        lists = iter(self._alternatives(numbers, said.logp.shape[0] * said.logp.shape[1], top))
        return {view: [next(lists) if fed else [] for fed in said.fed] for view in said.views}

    def _alternatives(self, numbers: Iterator[float], n: int, top: int) -> Alternatives:
        """n lists of `top` candidates from all ids, then all probabilities."""
        ids = [int(i) for i in islice(numbers, n * top)]
        words = list(map(self._word, ids))
        flat = list(map(Candidate, ids, words, islice(numbers, n * top)))
        return [[c for c in flat[i : i + top] if c.prob > 0] for i in range(0, n * top, top)]


def _on_device(tree: DraftTree, scores: Scores, path: Sequence[int], said: Said | None, full: bool) -> Tensor:
    """One flat tensor: token ids [T], draft log-probabilities [T] if any; in full also the target's, of every
    node after its parent [T], the likeliest tokens along the path and their probabilities, and the views'.

    Ids are exact in float32 below 2^24. Probabilities are the models' own, before temperature and cuts.
    """
    logits = scores.logits
    tokens = tree.tokens.to(logits.device)
    parts = [tokens]
    if tree.logp is not None:
        parts.append(tree.logp.to(logits.device))
    if full:
        logp = logits.log_softmax(-1, dtype=torch.float32)
        parts.append(logp[tree.shape.parent_on(logits.device), tokens])
        n = len(path)
        in_a_row = path[-1] == n - 1
        along = logp[:n] if in_a_row else logp[torch.tensor(path, device=logits.device)]
        parts += _top(along, TOP)
    if said is not None:
        parts += [part.to(logits.device) for part in _top(said.logp, VIEW_TOP)]
    return torch.cat([part.float() for part in parts])


def _top(logp: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k likeliest of every row, all ids and all probabilities, flat."""
    top = logp.topk(min(k, logp.shape[-1]), dim=-1)
    return top.indices.flatten(), top.values.exp().flatten()
