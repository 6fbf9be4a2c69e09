"""SAGE's tree policy: deep and narrow where the drafter is sure, shallow and wide where it is not.

Given a drafter and the last decided token, gives a DraftTree shaped by an earlier round's confidence
and how much was accepted lately. The formulas stand in `entropy_tree`; here they meet a drafter.
Source: SAGE (arXiv 2602.00523), Algorithm 1 and section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specvl_demo.core.entropy_tree import (
    DepthFeedback,
    Plan,
    TreeLimits,
    confidence,
    plan,
    template,
)
from specvl_demo.core.policies import EAGLE_TREE, RankedTree, static_tree
from specvl_demo.core.tree import DraftTree, chain, shape_of
from specvl_demo.core.types import Drafter, Verdict

GROWTHS = ("template", "online")
SOURCES = ("root", "accepted", "mean")
ORDERS = ("best-first", "depth-first")
FIRSTS = ("static", "entropy")
START_ALPHA = 0.5
"""Confidence before anything is known (Algorithm 1, line 3)."""


@dataclass(frozen=True)
class SageSettings:
    """What the paper leaves to its reader, and its constants.

    growth: "template" plans the whole tree from one earlier distribution and fills it (Algorithm 1); "online"
        asks the same formulas with the probabilities that are really drafted, level by level.
    source: where confidence is read: at the root, at the last accepted node, or the mean over all fed nodes.
    immediate: confidence of this round's root instead of the last round's (not in the paper).
    order: what a full template gives up: improbable paths, or what a depth-first walk would reach last.
    first: the first tree, while nothing is known: SpecVLM's static one, or grown at α = 0.5 (online only).
    window, lower, upper: history tracking of accepted lengths.
    """

    limits: TreeLimits = TreeLimits()
    growth: str = "template"
    source: str = "root"
    immediate: bool = False
    order: str = "best-first"
    first: str = "static"
    window: int = 10
    lower: float = 2.0
    upper: float = 3.0

    def __post_init__(self) -> None:
        for name, known in (("growth", GROWTHS), ("source", SOURCES), ("order", ORDERS), ("first", FIRSTS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} is one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.order == "depth-first" and self.growth == "online":
            raise ValueError("order=depth-first needs growth=template: online growth drafts level by level")
        if self.first == "entropy" and self.growth == "template" and not self.immediate:
            raise ValueError(
                "first=entropy needs growth=online or immediate=true: a template needs a distribution"
            )


class EntropyTree:
    """SAGE's policy, one object a lane."""

    def __init__(self, settings: SageSettings | None = None) -> None:
        self.settings = settings or SageSettings()
        limits = self.settings.limits
        online = self.settings.growth == "online"
        self.max_nodes = max(limits.max_nodes, limits.most_fed) if online else limits.max_nodes
        self.feedback = DepthFeedback(limits, self.settings.window, self.settings.lower, self.settings.upper)
        self._alpha = START_ALPHA
        self._top: list[float] | None = None
        self._heard = _Listener(None)

    def grow(self, drafter: Drafter, root: Tensor, room: int) -> DraftTree:
        """The tree that the confidence asks for, no deeper than `room`."""
        self._heard = listener = _Listener(drafter)
        if room == 0:
            return DraftTree(root, chain(0))
        if self.settings.immediate:
            said = listener.extend(root, (-1,))
            if said is None:
                return DraftTree(root, chain(0))
            self._note(_top(said[0], self.settings.limits.top_k).tolist())
        want = plan(self._alpha, self.settings.limits, self.feedback.cap)
        static = self._top is None and self.settings.first == "static"
        if static:
            nodes = min(self.settings.limits.max_nodes, 1 + len(EAGLE_TREE))
            tree = static_tree(nodes).grow(listener, root, room)
        elif self.settings.growth == "template":
            tree = RankedTree(template(self._top or [], want, self.settings.order)).grow(listener, root, room)
        else:
            tree = _grown(listener, root, room, want)
        return replace(tree, notes=self._notes(want, len(tree), static))

    def learn(self, tree: DraftTree, verdict: Verdict) -> None:
        """Confidence for the next round, and the history (Algorithm 1, phase 3)."""
        heard = self._heard
        if not heard.said or tree.rows is None:
            return
        self.feedback.learn(verdict.n_accepted)
        if self.settings.immediate:
            return
        if self.settings.source == "mean":
            top = torch.cat([_top(said, self.settings.limits.top_k) for said in heard.said]).mean(0).tolist()
        else:
            # choice: the paper names no position; the root's output is the one that every round has.
            row = 0
            if self.settings.source == "accepted":
                row = max(tree.rows[node] for node in verdict.path)
            top = _top(heard.row(row), self.settings.limits.top_k).tolist()
        self._note(top)

    def _note(self, top: list[float]) -> None:
        self._top = top
        self._alpha = confidence(top)

    def _notes(self, want: Plan, nodes: int, static: bool) -> dict[str, Any]:
        return {
            "alpha": round(want.alpha, 4),
            "depth": want.depth,
            "width": round(want.width, 3),
            "n_nodes": nodes,
            "cap": self.feedback.cap,
            "static": static,
        }


