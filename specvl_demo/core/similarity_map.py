"""Similarity of each token of an answer to each patch of a picture, by the target's hidden states.

Given a request and an answer, scores the answer once more as one chain. It works after any method
and is not charged to any lane. Knows visual positions; nothing of pictures.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specvl_demo.core.engine import SharedPrefill
from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import NOTHING

CHUNK = 64
"""Tokens scored at once, which bounds the memory for their logits."""


@torch.inference_mode()
def similarity_map(shared: SharedPrefill, ids: Sequence[int]) -> Tensor:
    """Return the cosine similarity of each token's last hidden state to each visual position's.

    Args:
        shared: The request's shared encodings; the pictures are not encoded again.
        ids: The answer.

    Returns:
        [len(ids), n_visual] uint8 on the CPU, scaled so that 0 and 255 are the extremes over the
            whole answer; [len(ids), 0] if the prompt has no visual tokens.
    """
    request = shared.request
    visual = request.prompt.visual
    if not ids or not bool(visual.any()):
        return torch.zeros(len(ids), 0, dtype=torch.uint8)
    prefill = shared.prefill(NOTHING)
    device = prefill.hidden.device
    seen = prefill.hidden[visual[: len(prefill.hidden)].to(device)]
    fed = torch.tensor([int(request.prompt.ids[-1]), *ids], device=device)
    session = request.target.open(prefill, len(fed), CHUNK)
    hidden = []
    for part in fed.split(CHUNK):
        hidden.append(session.score(DraftTree(part, chain(len(part) - 1))).hidden)
        session.commit(range(len(part)))
    own = torch.nn.functional.normalize(torch.cat(hidden)[1:].float(), dim=-1)
    likeness = own @ torch.nn.functional.normalize(seen.float(), dim=-1).T
    low, high = likeness.min(), likeness.max()
    return (255 * (likeness - low) / (high - low).clamp_min(1e-6)).round().byte().cpu()
