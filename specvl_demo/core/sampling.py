"""How the target chooses its token at every node of a tree, greedily or by sampling.

Given logits [T, V] and the tree they belong to. Sampling uses the Gumbel-max trick: the seed fixes
a noise value for every token at every answer position, and the token with the highest
log-probability plus noise is chosen. So a token depends on its position and its distribution, not
on the tree around it: with one seed a lossless method and AR give the same answer, also when
sampling. A drafter may be given the same noise: its drafts still depend on text and seed only.

Two distributions that differ by rounding, at a total variation ε, choose different tokens in at
most 2ε / (1 + ε) of all draws; no draw that does not know the other distribution does better (arXiv
2408.07978, § 3).

Biases, penalties and a minimum length change logits by what was written before them: a node's own
path, so that they change no answer by how it was drafted (`core/adjusted.py`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from specvl_demo.core import highest
from specvl_demo.core.noise import Noise
from specvl_demo.core.transfer import to_device
from specvl_demo.core.tree import DraftTree, GrownTree
from specvl_demo.options import NEW_TOKENS, Sampling

COUPLED = 0.85
"""Assumed probability that a token drafted with the target's own draw is the target's."""
NEAR_TIE_NATS = 5e-4
"""Lead, in the logits' unit, below which rounding in float32 may decide between two tokens. Over
2,400 tokens of the photo pair, logits of the likeliest fifty differed by at most 1e-4 between
passes of one row and of several.
"""


def warp_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return log-probabilities up to a constant [..., V] in float32, -inf for tokens that are cut.

    Applies temperature, top-k, top-p, min-p, as Hugging Face's `generate` does; greedy changes
    nothing. A
    rounding of ε moves a cut's edge over a token of probability m in about ε / m of all
    distributions, and that token is chosen in m of them: cuts add about ε to what rounding changes.
    """
    logits = logits.float()
    if sampling.greedy:
        return logits
    logits = (logits - logits.amax(-1, keepdim=True)) / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        least = highest.topk(logits, sampling.top_k)[0][..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.top_p < 1.0:
        ordered, ids = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1, dtype=torch.float64) - ordered
        outside = torch.zeros_like(before, dtype=torch.bool)
        outside.scatter_(-1, ids, before >= sampling.top_p)
        logits = logits.masked_fill(outside, -torch.inf)
    if sampling.min_p > 0.0:
        logits = logits.masked_fill(logits < math.log(sampling.min_p), -torch.inf)
    return logits


