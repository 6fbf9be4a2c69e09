"""Adaptive draft length: a chain that grows after a full acceptance and shrinks after a rejection.

The rule is that of transformers' assisted generation (`num_assistant_tokens_schedule="heuristic"`),
after Leviathan et al. (arXiv 2211.17192); vLLM and SGLang adapt the length by similar rules.

ViSkip (MMSpec, arXiv 2603.14989) decides whether to draft at all: it takes a plain step where the
model looks at the picture (`visual_gate`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from specvl_demo.core.sampling import Sampler
from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Drafter, Policy, Scores, Start, Verdict
from specvl_demo.methods import base
from specvl_demo.methods.base import Method, Part, register
from specvl_demo.methods.chain import Chain, ChainSettings
from specvl_demo.methods.declare import Learn, PolicySettings, setting
from specvl_demo.methods.relevance import relevance, visual_states
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
    visual_gate: float = setting(
        1.0,
        "similarity of the last state to the picture's states from which a round does not draft; 1:"
        " every round drafts",
        -1.0,
        1.0,
    )
    visual_anchors: int = setting(
        10, "visual tokens over which that similarity is averaged", 1, 4096
    )


class AdaptiveChain(Policy):
    """Drafts `more` tokens more after a fully accepted round, else `fewer` tokens fewer."""

    def __init__(self, settings: AdaptiveSettings) -> None:
        self._settings = settings
        self.max_nodes = settings.most + 1
        self._length = min(settings.first, settings.most)
        self._visual: Tensor | None = None
        self._near: float | None = None

    def begin(self, start: Start) -> None:
        """Keep the picture's states if a gate is set."""
        if self._settings.visual_gate < 1.0 and bool(start.encoded.visual.any()):
            self._visual = visual_states(start)

    def observe(self, verdict: Verdict, scores: Scores) -> None:
        """Compare the last decided state with the picture's states.

        # choice: MMSpec's code sums the attention to visual tokens and skips above 0.35. Fused
        attention does not return it, so the cosine of last hidden states replaces it.
        """
        if self._visual is not None:
            last = scores.hidden[verdict.path[-1]][None]
            near = relevance(last, self._visual, self._settings.visual_anchors)
            self._near = round(float(near), 4)

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        notes = {} if self._near is None else {"near": self._near}
        if self._near is not None and self._near >= self._settings.visual_gate:
            return DraftTree(root, chain(0), notes={"length": 0, **notes})
        tree = Chain(ChainSettings(gamma=self._length)).propose(drafter, root, room, draws)
        return replace(tree, notes={"length": self._length, **notes})

    def update(self, tree: DraftTree, verdict: Verdict) -> None:
        """Adapt the length.

        # choice: a draft that was cut short, by the end of the answer, by a drafter with nothing to
        propose or by the gate, does not change the length unless some of it was rejected.
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
            [Series("notes.length", "length"), Series("notes.near", "similarity", "right")],
            "tokens",
            y_right="similarity to the picture",
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
            does="""How many tokens should be drafted? Too few waste verifications, too many waste
            drafts. Here the last round decides: two more after a full acceptance, one fewer after a
            rejection. Most engines that adapt the length use a rule like this.""",
            shines="""Answers with long easy and long hard stretches; pairs whose length was never
            tuned.""",
            struggles="""Certainty that changes from word to word: the last round then predicts
            little about the next. A floor on the drafter’s own probability reacts at once.""",
            look="The length follows acceptance with a delay of a few rounds.",
            formula=r"γ ← γ + 2 \text{  if all γ were accepted, else  } max ( 1 , γ − 1 )",
            aloud="gamma grows by two if all were accepted, otherwise it shrinks by one",
            url="https://huggingface.co/docs/transformers/generation_strategies",
        ),
    )
)
