"""LVSpec (Ji et al., arXiv 2604.05650): tokens that are hardly about the picture need not match.

Not lossless. Relevance is measured in the target's own last hidden states (section 3).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import normalize

from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import LaneStart, Scores
from specvl_demo.core.verification import Branch, RelaxedVerifier
from specvl_demo.methods import base
from specvl_demo.methods.base import STRICT, Method, Part, register
from specvl_demo.methods.declare import Lesson, Settings, Value, setting
from specvl_demo.methods.policies import CHAIN
from specvl_demo.methods.small_vlm import SELF, SMALL
from specvl_demo.methods.views import MULTIMODAL, PRUNED
from specvl_demo.records import Chart, ChartSeries


@dataclass(frozen=True)
class LvspecSettings(Settings):
    """Which tokens of a branch may differ."""

    loose: float = setting(
        0.7,
        "λ: share of a draft, least visual tokens first, that need not match",
        0.0,
        1.0,
        title="loosened share λ",
    )
    anchors: int = setting(
        10,
        "N: number of most similar visual tokens whose mean is a token's relevance",
        1,
        4096,
        title="visual tokens compared N",
    )
    shift: bool = setting(
        True,
        "also keep a token if the target's own occurs elsewhere in the draft (section 3.3)",
        title="position shift",
    )


class VisualVerifier(RelaxedVerifier):
    """The drafted tokens least related to the picture need not match; the others must."""

    def __init__(self, settings: LvspecSettings) -> None:
        self.settings = settings

    def begin(self, start: LaneStart) -> None:
        """Keep the last hidden states at visual positions, normed [v, D] (H_V, eq. 7)."""
        super().begin(start)
        hidden = start.prefill.hidden
        self._visual = normalize(hidden[start.encoded.visual[: len(hidden)]].float(), dim=-1)

    def acceptance_signal(self, scores: Scores, tree: DraftTree) -> Tensor:
        """Return the relevance A [T]: mean of the N largest cosines with visual positions (eq. 8).

        The hidden state is the one at the position whose input is the drafted token.
        """
        if not len(self._visual):
            return scores.hidden.new_zeros(len(tree))
        cosine = normalize(scores.hidden.float(), dim=-1) @ self._visual.T
        n = min(self.settings.anchors, len(self._visual))
        return cosine.topk(n, dim=-1).values.mean(-1)

    def may_differ(self, branch: Branch) -> list[bool]:
        """Allow mismatches at the least relevant tokens, and (shift) those whose target token
        occurs elsewhere in the branch (eq. 11).

        # choice: without a picture there is no relevance, so everything is strict.
        """
        if not len(self._visual):
            return [False] * len(branch.nodes)
        loosened = least_relevant_places(branch.signal, self.settings.loose)
        elsewhere = set(branch.draft) if self.settings.shift else set()
        return [i in loosened or token in elsewhere for i, token in enumerate(branch.target)]

    def branch_notes(self, branch: Branch) -> Mapping[str, Any]:
        """Return the relevance of the branch's tokens, the loosened nodes and their highest one."""
        if not len(self._visual):
            return {"strict": "the prompt shows no picture, so every token must match"}
        loosened = sorted(least_relevant_places(branch.signal, self.settings.loose))
        return {
            "nodes": list(branch.nodes),
            "relevance": [round(value, 4) for value in branch.signal],
            "loosened": [branch.nodes[i] for i in loosened],
            "cut": round(max(branch.signal[i] for i in loosened), 4) if loosened else None,
        }


def least_relevant_places(relevance: Sequence[float], loose: float) -> Collection[int]:
    """Return the places of the λ·K least relevant of K tokens (eq. 9).

    # choice: λ·K is rounded down, with K the branch's real length; ties go to the earlier token.
    """
    order = sorted(range(len(relevance)), key=lambda i: relevance[i])
    return set(order[: math.floor(loose * len(relevance) + 1e-6)])


VISUAL = Part(
    "verifier",
    "visual",
    "visual-semantic loose verification",
    VisualVerifier,
    LvspecSettings,
    needs=base.CHAIN,
    lossless=False,
    greedy_only=True,
    charts=(
        Chart(
            "relevance",
            "Visual relevance of drafted tokens",
            "How closely each drafted token is related to the picture; the least relevant ones"
            " may be relaxed.",
            "points",
            [
                ChartSeries(
                    "notes.relevance",
                    "must match",
                    nodes="notes.nodes",
                    mark="notes.loosened",
                    marked="may be relaxed",
                ),
                ChartSeries("notes.cut", "λ's cut"),
            ],
            "cosine similarity",
        ),
    ),
    notes={"relevance": "visual relevance", "cut": "λ’s cut"},
)
_SHIPPED: dict[str, Value] = {"loose": 0.3, "anchors": 5, "drop_image": 0.5, "drop_video": 0.5}
"""What the presets of both shipped pairs have in common."""

register(
    Method(
        "lvspec",
        "LVSpec",
        "Tokens that have little to do with the picture need not match: longer rounds, but not"
        " lossless.",
        drafter=SMALL,
        views=(PRUNED,),
        policy=CHAIN,
        verifier=VISUAL,
        reference="Ji et al., arXiv 2604.05650",
        defaults={"gamma": 10, "drop_image": 0.9, "drop_video": 0.9},
        options=(SELF, MULTIMODAL, STRICT),
        presets={
            "paper": {},
            "paper-3b": {"loose": 0.3, "anchors": 5},
            "paper-no-shift": {"shift": False},
            "paper-self": {"drafter": "self"},
            "photo": {**_SHIPPED, "gamma": 12, "floor": 0.03},
            "pocket": {**_SHIPPED, "gamma": 10},
        },
        preset_titles={
            "paper-3b": "the paper, 3B drafter",
            "paper-no-shift": "the paper, no position shift",
            "paper-self": "the paper, self-drafting",
        },
        order=60,
        listed="paper",
        url="https://arxiv.org/abs/2604.05650",
        learn=Lesson(
            does="""Most words of a description have little to do with the picture: “there is”, “at
            the”. Those need not match exactly. LVSpec, made for Video-LLMs, measures for each
            drafted token how similar the target’s state at it is to the picture’s states, and lets
            the least visual ones pass. It also tolerates position shifts: a token is kept if the
            target’s own stands elsewhere in the draft. The answer may differ from the target’s; the
            abstract claims over 99.8 % of the target’s performance.""",
            look="""Relevance of every drafted token, with λ’s threshold: colours, shapes and places
            should lie above it, “there” and “is” below. Relaxed tokens are marked in the text and
            counted.""",
            formula=r"A_k = \frac{1}{N} \sum_{\text{top N}} cos ( h_k , v_j )",
            aloud="""The relevance A of the drafted token k is the mean of the N largest cosines
            between the target’s state h at it and its states v at the patches j of the picture.""",
        ),
    )
)
