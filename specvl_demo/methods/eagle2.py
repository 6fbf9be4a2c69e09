"""EAGLE-2 (Li et al., arXiv 2406.16858): one layer on the target's features, a best-first tree."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specvl_demo.core.sampling import Sampler, best
from specvl_demo.core.tree import DraftTree, chain, shape_of
from specvl_demo.core.types import Decoder, Drafter, Policy
from specvl_demo.methods.base import TREE, Method, Part, register
from specvl_demo.methods.chain import CHAIN
from specvl_demo.methods.declare import Learn, PolicySettings, setting
from specvl_demo.methods.heads.checkpoints import Format, Head, add_format, columns
from specvl_demo.methods.heads.features import FeatureHead, head_part
from specvl_demo.methods.heads.shapes import FIRST
from specvl_demo.methods.tree import STATIC_TREE


@dataclass(frozen=True)
class BestFirstSettings(PolicySettings):
    """`nodes` counts the root, `loops` the levels below the first: at most loops + 1 levels."""

    nodes: int = setting(60, "nodes of the tree, including the root", 2, 1025, title="tree nodes")
    width: int = setting(
        10,
        "nodes expanded per level, and likeliest tokens taken after each",
        1,
        64,
        title="branches per level",
    )
    loops: int = setting(5, "levels below the first", 0, 64, title="tree levels")

    def __post_init__(self) -> None:
        super().__post_init__()
        candidates = self.width + self.loops * self.width * self.width
        if self.nodes - 1 > candidates:
            raise ValueError(
                f"a tree of {self.nodes} nodes needs more candidates than the {candidates} that"
                f" width {self.width} and {self.loops} loops make"
            )


class BestFirst(Policy):
    """EAGLE-2's dynamic tree (arXiv 2406.16858 §4): expand by level, keep the best nodes overall.

    Every level feeds the `width` nodes with the highest cumulative log-probability and takes the
    `width` likeliest tokens after each; in the end the `nodes - 1` candidates with the highest
    cumulative log-probability form the tree.
    """

    def __init__(self, settings: BestFirstSettings) -> None:
        self.nodes, self.width, self.loops = settings.nodes, settings.width, settings.loops
        self.max_nodes, self.max_fed = self.nodes, 1 + self.loops * self.width

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        """Draft a tree at most min(loops + 1, room) deep."""
        log_probs = drafter.extend(root, (-1,)) if room else None
        if log_probs is None:
            return DraftTree(root, chain(0), rows=(-1,))
        width = min(self.width, log_probs.shape[-1])
        score, logp, token = (x.flatten() for x in best(log_probs, width, draws, 0))
        # Candidates of all levels, flat: token, log-probability, cumulative log-probability. Every
        # fed node, by its flat number (-1: the root), has `width` of them.
        tokens, logps, scores = [token], [logp], [score]
        fed = [torch.full_like(token[:1], -1)]
        born = torch.arange(width, device=token.device)
        above, row = torch.zeros_like(born), 0
        for depth in range(1, min(self.loops + 1, room)):
            log_probs = drafter.extend(token, above)
            if log_probs is None:
                break
            fed.append(born)
            own, logp, wide = best(log_probs, width, draws, depth)
            cumulative = (own + score[:, None]).flatten()
            tokens.append(wide.flatten())
            logps.append(logp.flatten())
            scores.append(cumulative)
            score, chosen = cumulative.topk(width)
            token = tokens[-1][chosen]
            above = row + 1 + chosen // width
            born = chosen + (width + row * width)
            row += width
        return self._select(root, *map(torch.cat, (tokens, logps, scores, fed)))

    def _select(
        self, root: Tensor, tokens: Tensor, logps: Tensor, scores: Tensor, fed: Tensor
    ) -> DraftTree:
        """Return the tree of the best candidates overall, parents first.

        fed: Flat number of every drafter row, -1 for the root.
        """
        # A child's score is never above its parent's, and the stable sort prefers the earlier in a
        # tie: a chosen node's parent is always chosen.
        order = scores.sort(descending=True, stable=True).indices[: self.nodes - 1]
        # Impossible ones go after the others, and are dropped when the host knows their number.
        order = torch.where(scores[order].isfinite(), order, len(scores)).sort().values
        chosen = order.clamp_max(len(scores) - 1)
        above = fed[chosen // (len(scores) // len(fed))]
        # The places of the parents among the chosen, counted after the root.
        parent = torch.searchsorted(order, above, right=True)
        row_of = torch.full((len(scores),), -1, device=order.device)
        row_of[fed[1:]] = torch.arange(1, len(fed), device=order.device)
        listed = torch.stack((order, parent, row_of[chosen])).tolist()
        n = sum(number < len(scores) for number in listed[0])
        return DraftTree(
            torch.cat((root.to(tokens.device), tokens[chosen[:n]])),
            shape_of((-1, *listed[1][:n])),
            logp=torch.cat((torch.zeros_like(logps[:1]), logps[chosen[:n]])),
            rows=(0, *listed[2][:n]),
        )


class Eagle2Head(FeatureHead):
    """An EAGLE-2 head, which sees text and visual rows alike."""

    def __init__(self, head: Head, decoder: Decoder) -> None:
        super().__init__(head, decoder)
        self._chain = self._plain_chain()


add_format(
    Format(
        "eagle2",
        "an EAGLE-2 head",
        Eagle2Head,
        lambda tensors: columns(tensors) == 2 and "img_fc.weight" not in tensors,
        {**FIRST, "fc.weight": "D 2D"},
    )
)

EAGLE2 = head_part("eagle2", "EAGLE-2 head")
BEST_FIRST = Part(
    "policy",
    "best-first",
    "a tree of the likeliest paths",
    BestFirst,
    BestFirstSettings,
    needs=TREE,
    label=lambda settings: f"best-first tree of {settings.nodes}",
)

register(
    Method(
        "eagle2",
        "EAGLE-2",
        "One layer predicts the target’s next features from its last; the likeliest paths form a"
        " tree.",
        drafter=EAGLE2,
        policy=BEST_FIRST,
        reference="Li et al., arXiv 2406.16858",
        options=(CHAIN, STATIC_TREE, "entropy-tree"),
        presets={
            # Depth 6 with the first level, as in the paper.
            "paper": {"nodes": 60, "width": 10, "loops": 5},
            "photo": {"policy": "chain", "gamma": 10, "floor": 0.1},
            "pocket": {"policy": "chain", "gamma": 8},
            "pocket-tree": {"nodes": 12, "width": 3, "loops": 5},
        },
        order=80,
        learn=Learn(
            does="""The drafter is a single layer that continues the target’s own hidden states,
            which hold more than words do. Its tree grows where it is most confident: at each level
            the likeliest paths are expanded, and in the end the best nodes overall are kept.""",
            shines="""Pairs with a trained head: it reads what the target has computed, for the
            price of one layer.""",
            struggles="""Texts unlike its training data; deep trees, whose last levels are seldom
            kept.""",
            look="""Acceptance stays high at greater depth than with a small model. With a preset
            that draws trees, their shape follows the text.""",
            formula=r"V ( node ) = \sum_{\text{path}} log q",
            aloud="a node’s value is the sum of log-probabilities along its path",
            url="https://arxiv.org/abs/2406.16858",
        ),
    )
)
