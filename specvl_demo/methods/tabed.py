"""TABED (Lee et al., arXiv 2601.20357): one drafter's views, mixed by learned weights.

The mixture learns from what the target has just verified. From the views' log-probabilities [m, p,
V] and the target's logits [p, V] at the p verified positions of a round, it updates running sums on
the device (no distributions, no host reads) and the next round's weights (section 5, appendix B).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from specvl_demo.core import highest
from specvl_demo.core.sampling import warp_logits
from specvl_demo.core.transfer import HostCopy
from specvl_demo.core.types import LaneStart
from specvl_demo.decoders.layer_stack import weigh_mixtures
from specvl_demo.methods.base import TREE, Method, Part, register
from specvl_demo.methods.declare import Lesson, Settings, setting
from specvl_demo.methods.policies import (
    BEST_FIRST,
    CHAIN,
    STATIC_TREE,
    BestFirst,
    BestFirstSettings,
    DepthSettings,
)
from specvl_demo.methods.small_vlm import SELF, SMALL, Mixer
from specvl_demo.methods.views import CAPTION, MULTIMODAL, POOLED, PRUNED, TEXT_ONLY
from specvl_demo.records import Chart, ChartSeries

GRID_STEPS = 10
"""Steps into which a weight is divided (TABED B.2)."""
_LIKELY, _RIVALS = 64, 8
"""How many of the target's likeliest tokens a mixture's error is summed over, and how many tokens
of each view can outrank the target's own.
"""


@dataclass(frozen=True)
class MixtureSettings(Settings):
    """How weights are computed from the verified positions."""

    weights: str = setting(
        "w-grid",
        "how weights are found: search a grid, inverse divergence, or equal weights",
        choices={"w-grid": "grid search", "kld": "inverse KL", "uniform": "equal"},
        title="weight rule",
    )


def weight_grid(views: int) -> Tensor:
    """Return all weights `[G, views]` in {0, 0.1, …, 1} that sum to 1 (TABED B.2).

    Ordered as nested loops with view 0 outermost: from no weight for it to all.
    """
    # A vector is given by where views - 1 bars stand among as many steps.
    last = GRID_STEPS + views - 1
    bars = torch.tensor([(-1, *bar, last) for bar in combinations(range(last), views - 1)])
    return (bars.diff() - 1).float() / GRID_STEPS


def divergence(target: Tensor, draft: Tensor) -> Tensor:
    """Return KL(target ‖ draft) in nats over the last dimension (target first: section 5.1)."""
    error = torch.xlogy(target, target).sum(-1) - (target * _safe_log(draft)).sum(-1)
    # Rounding can make the divergence of two equal distributions slightly negative.
    return error.clamp_min(0)


class Mixture(Mixer):
    """Learns the weights `[m]` of m views from their history (TABED: equal, without any).

    The history is the sum, over all verified positions, of whether a mixture's likeliest token was
    the target's, and of its error [2, G], for G vectors of weights; those of single views, if the
    rule is not the grid's.
    """

    def __init__(self, settings: MixtureSettings) -> None:
        self.settings = settings
        self._counted = 0

    def begin(self, start: LaneStart, views: Sequence[str]) -> None:
        super().begin(start, views)
        self._sampling = start.sampling
        self._by_grid = self.settings.weights == "w-grid"
        grid = weight_grid(len(views)) if self._by_grid else torch.eye(len(views))
        self.grid = grid.to(self.weights.device)
        self._sums = self.grid.new_zeros(2, len(grid))
        # Where the grid gives all weight to one view, in the order of views.
        self._alone = self.grid.argmax(0)
        self._set_weights(self.weights)

    def update(self, logp: Tensor, logits: Tensor, tokens: Sequence[int]) -> None:
        """Add a round's verified positions and compute the next round's weights.

        # choice: positions are the accepted ones and the first mismatch. The token after a fully
        accepted block has no draft distribution; after a mismatch, the drafted context is void.
        """
        if not tokens:
            return
        self._counted += len(tokens)
        # choice: the distribution that the target samples from, after temperature and cuts (as in
        # the reference).
        logits = warp_logits(logits[:, : logp.shape[-1]], self._sampling)
        weights, statistics = None, self._view_statistics
        if self._by_grid:
            weights = weigh_mixtures(self._sums, self.grid, logp, logits, _LIKELY, _RIVALS)
            statistics = self._grid_statistics
        if weights is None:
            self._sums += torch.stack(statistics(logp.transpose(0, 1), logits.softmax(-1))).sum(1)
            weights = self._solve_weights()
        self._set_weights(weights)

    def _set_weights(self, weights: Tensor) -> None:
        self.weights = weights
        self._last_figures = HostCopy(torch.cat((weights, self._sums[0, self._alone])))

    def round_notes(self) -> Mapping[str, Any]:
        """Return this round's `weights` by view, and how often each was right, of `counted`."""
        m = len(self.views)
        weights, counts = self._last_figures[:m], self._last_figures[m:]
        notes = {"weights": dict(zip(self.views, weights)), "counted": self._counted}
        if self._counted:
            notes["matches"] = dict(zip(self.views, map(int, counts)))
        return notes

    def _view_statistics(self, logp: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return by position and view [p, m] whether it was right, and its divergence if needed.

        # choice: a view is right if it predicts the target's likeliest token. The reference
        compares single views with emitted tokens. Under greedy decoding this is the same, and
        otherwise a relaxed verifier cannot reward a view for its own mistakes.
        """
        drafted = logp.exp()
        matches = (drafted.argmax(-1) == target.argmax(-1, keepdim=True)).float()
        if self.settings.weights == "uniform":
            return matches, matches
        return matches, divergence(target[:, None], drafted)

    def _grid_statistics(self, logp: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return by position and weight vector [p, G] whether the mixture predicts the target's
        token, and its error, which omits the target's own entropy: that is the same for all.

        # choice: the error is summed only over the target's likeliest tokens, and only each view's
        likeliest other tokens can outrank the target's token. Over the whole vocabulary, this took
        longer than everything else outside the forwards.
        """
        size = target.shape[-1]
        weight, likely = highest.topk(target, min(_LIKELY, size))
        _, rivals = highest.topk(logp.flatten(0, 1), min(_RIVALS, size))
        ids = torch.cat((likely, rivals.view(len(target), -1)), dim=1).unsqueeze(1)
        mixed = self.grid @ logp.gather(-1, ids.expand(-1, len(self.views), -1)).exp_()
        # The target's own token is the first of its likeliest, and may be a rival besides, which
        # some processors' products round differently.
        counts = (mixed[..., 0] >= mixed.amax(-1) * (1 - 1e-6)).float()
        logp_of_likely = _safe_log(mixed[..., : weight.shape[-1]])
        # Rounding can make it slightly negative.
        return counts, -torch.einsum("pgl,pl->pg", logp_of_likely, weight).clamp_max(0)

    def _solve_weights(self) -> Tensor:
        """Return weights `[m]` from the sums, by the rule in the settings."""
        counts, errors = self._sums
        if self.settings.weights == "uniform":
            return self.weights
        if self.settings.weights == "kld":
            # choice: the published code normalises the inverse errors; the paper prints their
            # softmax. A view without any error gets a huge finite weight, as in that code.
            raw = errors.reciprocal().clamp_max(1e11)
            return raw / raw.sum()
        # The vector with most matches; ties go to the least divergence, then to the first vector
        # (the reference's objective), which has the least weight on view 0. Ties up to rounding.
        error = errors.masked_fill(counts < counts.max(), torch.inf)
        return self.grid[(error <= error.min() * (1 + 1e-6)).int().argmax()]


def _safe_log(probabilities: Tensor) -> Tensor:
    """Return logarithms; a probability that underflowed to 0 counts as the smallest float."""
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log_()


@dataclass(frozen=True)
class BeamSettings(DepthSettings):
    """`gamma` is the number of levels."""

    beams: int = setting(2, "nodes per level", 1, 15, title="branches kept a level")


def beam_policy(settings: BeamSettings) -> BestFirst:
    """Make a tree `gamma` deep with about `beams` nodes per level (section 6.1).

    # choice: the paper gives a width d but no shape; here the d likeliest nodes of every level are
    expanded and the gamma * d likeliest paths stay, so that width 1 is the chain.
    """
    nodes = 1 + settings.gamma * settings.beams
    return BestFirst(BestFirstSettings(nodes=nodes, width=settings.beams, loops=settings.gamma - 1))


MIXTURE = Part(
    "mixture",
    "mixture",
    "a mixture weighted by recent accuracy",
    Mixture,
    MixtureSettings,
    charts=(
        Chart(
            "weights",
            "Ensemble weights",
            "The weight of each view of the drafter, learned from what the target has just"
            " verified. Above an accepted word is the colour of the view that gave it most of its"
            " probability.",
            "steps",
            [ChartSeries("notes.weights", "weight")],
            "weight",
            (0.0, 1.0),
            shade="accepted",
            tint="views",
        ),
        Chart(
            "matches",
            "Who was right",
            "Positions so far at which each view’s likeliest token was the target’s.",
            "lines",
            [ChartSeries("notes.matches", "matches")],
            "positions",
        ),
    ),
    notes={"weights": "weights", "matches": "right so far", "counted": "positions counted"},
)
BEAM = Part("policy", "beam", "a tree of even width", beam_policy, BeamSettings, needs=TREE)

_MTCP = "multimodal+text-only+caption+pooled"

register(
    Method(
        "tabed",
        "TABED",
        "One small model drafts through several views of the prompt; views that were right count"
        " more.",
        drafter=SMALL,
        views=(MULTIMODAL, TEXT_ONLY),
        policy=CHAIN,
        reference="Lee et al., arXiv 2601.20357",
        options=(SELF, CAPTION, POOLED, PRUNED, MIXTURE, BEAM, STATIC_TREE, BEST_FIRST),
        presets={
            "paper": {},
            "paper-mtcp": {"views": _MTCP, "weights": "kld"},
            "paper-tree-2": {"policy": "beam", "beams": 2},
            "paper-tree-3": {"policy": "beam", "beams": 3},
            "photo": {"gamma": 10, "floor": 0.08},
            "pocket": {"gamma": 7},
            "pocket-mtcp": {"gamma": 8, "views": _MTCP, "weights": "kld"},
        },
        preset_titles={
            "paper-mtcp": "the paper, four views",
            "paper-tree-2": "the paper, tree of width 2",
            "paper-tree-3": "the paper, tree of width 3",
            "pocket-mtcp": "tuned on the pocket pair, four views",
        },
        order=40,
        listed="paper",
        offered=3,
        url="https://arxiv.org/abs/2601.20357",
        learn=Lesson(
            does="""A small model that sees the picture is sometimes worse than the same model
            without it, and which one helps may change within an answer. TABED drafts with all views
            in one batch, mixes their probabilities, and learns from every verified token how much
            each view should count.""",
            look="""The weights over the rounds, with the accepted drafts behind them. Both views
            begin with half; then come the weights that would have been right most often so far. In
            “A garden” and “A paintbrush” these are the picture’s alone, to the end: the shipped
            drafters were taught with pictures, and guess worse without them (“Who was right”).
            The rule “inverse KL” gives the other view a share too.""",
            formula=r"q = \sum_i w_i q^{( i )}",
            aloud="""The drafter’s probabilities q are those of its views i, mixed with weights w.
            These are the weights that would have guessed most of the target’s tokens so far. Where
            several would have, the nearest to the target’s probabilities are taken.""",
        ),
    )
)
