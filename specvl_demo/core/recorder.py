"""What a round leaves behind: tokens with their text and origin, the tree, likely alternatives.

Given a scored tree and what was kept of it, gives the parts of a Round. Probabilities are the
models' own, before temperature and cuts. Knows records and tensors; nothing of clocks, caches or
rules of acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class Recorder:
    """One lane's. before: the prompt's last token. full: candidates and target log-probabilities
    too.
    """

    def __init__(self, token_texts: TokenTexts, before: int, full: bool) -> None:
        self._word = token_texts.word
        self._detokenizer = Detokenizer(token_texts, before)
        self._full = full

    def ask(
        self, drafter: Drafter, tree: DraftTree, path: Sequence[int]
    ) -> dict[str, Alternatives] | None:
        """What the drafter's views held likely along the path, nothing where a node was not fed; to
        be asked before the drafter commits. ValueError where the tree names rows that the drafter
        was not asked about.
        """
        if not self._full or tree.rows is None:
            return None
        rows = [tree.rows[node] for node in path]
        fed = [row for row in rows if row >= 0]
        views: dict[str, Alternatives] = {}
        for view, logp in drafter.views(fed).items() if fed else ():
            if len(logp) < len(fed):
                raise ValueError(
                    f"DraftTree.rows names {len(fed)} rows of the drafter's along the accepted"
                    f" path; it was asked about {len(logp)} of them. A node that was not fed has"
                    " row -1"
                )
            likely = iter(self._likeliest(logp, VIEW_TOP))
            views[view] = [next(likely) if row >= 0 else [] for row in rows]
        return views or None

    def write(
        self,
        tree: DraftTree,
        scores: Scores,
        verdict: Verdict,
        kept: Sequence[int],
        said: dict[str, Alternatives] | None,
        last: bool,
    ) -> Written:
        """kept: the emitted ids, the verdict's or the first of them. said: what `ask` gave. last:
        the answer ends here.
        """
        n, logits = len(kept), scores.logits
        tokens = tree.tokens.to(logits.device)
        ids = tokens.tolist()
        draft_logp = None if tree.logp is None else tree.logp.tolist()
        target_logp = candidates = None
        if self._full:
            logp = logits.log_softmax(-1, dtype=torch.float32)
            target_logp = [None, *logp[tree.shape.parent_on(logits.device), tokens][1:].tolist()]
            candidates = self._likeliest(logp[verdict.path[:n]], TOP)
        drawn = Tree(
            ids, list(tree.shape.parent), list(map(self._word, ids)), draft_logp, target_logp
        )
        path = verdict.path[: min(n, verdict.n_accepted) + 1]
        return Written(self._tokens(verdict, kept, last), drawn, path, candidates, said)

    def _tokens(self, verdict: Verdict, kept: Sequence[int], last: bool) -> list[Token]:
        origins: list[Origin] = ["relaxed" if relaxed else "draft" for relaxed in verdict.relaxed]
        end = len(kept) - 1
        return [
            Token(token, self._detokenizer.say(token, last=last and i == end), origin)
            for i, (token, origin) in enumerate(zip(kept, (*origins, "target"), strict=False))
        ]

    def _likeliest(self, logp: Tensor, k: int) -> Alternatives:
        """The k likeliest tokens of every row of log-probabilities [n, V]."""
        top = logp.topk(min(k, logp.shape[-1]), dim=-1)
        return [
            [
                Candidate(i, self._word(i), prob)
                for i, prob in zip(ids, probs, strict=True)
                if prob > 0
            ]
            for ids, probs in zip(top.indices.tolist(), top.values.exp().tolist(), strict=True)
        ]
