"""SAGE (Tong et al., arXiv 2602.00523): a tree, deep if the drafter is sure, wide if it is not.

First the formulas on plain numbers (section 3, equations 7 to 12), then the trees that they plan,
from one distribution or level by level, then the policy (Algorithm 1): one file, as every method
is.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from specvl_demo.core import highest
from specvl_demo.core.sampling import Level, Sampler
from specvl_demo.core.tree import DraftTree, RankPath
from specvl_demo.core.types import Drafter, LevelRequest, Policy, Verdict
from specvl_demo.methods.base import TREE, Method, Part, register
from specvl_demo.methods.declare import Lesson, PolicySettings, Value, setting, size_words
from specvl_demo.methods.policies import (
    Candidate,
    StaticTree,
    grow_tree,
    trim_paths,
)
from specvl_demo.methods.small_vlm import SELF, SMALL
from specvl_demo.methods.tree_size import GROWN
from specvl_demo.methods.views import MULTIMODAL, PRUNED
from specvl_demo.records import Chart, ChartSeries

START_ALPHA = 0.5
"""Confidence before anything is known (Algorithm 1, line 3)."""
ROUNDS = 10
LOWER = 2.0
UPPER = 3.0
"""How many last rounds adjust the limit on the depth, and the mean accepted lengths below and above
which it changes (section 3.3).
"""


MIN_DEPTH, TOP_K = 3, 10
"""Levels at confidence 0; how many likeliest tokens the confidence is the entropy of, which is also
the most children of a node (the paper's constants).
"""


def min_path_probability(level: int, depth: int) -> float:
    """Return θ_l = 0.1·l/D(α): a node stays if the probability of its path exceeds it.

    # choice: D is the depth that is really drafted, a whole number.
    """
    return 0.1 * level / depth


@dataclass(frozen=True)
class TreePlan:
    """The shape of a tree.

    max_nodes: Of the tree, including the root.
    """

    depth: int
    width: float
    max_nodes: int

    def n_children(self, level: int, parent: float) -> int:
        """Return W_l = W(α)/l · (0.5 + P_parent) (eq. 12); `level` 1 holds the root's children.

        # choice: rounded down, within 1 and k; P_parent is the parent's own probability (root: 1).

        # choice: level 1 follows the equation too, so it is 1.5 times as wide as in the paper's
        text, where the width decays "beyond the first level" (W_1 = W(α)).
        """
        return min(TOP_K, max(1, math.floor(self.width / level * (0.5 + parent) + 1e-9)))

    def keeps_node(self, level: int, rank: int, path_probability: float) -> bool:
        """Whether a candidate at `level` with this probability of its path belongs to the tree.

        # choice: the root's best child always does, so that no round drafts nothing.
        """
        return (level, rank) == (1, 0) or path_probability > min_path_probability(level, self.depth)

    def n_drafted(
        self, level: int, node: Candidate, last_score: float, scores: Sequence[float]
    ) -> int:
        """Return how many drafted tokens belong below a candidate, see `grow_tree`."""
        few = enumerate(scores[: self.n_children(level, math.exp(last_score))])
        return sum(self.keeps_node(level, i, math.exp(node.score + score)) for i, score in few)


@dataclass(frozen=True)
class SageSettings(PolicySettings):
    """The paper's constants, and what it leaves open.

    Attributes:
        growth: "template" plans the whole tree from one earlier distribution and fills it
            (Algorithm 1), after SpecVLM's static one in the first round; "online" applies the
            formulas to what is really drafted, level by level, in the first round at α = 0.5.
    """

    max_depth: int = setting(8, "levels at confidence 1", 3, 32, title="maximum depth")
    min_width: int = setting(2, "width at confidence 1", 1, 32, title="minimum width")
    max_width: int = setting(10, "width at confidence 0", 1, 32, title="maximum width")
    max_nodes: int = setting(
        64, "nodes of the tree, root included", 2, 512, title="maximum nodes", auto=GROWN
    )
    growth: str = setting(
        "template",
        "template: planned from an earlier distribution; online: grown from what is drafted",
        choices={"template": "template", "online": "online"},
        title="tree growth",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_width > self.max_width:
            raise ValueError(
                f"max_width {self.max_width} must be at least min_width {self.min_width}"
            )


def confidence(top: Sequence[float]) -> float:
    """Return α = 1 − H(P̃)/log k of the k largest probabilities, renormalised (eq. 7, 8, 9)."""
    total = sum(top)
    if len(top) < 2 or total <= 0:
        return 1.0
    shares = [p / total for p in top]
    entropy = -sum(p * math.log(p) for p in shares if p > 0)
    return min(1.0, max(0.0, 1.0 - entropy / math.log(len(top))))


def depth_for(alpha: float, cap: int) -> int:
    """Return D(α) = D_min + α·(cap − D_min), eq. 10 with the history's cap in place of D_max.

    # choice: rounded half up; the paper gives no rule for whole numbers.
    """
    return math.floor(MIN_DEPTH + alpha * (cap - MIN_DEPTH) + 0.5)


def width_for(alpha: float, settings: SageSettings) -> float:
    """Return W(α) = W_min + (1 − α)·(W_max − W_min), eq. 11; only W_l is rounded."""
    return settings.min_width + (1.0 - alpha) * (settings.max_width - settings.min_width)


def plan(alpha: float, settings: SageSettings, cap: int) -> TreePlan:
    """Return the tree's shape for a confidence; `cap` is the history's limit on the depth."""
    return TreePlan(depth_for(alpha, cap), width_for(alpha, settings), settings.max_nodes)


def template(top: Sequence[float], plan: TreePlan) -> list[RankPath]:
    """Return rank paths, parents first, from one distribution only (Algorithm 1, line 18).

    # choice: only one distribution is known before the next round drafts, so every level reuses it:
    a node of rank r has probability top[r], a path the product.

    # choice: a full tree keeps the most probable paths; the paper's recursion, taken literally,
    keeps the first of a depth-first walk.
    """
    nodes = sorted(_descendants(top, plan, (), 1.0, 1.0), key=lambda node: (-node[1], node[0]))
    paths = (path for path, _ in nodes[: plan.max_nodes - 1])
    return sorted(paths, key=lambda path: (len(path), path))


def _descendants(
    top: Sequence[float], plan: TreePlan, path: RankPath, probability: float, product: float
) -> Iterator[tuple[RankPath, float]]:
    """Yield all nodes below one, depth first, each with the probability of its path.

    There are few: a level's probabilities sum to at most 1, and each exceeds its threshold.
    """
    level = len(path) + 1
    if level > plan.depth:
        return
    for rank in range(min(plan.n_children(level, probability), len(top))):
        child = (*path, rank)
        whole = product * top[rank]
        if plan.keeps_node(level, rank, whole):
            yield child, whole
            yield from _descendants(top, plan, child, top[rank], whole)


def why_other(plan: TreePlan, sizes: Mapping[int, int], room: int) -> dict[str, str]:
    """Say why a tree has not the depth and the width that were asked for, by the note of each.

    sizes: Nodes of every level of the tree, from 1 on.
    """
    depth = len(sizes)
    width = max(sizes.values(), default=0)
    plan_width = round(plan.width, 3)
    full = 1 + sum(sizes.values()) >= plan.max_nodes
    fewer = "the tree is full" if full else "other guesses were too unlikely"
    why = {}
    if depth < plan.depth:
        why["drafted_depth"] = "the answer may not be longer" if depth == room else fewer
    if width < plan_width:
        why["drafted_width"] = "rounded down" if width == plan.n_children(1, 1.0) else fewer
    elif width > plan_width:
        at_root = "the first level may be half as wide again"
        why["drafted_width"] = at_root if width == sizes[1] else "several nodes of a level branch"
    return why


class DepthFeedback:
    """SAGE's history tracking: the largest depth allowed, adjusted by recent accepted lengths.

    Below LOWER the cap falls by one per round, above UPPER it rises by one, else it stays.

    # choice: the window counts accepted drafted tokens without the target's own. It acts from the
    first round on, one step per round, from D_max down to D_min. The paper also raises the cap but
    gives no bound; here it is D_max.
    """

    def __init__(self, settings: SageSettings) -> None:
        self.settings = settings
        self.recent: deque[int] = deque(maxlen=ROUNDS)
        self.cap = settings.max_depth

    def update(self, accepted: int) -> None:
        """Record that one round accepted this many drafted tokens."""
        self.recent.append(accepted)
        mean = sum(self.recent) / len(self.recent)
        if mean < LOWER:
            self.cap = max(MIN_DEPTH, self.cap - 1)
        elif mean > UPPER:
            self.cap = min(self.settings.max_depth, self.cap + 1)


class RootRecorder(Drafter):
    """Passes calls on to a drafter, which is asked for TOP_K tokens, and records their
    log-probabilities at the root: `root` [at most TOP_K].
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.root: Tensor | None = None

    def extend(self, tokens: Tensor, parents: Sequence[int]) -> Tensor | None:
        log_probs = self._drafter.extend(tokens, parents)
        if self.root is None and log_probs is not None:
            k = min(TOP_K, log_probs.shape[-1])
            self.root = highest.topk(log_probs[:1].float(), k)[0][0]
        return log_probs

    def draft_level(self, request: LevelRequest) -> Level | None:
        if request.draws is not None:
            return super().draft_level(request)
        level = self._drafter.draft_level(request)
        if self.root is None and level is not None:
            self.root = level.logp[0]
        return level


class EntropyTree(Policy):
    """SAGE's policy, one object per lane."""

    def __init__(self, settings: SageSettings) -> None:
        self.settings = settings
        self.max_nodes = settings.max_nodes
        if settings.growth == "online":
            self.max_fed = 1 + settings.max_depth * (settings.max_nodes - 1)
        self.feedback = DepthFeedback(settings)
        self._alpha = START_ALPHA
        self._top: list[float] | None = None

    def propose(
        self, drafter: Drafter, root: Tensor, room: int, draws: Sampler | None = None
    ) -> DraftTree:
        """Draft the tree for the current confidence, no deeper than `room`."""
        self._recorder = recorder = RootRecorder(drafter)
        tree_plan = plan(self._alpha, self.settings, self.feedback.cap)
        online = self.settings.growth == "online"
        if online:
            request = LevelRequest(root, (-1,), TOP_K, 0, draws, min(tree_plan.depth, room))
            tree = grow_tree(self, recorder, request, n_children=tree_plan.n_drafted)
        else:
            ranks = (
                template(self._top, tree_plan)
                if self._top
                else trim_paths(self.settings.max_nodes - 1)
            )
            tree = StaticTree(ranks, TOP_K).propose(recorder, root, room, draws)
        sizes = Counter(tree.shape.depth[1:])
        notes = {
            "alpha": round(self._alpha, 4),
            "depth": tree_plan.depth,
            "width": round(tree_plan.width, 3),
            "drafted_depth": len(sizes),
            "drafted_width": max(sizes.values(), default=0),
            "why": why_other(tree_plan, sizes, room),
            "n_nodes": len(tree),
            "cap": self.feedback.cap,
            "static": self._top is None and not online,
        }
        return replace(tree, notes=notes)

    def update(self, tree: DraftTree, verdict: Verdict) -> None:
        """Update the confidence for the next round, and the history (Algorithm 1, phase 3).

        # choice: confidence is measured at the round's root; the paper names no position.
        """
        root = self._recorder.root
        if root is None or tree.rows is None:
            return
        super().update(tree, verdict)
        self.feedback.update(verdict.n_accepted)
        self._top = root.exp().tolist()
        self._alpha = confidence(self._top)


ENTROPY_TREE = Part(
    "policy",
    "entropy-tree",
    "a tree shaped by the drafter's confidence",
    EntropyTree,
    SageSettings,
    needs=TREE,
    label=lambda settings: (
        f"{'online' if settings.growth == 'online' else 'from a template'},"
        f" {size_words(settings.max_nodes, '≤ {} nodes')}, width ≤ {settings.max_width}"
    ),
    charts=(
        Chart(
            "shape",
            "Confidence and tree shape",
            "α is the drafter's confidence: a sure drafter is asked for a deep tree, an unsure one"
            " for a wide tree. What is drafted has no more nodes than the setting allows.",
            "trees",
            [ChartSeries("notes.alpha", "confidence α")],
            "α",
            (0.0, 1.0),
        ),
    ),
    notes={
        "drafted_depth": "depth drafted",
        "drafted_width": "width drafted",
        "depth": "depth asked for",
        "width": "width asked for",
        "n_nodes": "nodes, the root included",
        "cap": "levels at most",
        "static": "the same tree every round",
    },
)

_SHIPPED: dict[str, Value] = {
    "drop_image": 0.5,
    "drop_video": 0.5,
    "growth": "online",
    "min_width": 1,
}
"""What the presets of both shipped pairs have in common."""

register(
    Method(
        "sage",
        "SAGE",
        "A tree that is deep where the small model is sure, and wide where it is not.",
        drafter=SMALL,
        # choice: evenly pruned; the paper prunes "following SpecVLM" (guided=true), which needs the
        # target's attention in every layer.
        views=(PRUNED,),
        policy=ENTROPY_TREE,
        reference="Tong et al., arXiv 2602.00523",
        options=(SELF, MULTIMODAL),
        presets={
            "paper": {},
            "photo": {**_SHIPPED, "max_nodes": 14, "max_depth": 10, "max_width": 2},
            "pocket": {**_SHIPPED, "max_nodes": 8, "max_depth": 10, "max_width": 6},
        },
        order=50,
        listed="paper",
        offered=1,
        url="https://arxiv.org/abs/2602.00523",
        learn=Lesson(
            does="""A sure drafter should guess far ahead, an unsure one should guess broadly. SAGE
            measures confidence by the entropy of the drafter’s ten likeliest tokens and shapes the
            next tree by it: deep and narrow, or shallow and wide.""",
            look="""The trees of all rounds, and α beneath, as the round before measured it. In
            “Five things” a tree at a high α is one deep line; at a low α it branches and is
            shallower than most. But α only plans: guesses that turn out too unlikely are left out,
            and a tree has only so many nodes. So in “Cat and brush” the two surest rounds branch,
            and two less sure ones do not.""",
            formula=r"""α = 1 - \frac{H ( P )}{\text{log } k} , \text{   }
            D = D_min + α ( D_max - D_min )""",
            aloud="""The confidence α is one where the drafter is certain and nought where its k
            likeliest tokens are equally likely: H is the entropy of their probabilities P. The
            tree’s depth D grows with it from its least to its most.""",
        ),
    )
)
