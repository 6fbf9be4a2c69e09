"""Lookup where the text repeats itself, any drafter elsewhere (SAM-Decoding, Hu et al., arXiv
2411.10666, §4.3).

A policy: it searches the text itself and calls the drafter only if no match is long enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specvl_demo.core.sampling import Sampler
from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Drafter, Policy, Start, Verdict
from specvl_demo.methods import base
from specvl_demo.methods.base import Method, Part, register
from specvl_demo.methods.chain import TUNED, Chain, ChainSettings
from specvl_demo.methods.declare import Learn, setting
from specvl_demo.methods.small_vlm import SMALL
from specvl_demo.methods.suffix import Automaton
from specvl_demo.methods.views import MULTIMODAL
from specvl_demo.records import Chart, Series


@dataclass(frozen=True)
class HybridSettings(ChainSettings):
    """When a match is long enough, and how far it is followed."""

    enough: int = setting(5, "shortest match that is followed, in tokens", 1, 64)
    copied: int = setting(8, "maximum tokens drafted from a match", 1, 64)


class LookupFirst(Policy):
    """Drafts what most often followed the longest repeated ending if that is long enough, else a
    chain of the drafter.

    In a round of lookup the drafter is not called; it reads the accepted tokens with its next root.
    """

    def __init__(self, settings: HybridSettings) -> None:
        self._settings = settings
        self._chain = Chain(settings)
        self.max_nodes = 1 + max(settings.gamma, settings.copied)

    def begin(self, start: Start) -> None:
        """Read the prompt."""
        self._text = Automaton(start.vocabulary)
        self._text.add(start.prompt.ids.tolist())

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        state, matched = self._text.match()
        tokens, logps = [int(root)], [0.0]
        if matched >= self._settings.enough:
            while len(tokens) <= min(self._settings.copied, room):
                state, after = self._text.followers(state)
                if not after:
                    break
                token = max(after, key=lambda token: after[token])
                tokens.append(token)
                logps.append(math.log(after[token] / sum(after.values())))
                state = self._text.after(state, token)
        if len(tokens) == 1:
            tree = self._chain.propose(drafter, root, room, draws)
            return replace(tree, notes={"matched": matched, "copied": 0})
        return DraftTree(
            torch.tensor(tokens, device=root.device),
            chain(len(tokens) - 1),
            logp=torch.tensor(logps, device=root.device),
            notes={"matched": matched, "copied": len(tokens) - 1},
        )

    def update(self, tree: DraftTree, verdict: Verdict) -> None:
        self._text.add(verdict.tokens)


LOOKUP_FIRST = Part(
    "policy",
    "lookup-first",
    "lookup where the text repeats itself, else a chain",
    LookupFirst,
    HybridSettings,
    needs=base.CHAIN,
    label=lambda settings: f"lookup or chain of {settings.gamma}",
    charts=(
        Chart(
            "copied",
            "Match and copy",
            "How long the match with earlier text is, and how much of it was drafted: 0 where the"
            " drafter was used instead.",
            "steps",
            [Series("notes.matched", "matched"), Series("notes.copied", "copied")],
            "tokens",
            shade="accepted",
        ),
    ),
)

register(
    Method(
        "hybrid",
        "Lookup or drafter",
        "Where the text repeats itself, it is copied at no cost; elsewhere the drafter is used.",
        drafter=SMALL,
        views=(MULTIMODAL,),
        policy=LOOKUP_FIRST,
        # Any drafter is allowed.
        options=None,
        reference="Hu et al., arXiv 2411.10666",
        order=113,
        presets={
            # A match longer than five tokens; the paper's drafter is EAGLE-2.
            "paper": {"enough": 6, "copied": 16},
            **TUNED,
        },
        learn=Learn(
            does="""Two drafters: one that costs nothing and one that computes. If the last tokens
            occurred before in the same order, what followed then is drafted and the drafter does
            not run; otherwise it drafts as usual.""",
            shines="""Documents, lists, second turns: much of them is quoted, and the rest is still
            drafted.""",
            struggles="""Answers that never repeat five tokens: it is then no faster than its
            drafter. A wrong copy costs a round that the drafter might have used better.""",
            look="Rounds that copied something, and how much of it was accepted.",
            formula=r"\text{draft} = \text{copy if match} ≥ l , \text{else the drafter’s}",
            aloud="copy if the match has at least l tokens, otherwise use the drafter",
            url="https://arxiv.org/abs/2411.10666",
        ),
    )
)