class Sampler:
    """One lane's choice of tokens.

    Every lane makes its own noise, so that no lane's clock profits from another's work.

    Attributes:
        level: The target's log-normaliser where it last scored, which the log-probabilities of a
            drafter lack to be logits like the target's, on which penalties depend.
    """

    def __init__(
        self,
        sampling: Sampling,
        device: torch.device,
        prompt: Sequence[int] = (),
        n_prefix: int = 0,
        ends: Iterable[int] = (),
    ) -> None:
        """prompt: Its ids, of which the last n_prefix begin the answer. ends: Ids that end it."""
        self.sampling, self.device = sampling, device
        self._emitted = n_prefix
        self._answer = list(prompt[len(prompt) - n_prefix :])
        self.level = torch.zeros((), device=device)
        if sampling.adjusts:
            least = NEW_TOKENS.high if sampling.ignore_eos else sampling.min_new_tokens
            self._first_end = n_prefix + least
            self._prompt, self._ends = {*prompt}, {*ends}
            self._changed: dict[int, tuple[Tensor, Tensor]] = {}
            """By the size of a vocabulary, until the answer goes on."""
        self._drafted: list[Tensor] = []
        self._noise = Noise(sampling.seed)

    def choose(self, logits: Tensor, tree: DraftTree) -> Tensor:
        """Return the target's token at every node: logits [T, V] -> ids [T].

        Nodes of one depth share their noise; a walk meets only one of them, chosen by the noise of
        earlier positions, so the answer's distribution is exact.
        """
        return highest.argmax(self.noisy_scores(logits, tree.shape.depth))

    def noisy_scores(self, logits: Tensor, depth: Sequence[int]) -> Tensor:
        """Return numbers [k, V] whose highest is chosen, for logits at nodes of these depths."""
        scores = warp_logits(logits, self.sampling)
        return scores if self.sampling.greedy else self._add_noise(scores, depth)

    def adjusted(self, logits: Tensor, tokens: Tensor, above: Tensor) -> Tensor:
        """Return logits [k, V] after bias, penalties and the minimum length, in float32.

        In the library's order: bias, then the repetition penalty over prompt and answer; then
        frequency and presence over the answer, as OpenAI defines them.

        Args:
            tokens: [m] drafted ids.
            above: [k, m] 1 where a row's logits come after a token, 0 elsewhere.
        """
        sampling = self.sampling
        size = logits.shape[-1]
        logits = logits.float()
        early = above.sum(-1, keepdim=True) + self._emitted < self._first_end
        # 1. The ids that anything is done to: known ones, then drafted ones, of which a smaller
        # vocabulary lacks some. What is done to an id depends on it alone, wherever it stands.
        listed, facts = self._changed_ids(size, logits.device)
        above = above.float() * (tokens < size)
        tokens = tokens.where(tokens < size, 0)
        ids = torch.cat((listed, tokens))
        facts = torch.cat((facts, facts @ (listed[:, None] == tokens).float()), 1)
        prompt, bias, ends, times = facts
        counts = times + above @ (tokens[:, None] == ids).float()
        # 2. Their logits, and no others: a vocabulary has a hundred times as many.
        places = ids.expand(len(logits), -1)
        changed = logits.gather(1, places) + bias
        penalty = sampling.repetition_penalty or 1.0
        repeated = torch.where(changed < 0, changed * penalty, changed / penalty)
        changed = torch.where(counts + prompt > 0, repeated, changed)
        changed = changed - sampling.frequency_penalty * counts
        changed = changed - sampling.presence_penalty * (counts > 0)
        changed = changed.masked_fill(early & (ends > 0), -torch.inf)
        return logits.scatter(1, places, changed)

    def _changed_ids(self, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the ids below `size` that anything is done to [n], and of each [4, n]: whether the
        prompt has it, its bias, whether it ends answers, how often the answer has it.
        """
        if size not in self._changed:
            times, bias = Counter(self._answer), self.sampling.logit_bias
            every = {0, *self._prompt, *bias, *self._ends, *times}
            ids = [each for each in every if each < size]
            facts = [
                (each in self._prompt, bias.get(each, 0), each in self._ends, times[each])
                for each in ids
            ]
            table = torch.tensor(facts, dtype=torch.float32).T.contiguous()
            self._changed[size] = to_device(ids, device), to_device(table, device)
        return self._changed[size]

    def near_ties(self, scores: Tensor) -> list[bool]:
        """Whether rounding may decide between the highest two of `scores` [k, V], for each row."""
        best, _ = highest.topk(scores, 2)
        lead = (best[:, 0] - best[:, 1]) * (self.sampling.temperature or 1.0)
        penalty = self.sampling.repetition_penalty or 1.0
        return (lead < NEAR_TIE_NATS * max(penalty, 1 / penalty)).tolist()

    def draft(self, logp: Tensor, depth: int) -> Tensor:
        """Draw the drafter's tokens with the target's noise: log-probabilities [k, V] -> ids [k].

        Must be called once for every `Drafter.extend`. depth: of the fed nodes below the root.
        """
        scores = warp_logits(logp, self.sampling)
        self._drafted.append(scores)
        return self._add_noise(scores, [depth] * len(scores)).argmax(-1)

    def describe_draws(
        self, logits: Tensor, tokens: Sequence[int], rows: Sequence[int]
    ) -> dict[str, list[float | None]]:
        """Return what the record keeps of the emitted tokens' draws.

        Both distributions are those after temperature and cuts.

        Args:
            logits: [n, V] the target's, where the tokens were chosen.
            tokens: The n emitted ids.
            rows: The drafter's rows there, -1 where it was not called.

        Returns:
            p: probability; q: draft probability; overlap: sum min(p, q), which bounds how often any
                draft can be the target's token; rival: the id that came second; gap: its distance
                in nats, noise included.

        Raises:
            ValueError: If `draft` was not called for one of these rows.
        """
        n = len(tokens)
        ids = torch.tensor(tokens, device=logits.device)[:, None]
        # 1. The target's side. The two best sums of score and noise are the token and its rival.
        fed = [i for i, row in enumerate(rows) if row >= 0]
        scores = warp_logits(logits, self.sampling)
        target = scores.softmax(-1)
        best = self._add_noise(scores, range(n)).topk(2)
        gaps = (-best.values.diff())[:, 0].tolist()
        rivals = best.indices[:, 1].tolist()
        facts: dict[str, list[float | None]] = {
            "p": target.gather(-1, ids)[:, 0].tolist(),
            "gap": [gap if math.isfinite(gap) else None for gap in gaps],
            "rival": [rival if math.isfinite(gap) else None for rival, gap in zip(rivals, gaps)],
            "q": [None] * n,
            "overlap": [None] * n,
        }
        # 2. The draft's side, where the drafter was fed.
        if self._drafted and fed:
            every = torch.cat(self._drafted)
            if max(rows) >= len(every):
                raise ValueError(
                    f"DraftTree.rows names row {max(rows)} of the drafter, but `draws.draft` was"
                    f" called for {len(every)} rows; call it once after every `extend`, even if"
                    " the draft then stops"
                )
            drafted = every[[rows[i] for i in fed]].to(ids.device).softmax(-1)
            # The drafter may know fewer ids than the target.
            drafted = F.pad(drafted, (0, target.shape[-1] - drafted.shape[-1]))
            q = drafted.gather(-1, ids[fed])[:, 0].tolist()
            overlap = torch.minimum(target[fed], drafted).sum(-1).tolist()
            for i, *there in zip(fed, q, overlap):
                facts["q"][i], facts["overlap"][i] = there
        return facts

    def advance(self, tokens: Sequence[int]) -> None:
        """Move on by these tokens of the answer."""
        self._emitted += len(tokens)
        self._answer += tokens
        if self.sampling.adjusts:
            self._changed.clear()
        self._drafted.clear()
        self._noise.drop_before(self._emitted)

    def _add_noise(self, scores: Tensor, depth: Sequence[int]) -> Tensor:
        """Add to scores [k, V] the noise of positions `depth` below the root, in float64."""
        at = [self._emitted + d for d in depth]
        return scores + self._noise.rows(at, scores.shape[-1], scores.device)


class Level(NamedTuple):
    """The k tokens to draft after each of n fed nodes, best first; all are [n, k].

    Attributes:
        scores: By which they are ordered: `logp`, unless tokens are drawn.
        places: Which of all tokens found after the drafter's rows the node itself is, where it
            chose what it fed.
        tree: What it chose of them, where it did (`Growth.nodes`).
    """

    tokens: Tensor
    logp: Tensor
    scores: Tensor
    places: Tensor | None = None
    tree: GrownTree | None = None

    def read(self) -> list[list[list[Any]]]:
        """Return the parts' numbers, from a GPU in one transfer: float64 holds ids exactly."""
        parts = [part for part in self[:4] if part is not None]
        if self.tokens.device.type == "cpu":
            return [part.tolist() for part in parts]
        tokens, *others = torch.stack([part.double() for part in parts]).tolist()
        return [[[int(token) for token in row] for row in tokens], *others]


def top_k(logp: Tensor, k: int, draws: Sampler | None, depth: int) -> Level:
    """Return the k tokens to draft after n fed nodes with log-probabilities [n, V].

    Without draws these are the likeliest, scored by log-probability. With draws
    the coupled token comes first: it is the target's with a probability near Σ min(p, q); the
    others share the rest in proportion to q. # choice: that probability is taken as COUPLED for the
    scores, which only decide what a full tree keeps.
    """
    k = min(k, logp.shape[-1])
    if draws is None:
        likeliest, ids = highest.topk(logp, k)
        return Level(ids, likeliest, likeliest)
    coupled = draws.draft(logp, depth)[:, None]
    logp_coupled = logp.gather(-1, coupled)
    if k == 1:
        return Level(coupled, logp_coupled, torch.full_like(logp_coupled, math.log(COUPLED)))
    left, others = highest.topk(logp.scatter(-1, coupled, -torch.inf), k - 1)
    rest = torch.log1p(-logp_coupled.exp().clamp_max(1 - 1e-6)) - math.log1p(-COUPLED)
    scores = torch.cat((torch.full_like(logp_coupled, math.log(COUPLED)), left - rest), -1)
    ids = torch.cat((coupled, others), -1)
    values = torch.cat((logp_coupled, left), -1)
    return Level(ids, values, scores)
