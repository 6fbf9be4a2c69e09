"""How closely hidden states are related to the picture. Given states only; knows no method."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import normalize

from specvl_demo.core.types import Start


def visual_states(start: Start) -> Tensor:
    """Unit vectors of the target's last hidden states at the prompt's visual positions [v, D]."""
    visual = start.encoded.visual[: len(start.prefill.hidden)]
    return normalize(start.prefill.hidden[visual].float(), dim=-1)


def relevance(hidden: Tensor, visual: Tensor, anchors: int) -> Tensor:
    """Mean of the N largest cosines of states [k, D] with `visual_states` [v, D] -> [k].

    Source: arXiv 2604.05650, eq. 8.
    """
    cosine = normalize(hidden.float(), dim=-1) @ visual.T
    return cosine.topk(min(anchors, len(visual)), dim=-1).values.mean(-1)
