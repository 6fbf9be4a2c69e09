"""Many conversations with a target at once: questions are fed, answers are its own, greedy.

Given a loaded VLM and scripts, keeps one sequence per conversation in one batch and never reads a token
twice: where an answer ends, the next question is fed on the same cache while other rows still speak. Knows no
scenes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specvl_demo.core.types import Context, Decoder
from specvl_demo.targets.stream import prefill
from specvl_demo.targets.vlm import VLM


@dataclass(frozen=True)
class Script:
    """What one conversation will be asked.

    context: everything before the last token of the first prompt; asked: for every turn the ids that lead to
    its answer, for the first one only that last token.
    """

    context: Context
    asked: Sequence[Sequence[int]]


@torch.inference_mode()
def converse(vlm: VLM, scripts: Sequence[Script], most: int) -> list[list[list[int]]]:
    """The answers by conversation and turn, as ids without the end of sequence, at most `most` each.

    An answer that is cut is ended in the sequence all the same, as if the target had stopped there.
    """
    decoder, end = vlm.decoder, min(vlm.vocabulary.eos)
    rows = [_Row(script, end, most) for script in scripts]
    longest = max(script.context.ids.shape[0] for script in scripts)
    room = longest + max(row.most_steps for row in rows) + 1
    stream, _, _ = prefill(decoder, [script.context for script in scripts], room)
    feed = torch.tensor([row.first for row in rows], device=decoder.device)
    banned = list(vlm.vocabulary.banned)
    while not all(row.done for row in rows):
        logits = decoder.logits(stream.root(decoder.embed(feed)[:, None])[:, -1])
        stream.keep([0])
        logits[:, banned] = -torch.inf
        said = logits.argmax(-1).tolist()
        feed = torch.tensor(
            [row.next(token) for row, token in zip(rows, said, strict=True)], device=feed.device
        )
    return [row.answers for row in rows]


class _Row:
    """Where one conversation is: what is still to be fed, and what was said."""

    def __init__(self, script: Script, end: int, most: int) -> None:
        self.first = script.asked[0][-1]
        self.answers: list[list[int]] = [[]]
        self.done = False
        self._turns = deque(script.asked[1:])
        self._fed: deque[int] = deque()
        self._end, self._most = end, most
        self.most_steps = sum(map(len, script.asked)) + len(script.asked) * (most + 1)

    def next(self, said: int) -> int:
        """The token to feed after the one before, for which the target says `said`."""
        if self._fed:
            return self._fed.popleft()
        if self.done:
            return self._end
        if said != self._end and len(self.answers[-1]) < self._most:
            self.answers[-1].append(said)
            return said
        if self._turns:
            self._fed.extend(self._turns.popleft())
            self.answers.append([])
        else:
            self.done = True
        return self._end


def context_of(decoder: Decoder, ids: Sequence[int], visual: Tensor, is_visual: int) -> Context:
    """Embedded prompt ids with projected visual tokens [v, D] where `is_visual` stands; one position axis."""
    at = torch.tensor(list(ids), device=decoder.device)
    shown = at == is_visual
    embeds = decoder.embed(at).clone()
    embeds[shown] = visual.to(embeds)
    places = torch.arange(len(at), device=at.device)
    return Context("script", at, shown, embeds, places, len(at), places)