def entropy_tree(
    growth: str = "template",
    confidence: str = "root",
    immediate: bool = False,
    order: str = "best-first",
    first: str = "static",
    track: int = 10,
    lower: float = 2.0,
    upper: float = 3.0,
    **limits: int,
) -> EntropyTree:
    """The policy from named values: `SageSettings` (`confidence` is source, `track` window), `TreeLimits`."""
    return EntropyTree(
        SageSettings(TreeLimits(**limits), growth, confidence, immediate, order, first, track, lower, upper)
    )


class _Listener:
    """Passes questions on to a drafter and remembers the answers, so that the root is asked only once."""

    def __init__(self, drafter: Drafter | None) -> None:
        self._drafter = drafter
        self.said: list[Tensor] = []

    def extend(self, tokens: Tensor, parents: Sequence[int]) -> Tensor | None:
        """As the drafter's; a second question about the root is answered from memory."""
        if tuple(parents) == (-1,) and self.said:
            return self.said[0]
        said = self._drafter.extend(tokens, parents)
        if said is not None:
            self.said.append(said)
        return said

    def row(self, row: int) -> Tensor:
        """[V] log-probabilities of one fed row of this round."""
        for said in self.said:
            if row < len(said):
                return said[row]
            row -= len(said)
        raise IndexError("a row that was not fed in this round")


def _top(said: Tensor, k: int) -> Tensor:
    """The k largest probabilities [..., k]."""
    return said.float().topk(min(k, said.shape[-1]), dim=-1).values.exp()


@dataclass
class _Node:
    """A candidate of online growth: its parent, its own probability, its path's, the row it was fed as."""

    parent: int
    own: float
    product: float
    row: int = -1


def _grown(drafter: _Listener, root: Tensor, room: int, want: Plan) -> DraftTree:
    """Online growth: one drafter forward and one host read a level.

    A candidate is fed only while it is among the max_nodes - 1 most probable paths found so far; the others
    could not be in the tree at the end. So the result is the best-first tree, drafted in as few forwards as
    it has levels.
    """
    nodes = [_Node(-1, 1.0, 1.0)]
    tokens, logps = [root], [torch.zeros_like(root, dtype=torch.float32)]
    fed, feed, rows = [0], root, 0
    for level in range(1, min(want.depth, room) + 1):
        said = drafter.extend(feed, [nodes[nodes[i].parent].row if i else -1 for i in fed])
        if said is None:
            break
        best = said.topk(min(want.limits.top_k, said.shape[-1]), dim=-1)
        for slot, i in enumerate(fed):
            nodes[i].row = rows + slot
        rows += len(fed)
        first = len(nodes)
        born = _born(nodes, fed, best.values.float().exp().tolist(), level, want)
        if not born:
            break
        tokens.append(_at(best.indices.flatten(), born))
        logps.append(_at(best.values.flatten(), born).float())
        fed = [i for i in _most_probable(nodes, want.limits.max_nodes - 1) if i >= first]
        if not fed:
            break
        feed = _at(tokens[-1], [i - first for i in fed])
    return _selected(nodes, torch.cat([t.to(tokens[-1].device) for t in tokens]), torch.cat(logps), want)


def _born(
    nodes: list[_Node], fed: Sequence[int], probs: Sequence[Sequence[float]], level: int, want: Plan
) -> list[int]:
    """Adds the children of the fed nodes; gives where each one stands in `probs` read line by line."""
    born = []
    for slot, i in enumerate(fed):
        for rank, own in enumerate(probs[slot][: want.children(level, nodes[i].own)]):
            product = nodes[i].product * own
            # choice: the root's best child always stays, so that a round never drafts nothing.
            if want.keeps(level, product) or (level == 1 and rank == 0):
                born.append(slot * len(probs[slot]) + rank)
                nodes.append(_Node(i, own, product))
    return born


def _at(flat: Tensor, places: Sequence[int]) -> Tensor:
    """The elements at these ascending places; where they are the first ones, a view, which costs little."""
    if places[-1] == len(places) - 1:
        return flat[: len(places)]
    return flat[torch.tensor(places, device=flat.device)]


def _most_probable(nodes: Sequence[_Node], size: int) -> list[int]:
    """The `size` nodes with the most probable paths, ascending; of equals the earlier, so parents first."""
    return sorted(sorted(range(1, len(nodes)), key=lambda i: -nodes[i].product)[:size])


def _selected(nodes: Sequence[_Node], tokens: Tensor, logps: Tensor, want: Plan) -> DraftTree:
    """The tree of the most probable candidates; tokens and logps are those of all, in their order."""
    chosen = [0, *_most_probable(nodes, want.limits.max_nodes - 1)]
    number = {old: new for new, old in enumerate(chosen)}
    index = torch.tensor(chosen, device=tokens.device)
    return DraftTree(
        tokens[index],
        shape_of((-1, *(number[nodes[i].parent] for i in chosen[1:]))),
        logp=logps[index],
        rows=tuple(nodes[i].row for i in chosen),
    )
