"""A follow-up question without a second look: what is known of the pictures, and new text behind it.

Given a model's encoding of the conversation so far and the next prompt, gives that prompt's encoding without
running the vision tower. Holds only where it can be seen to: anything else is None, and the caller computes
afresh.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from specvl_demo.core.types import Encoded, Prompt
from specvl_demo.decoders.backend import Backend


def continued(before: Encoded, prompt: Prompt, decoder: Backend) -> Encoded | None:
    """The prompt's encoding, where it shows the same pictures at the same places and then only text."""
    start = int(before.visual.nonzero()[-1]) + 1 if bool(before.visual.any()) else 0
    ids, visual = prompt.ids.to(before.ids.device), prompt.visual.to(before.ids.device)
    told, positions = before.ids[start:], before.positions[..., start:]
    following = torch.arange(max(len(told), len(ids) - start), device=ids.device)
    first = positions[..., :1].amax()
    same = (
        before.keys is not None
        and torch.equal(ids[:start], before.ids[:start])
        and not bool(visual[start:].any())
        and same_pictures(before.prompt, prompt)
        # Families differ in what they do to text: hold the rule against what this one did last time.
        and torch.equal(before.embeds[start:], decoder.embed(told))
        and torch.equal(positions, (first + following[: len(told)]).expand_as(positions))
        and (before.blocks is None or bool((before.blocks[start:] < 0).all()))
    )
    if not same:
        return None
    text = ids[start:]
    blocks = before.blocks
    if blocks is not None:
        blocks = torch.cat((blocks[:start], torch.full_like(text, -1)))
    shape = (*before.positions.shape[:-1], len(text))
    return Encoded(
        ids=ids,
        visual=visual,
        embeds=torch.cat((before.embeds[:start], decoder.embed(text))),
        positions=torch.cat(
            (before.positions[..., :start], (first + following[: len(text)]).expand(shape)), dim=-1
        ),
        features=before.features,
        blocks=blocks,
        deepstack=before.deepstack,
        prompt=prompt,
        keys=torch.cat((before.keys[:start], text)),
    )


def same_pictures(first: Prompt, second: Prompt) -> bool:
    """Whether two prompts give a model the same pixels and grids; what has an entry a token is left out."""

    def shown(prompt: Prompt) -> Mapping[str, Any]:
        text = (1, len(prompt))
        return {k: v for k, v in prompt.inputs.items() if getattr(v, "shape", None) != text}

    one, other = shown(first), shown(second)
    return one.keys() == other.keys() and all(
        torch.equal(value, other[key]) if isinstance(value, Tensor) else value == other[key]
        for key, value in one.items()
    )
