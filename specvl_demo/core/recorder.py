"""The record of a round: tokens with their text and origin, the tree, likely alternatives.

Given a scored tree and the accepted path, returns the parts of a Round. Probabilities are those
before temperature and cuts, but after penalties if there are any. Knows records and tensors; no
clocks, caches or rules.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specvl_demo.core import highest
from specvl_demo.core.detokenizer import Detokenizer, TokenTexts
from specvl_demo.core.transfer import take_rows, to_device
from specvl_demo.core.tree import DraftTree
from specvl_demo.core.types import Drafter, Scores, Verdict
from specvl_demo.records import LikelyToken, Origin, Token, Tree

TOP = 5
"""How many of the target's candidates are recorded for an emitted token."""

VIEW_TOP = 3
"""How many candidates are recorded for each view of the drafter."""


class ViewsAndAttention(NamedTuple):
    """What a drafter tells about the fed nodes of an accepted path.

    views: Log-probabilities [n, V] by view. looks: How it attends to the pictures, [n, visual
    positions], 255 at each node's most attended position; None without such an attention.
    """

    views: dict[str, Tensor]
    looks: Tensor | None = None


class Recorder:
    """Records one lane.

    Args:
        before: The prompt's last token.
        full: Also record candidates and the target's log-probabilities.
        stop: Strings that end the answer.
    """

    def __init__(
        self, token_texts: TokenTexts, before: int, full: bool, stop: Sequence[str]
    ) -> None:
        self._word = token_texts.display_text
        self._detokenizer = Detokenizer(token_texts, before, stop)
        self._full = full
        self._texts: list[str] = []

    @property
    def stopped(self) -> bool:
        """Whether the answer has reached a stop string."""
        return self._detokenizer.stopped

    def read_texts(self, emitted: Sequence[int], last: bool, first: int = 0) -> int:
        """Decode a round's tokens, and return how many of them remain up to a stop string.

        first: The number, from 1, of the first token that may complete one.
        """
        self._texts = []
        for i, token in enumerate(emitted, 1):
            ends = last and i == len(emitted)
            self._texts.append(self._detokenizer.decode_next(token, ends, i >= first))
            if self.stopped:
                break
        return len(self._texts)

    def read_drafter(
        self, drafter: Drafter, tree: DraftTree, path: Sequence[int], visual: Tensor
    ) -> ViewsAndAttention:
        """Ask the drafter about the path, before it commits.

        visual: [positions] bool, on the host.
        """
        fed = [row for node in path if tree.rows is not None and (row := tree.rows[node]) >= 0]
        if not self._full or not fed:
            return ViewsAndAttention({})
        views = dict(drafter.view_log_probs(fed))
        tokens = take_rows(tree.tokens, path[: len(fed)])
        weights = drafter.attention_to_prompt(fed, tokens) if bool(visual.any()) else None
        if weights is None:
            return ViewsAndAttention(views)
        places = visual[: weights.shape[1]].nonzero()[:, 0]
        rows = weights.index_select(1, to_device(places, weights.device))
        return ViewsAndAttention(
            views, (255 * rows / rows.amax(-1, keepdim=True).clamp_min(1e-9)).round()
        )

    def round_fields(
        self,
        tree: DraftTree,
        scores: Scores,
        verdict: Verdict,
        emitted: Sequence[int],
        asked: ViewsAndAttention,
        last: bool,
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return the fields of a Round except its times, and its note `attention` if there is one:
        a byte per visual position in base64 for each node. None if logits along the path are not
        finite. Everything the host needs of a round is read in one transfer.

        Args:
            emitted: Ids, the first of the verdict's or all of them.
            last: Whether the answer ends here.
        """
        # 1. All that the host needs of the round, on the device, in a fixed order.
        n = len(emitted)
        logits = scores.logits
        path = verdict.path[:n]
        tokens = tree.tokens.to(logits.device)
        tensors = [tokens, take_rows(logits, verdict.path).amax(-1).isfinite()]
        tensors += [] if tree.logp is None else [tree.logp]
        if self._full:
            logp = logits.log_softmax(-1, dtype=torch.float32)
            tensors.append(logp[tree.shape.parent_on(logits.device), tokens])
            tensors += _top_probabilities(take_rows(logp, path), TOP)
            for view in asked.views.values():
                tensors += _top_probabilities(view, VIEW_TOP)
            tensors += [] if asked.looks is None else [asked.looks]
        # 2. One transfer; what follows takes the numbers in that order.
        numbers = iter(_to_host(tensors))
        ids = [int(token) for token in next(numbers)]
        finite = all(next(numbers))
        if not finite:
            return None
        draft_logp: list[float | None] | None = None if tree.logp is None else [*next(numbers)]
        # 3. What only a full record has: the likeliest tokens along the path, of the target and of
        # each view (where the drafter was fed), and where the drafter looked.
        target_logp = candidates = views = None
        notes: dict[str, Any] = {}
        if self._full:
            target_logp = [None, *next(numbers)[1:]]
            candidates = [*self._candidates(next(numbers), next(numbers), n)]
            fed = [tree.rows is not None and tree.rows[node] >= 0 for node in path]
            views = {}
            for name in asked.views:
                rows = self._candidates(next(numbers), next(numbers), sum(fed))
                views[name] = [next(rows) if is_fed else [] for is_fed in fed]
            if asked.looks is not None:
                notes["attention"] = _attention_maps(next(numbers), fed)
        # 4. The texts of all nodes, and of what was emitted.
        words = [self._word(token) for token in ids]
        fields = {
            "tokens": self._tokens(verdict, emitted, last),
            "tree": Tree(ids, list(tree.shape.parent), words, draft_logp, target_logp),
            "path": verdict.path[: min(n, verdict.n_accepted) + 1],
            "candidates": candidates,
            "views": views or None,
        }
        return fields, notes

    def _tokens(self, verdict: Verdict, emitted: Sequence[int], last: bool) -> list[Token]:
        origins: list[Origin] = ["relaxed" if relaxed else "draft" for relaxed in verdict.relaxed]
        if not self._texts:
            self.read_texts(emitted, last)
        texts = self._texts
        self._texts = []
        return list(map(Token, emitted, texts, (*origins, "target")))

    def log_probabilities(
        self, emitted: Sequence[int], raw: Tensor, drawn: Tensor, k: int
    ) -> dict[str, list[Any]]:
        """Return the log-probabilities of the n emitted tokens, each followed by its place's k
        likeliest, as `ids`, `texts`, `before` and `after` of n × (1 + k) tokens.

        Args:
            raw: [n, V] the target's own logits: "before".
            drawn: [n, V] what tokens are chosen from, after penalties, temperature and cuts.
            k: At most V.
        """
        before, after = (logits.log_softmax(-1, dtype=torch.float32) for logits in (raw, drawn))
        written = to_device(emitted, before.device)[:, None]
        listed = torch.cat((written, highest.topk(before, min(k, before.shape[-1]))[1]), dim=1)
        ids = listed.flatten().tolist()
        numbers = [logp.gather(-1, listed).flatten().tolist() for logp in (before, after)]
        # JSON has no infinity: a token that was cut has no log-probability.
        lists = [[logp if math.isfinite(logp) else None for logp in some] for some in numbers]
        texts = list(map(self._word, ids))
        return {"ids": ids, "texts": texts, "before": lists[0], "after": lists[1]}

    def _candidates(
        self, ids: Sequence[float], probs: Sequence[float], n: int
    ) -> Iterator[list[LikelyToken]]:
        """Yield each of n rows' candidates with a probability above 0."""
        both = zip(ids, probs)
        for _ in range(n):
            row = islice(both, len(ids) // n)
            yield [LikelyToken(int(i), self._word(int(i)), prob) for i, prob in row if prob > 0]


def _top_probabilities(logp: Tensor, k: int) -> list[Tensor]:
    """Return ids and probabilities of the k likeliest tokens of log-probabilities [n, V]."""
    values, ids = highest.topk(logp, min(k, logp.shape[-1]))
    return [ids, values.exp()]


def _attention_maps(values: Sequence[float], fed: Sequence[bool]) -> list[str | None]:
    """Return each node's values, a byte each, in base64; None if it was not fed."""
    size = len(values) // sum(fed)
    rows = (bytes(map(int, values[i : i + size])) for i in range(0, len(values), size))
    return [b64encode(next(rows)).decode() if is_fed else None for is_fed in fed]


def _to_host(tensors: Sequence[Tensor]) -> list[list[float]]:
    """Read the tensors' numbers, flattened, in one transfer.

    float32 holds ids up to 2^24 exactly, and the probabilities are float32 already.
    """
    device = tensors[0].device
    flat = [tensor.flatten().to(device, torch.float32) for tensor in tensors]
    numbers = iter(torch.cat(flat).tolist())
    return [list(islice(numbers, len(part))) for part in flat]
