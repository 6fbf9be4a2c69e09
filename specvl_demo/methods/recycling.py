"""Token Recycling (Luo et al., arXiv 2408.08696): drafts the target's earlier candidates after a
token.

A table of candidates for every token is filled from the logits of every verified tree; a fixed tree
is read from it. No model; knows only token ids and logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import NoDrafter, Scores, Start, Verdict
from specvl_demo.methods.base import TREE, Method, Part, register
from specvl_demo.methods.chain import CHAIN
from specvl_demo.methods.declare import Learn, Settings, setting
from specvl_demo.methods.eagle2 import BEST_FIRST
from specvl_demo.methods.tree import STATIC_TREE
from specvl_demo.records import Chart, Series


@dataclass(frozen=True)
class RecyclingSettings(Settings):
    """How much of every distribution is kept."""

    keep: int = setting(8, "likeliest next tokens kept for every token", 1, 64)


class Recycling(NoDrafter):
    """Proposes after a token what the target last found likely after it.

    # choice: the paper ranks candidates without weights; the target's own log-probabilities are
    kept with them, so that other tree policies can use them too.

    # choice: every answer begins with an empty table. The paper keeps it across questions, which on
    a page come from other visitors, and reads the prompt's logits, which are not computed here.
    """

    name = "token recycling"

    def __init__(self, settings: RecyclingSettings) -> None:
        self._keep = settings.keep

    def begin(self, start: Start) -> None:
        """Start with an empty table."""
        self._size, self._banned = start.vocabulary.size, list(start.vocabulary.banned)
        self._rows: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, tokens: Tensor, parents: Sequence[int] | Tensor) -> Tensor | None:
        """Return log-probabilities [k, V] of the kept candidates; None if all tokens are new."""
        known = [self._rows.get(token) for token in tokens.tolist()]
        if not any(known):
            return None
        # A new token among known ones must still have a distribution.
        log_probs = torch.full((len(known), self._size), -torch.inf, device=tokens.device)
        for row, kept in zip(log_probs, known, strict=True):
            if kept is None:
                row.zero_()
                row[self._banned] = -torch.inf
            else:
                row[kept[1]] = kept[0]
        return log_probs.log_softmax(-1)

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        """Keep the candidates after every node, also rejected ones; the latest count (eq. 2)."""
        logits = scores.logits[:, : self._size].float()
        if self._banned:
            logits = logits.index_fill(1, torch.tensor(self._banned, device=logits.device), -1e9)
        top = logits.topk(min(self._keep, logits.shape[-1]), dim=-1)
        for token, *kept in zip(tree.tokens.tolist(), top.values, top.indices, strict=True):
            self._rows[token] = (kept[0], kept[1])

    def notes(self) -> Mapping[str, Any]:
        """Return `known`: how many tokens the table has candidates for."""
        return {"known": len(self._rows)}


RECYCLING = Part(
    "drafter",
    "recycling",
    "table of the target's candidates",
    lambda models, views, mixer, settings: Recycling(settings),
    RecyclingSettings,
    gives=TREE,
    charts=(
        Chart(
            "known",
            "Tokens in the table",
            "How many tokens the table has candidates for, and how many each round accepted.",
            "lines",
            [Series("notes.known", "known")],
            "tokens",
            shade="accepted",
        ),
    ),
)

register(
    Method(
        "recycling",
        "Token Recycling",
        "No model: drafts what the target found likely the last time a token occurred.",
        drafter=RECYCLING,
        policy=STATIC_TREE,
        options=(CHAIN, BEST_FIRST, "greedy-tree"),
        reference="Luo et al., arXiv 2408.08696",
        order=112,
        presets={"photo": {"tree_nodes": 5, "keep": 4}, "pocket": {"tree_nodes": 9, "keep": 4}},
        learn=Learn(
            does="""In every step the target computes not one token but how likely all of them are;
            what is not taken is thrown away. Here the likeliest few after each token are kept in a
            table, including those after rejected drafts. When the token comes again, a tree of
            candidates is read from the table: no drafter is needed, and no phrase has to
            repeat.""",
            shines="Long answers: the table fills as the text is written.",
            struggles="""Short answers, which leave the table nearly empty; words whose successor
            depends on more than one word.""",
            look="Acceptance rises as the table fills.",
            formula=r"M_t = \text{top k of } p ( · | … t )",
            aloud="the table's row of token t is the top k of the target's distribution after t",
            url="https://arxiv.org/abs/2408.08696",
        ),
    )
)
