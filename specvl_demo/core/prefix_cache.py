"""Prefix caching: what a conversation's questions have in common is computed once.

A conversation holds one `PrefixCache`, and its prompts carry it. Models and drafters store entries
under their own keys and reuse as many leading rows as match the next prompt. An encoding is reused
if the next prompt shows the same pictures and continues with text only. The cache's owner keeps the
tensors alive.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from specvl_demo.core.types import Context, Decoder, Encoded, Prompt


class PrefixCache(dict[Hashable, Any]):
    """One conversation's entries by owner, each opaque to all others.

    warm: lanes (`Parts.key`) that have run in this conversation and need no warm-up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.warm: set[Hashable] = set()


PADDING = torch.iinfo(torch.int64).min
"""The key of a row of padding."""


def row_keys(contexts: Sequence[Context], answer: Tensor | None = None) -> Tensor:
    """Return [1 + axes, m, N] int64: key and positions of every row of m left-padded contexts.

    Rows whose keys are equal up to and including themselves hold equal keys and values.

    Args:
        contexts: m contexts.
        answer: [r] ids of text that follows in all of them.
    """
    size = max(len(context.ids) for context in contexts)
    more = 0 if answer is None else len(answer)
    axes = 1 if contexts[0].positions.ndim == 1 else contexts[0].positions.shape[0]
    keys = contexts[0].ids.new_full((1 + axes, len(contexts), size + more), PADDING)
    for row, context in enumerate(contexts):
        first = size - len(context.ids)
        keys[0, row, first:size] = context.ids if context.keys is None else context.keys
        keys[1:, row, first:size] = context.positions
        if answer is not None:
            keys[0, row, size:] = answer
            keys[1:, row, size:] = context.next_position + torch.arange(more, device=answer.device)
    return keys


def common(first: Tensor, second: Tensor) -> int:
    """Return how many leading columns of two key arrays [..., a] and [..., b] agree."""
    if first.shape[:-1] != second.shape[:-1]:
        return 0
    n = min(first.shape[-1], second.shape[-1])
    differ = (first[..., :n] != second[..., :n]).flatten(0, -2).any(0).nonzero()
    return int(differ[0]) if len(differ) else n


def new_columns(keys: Tensor, contexts: Sequence[Context]) -> int | None:
    """Return how many of the contexts' last columns follow rows with these keys, at least one.

    None if no columns are shared, or if the new ones include a picture.
    """
    size = max(len(context.ids) for context in contexts)
    new = size - min(common(keys, row_keys(contexts)), size - 1)
    text = all(new <= len(one.ids) and not bool(one.visual[-new:].any()) for one in contexts)
    return new if text and new < size else None


def continued(before: Encoded, prompt: Prompt, decoder: Decoder) -> Encoded | None:
    """Encode a prompt by extending an earlier encoding of the conversation with text.

    Returns None unless the prompt shows the same pictures at the same places, then only text.
    """
    start = int(before.visual.nonzero()[-1]) + 1 if bool(before.visual.any()) else 0
    ids, visual = prompt.ids.to(before.ids.device), prompt.visual.to(before.ids.device)
    tokens, positions = before.ids[start:], before.positions[..., start:]
    following = torch.arange(max(len(tokens), len(ids) - start), device=ids.device)
    first = positions[..., :1].amax()
    blocks, keys = before.blocks, before.keys
    same = (
        torch.equal(ids[:start], before.ids[:start])
        and not bool(visual[start:].any())
        and _same_pictures(before.prompt, prompt)
        # Families encode text differently: check the rule against this one's earlier encoding.
        and torch.equal(before.embeds[start:], decoder.embed(tokens))
        and torch.equal(positions, (first + following[: len(tokens)]).expand_as(positions))
        and (blocks is None or bool((blocks[start:] < 0).all()))
    )
    if not same or keys is None:
        return None
    text = ids[start:]
    after = (first + following[: len(text)]).expand(*positions.shape[:-1], -1)
    return replace(
        before,
        ids=ids,
        visual=visual,
        embeds=torch.cat((before.embeds[:start], decoder.embed(text))),
        positions=torch.cat((before.positions[..., :start], after), dim=-1),
        blocks=None if blocks is None else torch.cat((blocks[:start], torch.full_like(text, -1))),
        prompt=prompt,
        keys=torch.cat((keys[:start], text)),
    )


def _same_pictures(first: Prompt, second: Prompt) -> bool:
    """Whether two prompts have equal pixels and grids; inputs of one entry a token do not count."""

    def shown(prompt: Prompt) -> Mapping[str, Any]:
        text = (1, len(prompt))
        return {k: v for k, v in prompt.inputs.items() if getattr(v, "shape", None) != text}

    one, other = shown(first), shown(second)
    return one.keys() == other.keys() and all(
        torch.equal(value, other[key]) if isinstance(value, Tensor) else value == other[key]
        for key, value in one.items()
    )
