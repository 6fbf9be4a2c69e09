"""Adaptive draft length: a chain that grows after a full acceptance and shrinks after a rejection.

The rule is that of transformers' assisted generation (`num_assistant_tokens_schedule="heuristic"`),
after Leviathan et al. (arXiv 2211.17192); vLLM and SGLang adapt the length by similar rules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from specvl_demo.core.sampling import Sampler
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Drafter, Policy, Verdict
from specvl_demo.methods import base
from specvl_demo.methods.base import Method, Part, register
from specvl_demo.methods.chain import Chain, ChainSettings
from specvl_demo.methods.declare import Learn, PolicySettings, setting
from specvl_demo.methods.small_vlm import SMALL
from specvl_demo.methods.views import MULTIMODAL
from specvl_demo.records import Chart, Series


@dataclass(frozen=True)
class AdaptiveSettings(PolicySettings):
    """The initial length, how it changes, and its maximum."""

    first: int = setting(5, "tokens drafted in the first round", 1, 64)
    most: int = setting(20, "maximum tokens drafted in a row", 1, 64)
    more: int = setting(2, "tokens added after a chain was fully accepted", 0, 16)
    fewer: int = setting(1, "tokens removed after a rejection", 0, 16)


class AdaptiveChain(Policy):
    """Drafts `more` tokens more after a fully accepted round, else `fewer` tokens fewer."""

    def __init__(self, settings: AdaptiveSettings) -> None:
        self._settings = settings
        self.max_nodes = settings.most + 1
        self._length = min(settings.first, settings.most)

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        tree = Chain(ChainSettings(gamma=self._length)).propose(drafter, root, room, draws)
        return replace(tree, notes={"length": self._length})

    def update(self, tree: DraftTree, verdict: Verdict) -> None:
        """Adapt the length.

        # choice: a draft that was cut short, by the end of the answer or by a drafter with nothing
        to propose, does not change the length unless some of it was rejected.
        """
        if verdict.n_accepted < len(tree) - 1:
            self._length = max(1, self._length - self._settings.fewer)
        elif verdict.n_accepted == self._length:
            self._length = min(self._settings.most, self._length + self._settings.more)


ADAPTIVE_CHAIN = Part(
    "policy",
    "adaptive-chain",
    "a chain as long as the last rounds allow",
    AdaptiveChain,
    AdaptiveSettings,
    needs=base.CHAIN,
    label=lambda settings: f"chain of 1 to {settings.most}",
    charts=(
        Chart(
            "length",
            "Length of the draft",
            "How many tokens each round planned to draft, and how many it accepted.",
            "steps",
            [Series("notes.length", "length")],
            "tokens",
            shade="accepted",
        ),
    ),
)

register(
    Method(
        "adaptive",
        "Adaptive chain",
        "A chain that grows after a full acceptance and shrinks after a rejection.",
        drafter=SMALL,
        views=(MULTIMODAL,),
        policy=ADAPTIVE_CHAIN,
        reference="transformers' assisted generation; Leviathan et al., arXiv 2211.17192",
        order=12,
        presets={
            "transformers": {"first": 20, "most": 64, "more": 2, "fewer": 1},
            "photo": {"first": 6, "most": 14},
            "pocket": {"first": 8, "most": 16},
        },
        learn=Learn(
            does=(
                "How many tokens should be drafted? Too few waste verifications, too many waste"
                " drafts. Here the last round decides: two more after a full acceptance, one"
                " fewer after a rejection. Most engines that adapt the length use a rule like"
                " this."
            ),
            shines=(
                "Answers with long easy and long hard stretches; pairs whose length was never"
                " tuned."
            ),
            struggles=(
                "Certainty that changes from word to word: the last round then predicts little"
                " about the next. A floor on the drafter’s own probability reacts at once."
            ),
            look="The length follows acceptance with a delay of a few rounds.",
            formula=r"γ ← γ + 2 \text{  if all γ were accepted, else  } max ( 1 , γ − 1 )",
            aloud="gamma grows by two if all were accepted, otherwise it shrinks by one",
            url="https://huggingface.co/docs/transformers/generation_strategies",
        ),
    )
)
