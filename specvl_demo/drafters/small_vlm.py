"""A small vision-language model as drafter, looking at the prompt through one or several views at once.

Given a VLM and views, keeps one sequence per view in one batch and drafts with a mixture of what they say.
Accepted rows stay in its cache: nothing is fed twice. Serves chains and trees. Knows no tree policy and no
acceptance rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specvl_demo.core.memory import behind
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import NOTHING, Capture, Drafted, Mixer, Scores, Start, Verdict, View
from specvl_demo.targets import followup
from specvl_demo.targets.stream import prefill
from specvl_demo.targets.vlm import VLM


class SmallVLM:
    """A `core.types.Drafter`.

    vlm: the drafting model; the target itself is allowed (self-speculation), it is never changed. views: at
    least one. mixer: needed for more than one view.
    """

    def __init__(self, vlm: VLM, views: Sequence[View], mixer: Mixer | None = None) -> None:
        if not views:
            raise ValueError("a small VLM needs at least one view of the prompt")
        if len(views) > 1 and mixer is None:
            raise ValueError(f"{len(views)} views need a mixture: {', '.join(view.name for view in views)}")
        self.name = vlm.name
        self.vlm, self._views, self._mixer = vlm, tuple(views), mixer
        self.capture: Capture = NOTHING
        for view in views:
            self.capture = self.capture.union(view.capture)

    def begin(self, start: Start) -> None:
        """Look at the prompt through every view, in one batched prefill of what is new to it."""
        encoded = start.encode(self.vlm)
        contexts = [view.see(encoded, self.vlm, start.prefill) for view in self._views]
        longest = max(context.ids.shape[0] for context in contexts)
        room = longest + start.max_new_tokens + start.max_nodes + 1
        before = start.before
        new = None if before is None else behind(before, encoded.scene, contexts)
        if new is None:
            self._stream, _, _ = prefill(self.vlm.decoder, contexts, room)
        else:
            x = torch.stack([context.embeds[-new:] for context in contexts])
            self._stream, _ = followup.grown(before.cache, room, longest - new, x)
        self._contexts, self._scene = contexts, encoded.scene
        self._seen = {context.name: context.index for context in contexts}
        self._words = {
            context.name: context.ids[(context.index < 0) & ~context.visual].tolist() for context in contexts
        }
        mine, device = self.vlm.decoder.vocab, self.vlm.decoder.device
        self._size = min(start.vocabulary.size, mine)
        self._banned = torch.tensor([i for i in start.vocabulary.banned if i < self._size], device=device)
        self._foreign = start.target_decoder.vocab > mine
        self._late: list[int] = []
        self._said: list[Tensor] = []
        if self._mixer is not None:
            self._mixer.begin(start, [context.name for context in contexts])

    def extend(self, tokens: Tensor, parents: Sequence[int] | Tensor) -> Tensor:
        """Log-probabilities [k, V] of the token after each fed node, mixed over the views."""
        decoder = self.vlm.decoder
        if not isinstance(parents, Tensor) and parents[0] < 0:
            if self._late:
                tokens = torch.cat((torch.tensor(self._late, device=tokens.device), tokens))
            hidden = self._stream.root(self._embed(tokens))[:, -1:]
            self._late, self._said = [], []
        else:
            hidden = self._stream.extend(self._embed(tokens), parents)
        logits = decoder.logits(hidden)[..., : self._size].float()
        if len(self._banned):
            logits.index_fill_(-1, self._banned, -torch.inf)
        said = logits.log_softmax(-1)
        self._said.append(said)
        return said[0] if self._mixer is None else self._mixer.mix(said)

    def commit(self, tree: DraftTree, verdict: Verdict, scores: Scores) -> None:
        """Keep the accepted rows; accepted tokens that were never fed are fed with the next root."""
        rows = fed_rows(tree, verdict.path)
        if not rows:
            # Nothing was drafted in this round, so not even its root was fed.
            self._late += [*tree.tokens[:1].tolist(), *verdict.tokens[:-1]]
            return
        n = len(rows)
        if self._mixer is not None:
            path = verdict.path[:n]
            logits = scores.logits[:n] if path[-1] == n - 1 else scores.logits[path]
            self._mixer.learn(self._at(rows), logits, verdict.tokens[:n])
        self._stream.keep(rows)
        self._late = verdict.tokens[n - 1 : -1]
        self._said = []

    def past(self, said: Tensor) -> Drafted:
        """The rows of all views, in a cache without room to spare."""
        stream = self._stream.fork(self._stream.length)
        rows = stream.length - max(len(context.ids) for context in self._contexts)
        return Drafted(self._contexts, said[:rows], self._scene, stream)

    def views(self, rows: Sequence[int]) -> Mapping[str, Tensor]:
        """Log-probabilities [len(rows), V] of every view at rows fed in this round."""
        return dict(zip(self._seen, self._at(rows), strict=True))

    def seen(self) -> Mapping[str, Tensor]:
        """Which prompt position every position of a view stands for."""
        return self._seen

    def words(self) -> Mapping[str, Sequence[int]]:
        """What stands in place of pictures, in the views that put something there."""
        return {view: ids for view, ids in self._words.items() if ids}

    def notes(self) -> Mapping[str, Any]:
        """The mixture's weights."""
        return {} if self._mixer is None else self._mixer.notes()

    def _embed(self, tokens: Tensor) -> Tensor:
        """[k] -> [m, k, D]"""
        if self._foreign:
            # The target may say an id this smaller vocabulary lacks; any row will do, the draft behind it is
            # lost.
            tokens = tokens.clamp_max(self.vlm.decoder.vocab - 1)
        return self.vlm.decoder.embed(tokens).expand(len(self._views), -1, -1)

    def _at(self, rows: Sequence[int]) -> Tensor:
        """Log-probabilities of the views [m, len(rows), V] at these rows."""
        said = torch.cat(self._said, dim=1)
        in_a_row = len(rows) > 0 and rows[-1] == len(rows) - 1
        return said[:, : len(rows)] if in_a_row else said[:, list(rows)]


def fed_rows(tree: DraftTree, path: Sequence[int]) -> list[int]:
    """Drafter rows of the accepted nodes, as far down the path as they were fed."""
    if tree.rows is None:
        return []
    rows = [tree.rows[node] for node in path]
    return rows[: rows.index(-1)] if -1 in rows else rows
