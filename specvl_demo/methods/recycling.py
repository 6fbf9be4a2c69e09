"""Token Recycling (Luo et al., arXiv 2408.08696): what the target held likely after a token is
drafted when that token comes again.

A table of candidates for every token, filled from the logits of every verified tree; a fixed tree
is read from it. No model; knows token ids and logits only.
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

    keep: int = setting(8, "likeliest tokens kept after every token", 1, 64)


class Recycling(NoDrafter):
    """Says after a token what the target last held likely after it.

    # choice: the paper ranks candidates without weights; the target's own log-probabilities are
    kept beside them, so that trees of other policies can weigh them too.
    # choice: every answer begins with an empty table. The paper carries it over from other
    questions, which on a page are other visitors', and reads the prompt's logits, which are not
    computed here.
    """

    name = "token recycling"

    def __init__(self, settings: RecyclingSettings) -> None:
        self._keep = settings.keep

    def begin(self, start: Start) -> None:
        """An empty table."""
        self._size, self._banned = start.vocabulary.size, list(start.vocabulary.banned)
        self._rows: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, tokens: Tensor, parents: Sequence[int] | Tensor) -> Tensor | None:
        """Log-probabilities [k, V] of the kept candidates; None where all of these tokens are
        new.
        """
        known = [self._rows.get(token) for token in tokens.tolist()]
        if not any(known):
            return None
        # A token that is new among known ones must still have a distribution.
        said = torch.full((len(known), self._size), -torch.inf, device=tokens.device)
        for row, kept in zip(said, known, strict=True):
            if kept is None:
                row.zero_()
                row[self._banned] = -torch.inf
            else:
                row[kept[1]] = kept[0]
        return said.log_softmax(-1)

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        """Keep the candidates after every node, the refused ones too; of equal tokens the last
        counts (its eq. 2).
        """
        logits = scores.logits[:, : self._size].float()
        if self._banned:
            logits = logits.index_fill(1, torch.tensor(self._banned, device=logits.device), -1e9)
        top = logits.topk(min(self._keep, logits.shape[-1]), dim=-1)
        for token, *kept in zip(tree.tokens.tolist(), top.values, top.indices, strict=True):
            self._rows[token] = (kept[0], kept[1])

    def notes(self) -> Mapping[str, Any]:
        """`known`: tokens that the table has candidates for."""
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
            "How many tokens the table has candidates for, over how many each round accepted.",
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
        "No model: what the target once held likely after a token is drafted after it again.",
        drafter=RECYCLING,
        policy=STATIC_TREE,
        options=(CHAIN, BEST_FIRST, "greedy-tree"),
        reference="Luo et al., arXiv 2408.08696",
        order=112,
        presets={"photo": {"tree_nodes": 5, "keep": 4}, "pocket": {"tree_nodes": 9, "keep": 4}},
        learn=Learn(
            does=(
                "In every step the target says not one token but how likely all are; what is not"
                " taken is thrown away. Here the likeliest few after each token are kept in a"
                " table, also those of refused drafts, and when the token comes again a tree of"
                " candidates is read off the table: no drafter, and no need for whole phrases to"
                " repeat."
            ),
            shines="Long answers: the table fills while the text is written.",
            struggles=(
                "Short answers, whose table is nearly empty; and words whose successor depends on"
                " more than one word."
            ),
            look="Acceptance rises as the table fills.",
            formula=r"M_t = \text{top k of } p ( · | … t )",
            aloud="the table's row of token t is the top k of the target's distribution after t",
            url="https://arxiv.org/abs/2408.08696",
        ),
    )
)
