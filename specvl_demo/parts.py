"""What methods are made of, as data: drafters, views, the mixture, tree policies, verifiers, and parameters.

Rows and bounds only; nothing is computed or imported here (`assemble` builds what a row names), so that the
command line, the page and the docs can read it at once. Standard library only. Long because it is a table.

To add a part: write it in a file of its own and add one row to DRAFTERS, VIEWS, POLICIES or VERIFIERS, whose
`build` names the callable that makes it from the row's parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Value = bool | int | float | str
Slot = Literal["drafter", "views", "policy", "verifier"]

SLOTS: tuple[Slot, ...] = ("drafter", "views", "policy", "verifier")
AND = "+"
"""Joins several views in one setting: views=multimodal+text-only."""


@dataclass(frozen=True)
class Param:
    """One number or choice that a part can be given. low and high are inclusive."""

    name: str
    default: Value
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def kind(self) -> Literal["bool", "int", "float", "choice"]:
        """What its values are."""
        if isinstance(self.default, bool):
            return "bool"
        if isinstance(self.default, int):
            return "int"
        return "float" if isinstance(self.default, float) else "choice"

    def read(self, value: Value) -> Value:
        """A value of this parameter from itself or from text; ValueError with a sentence."""
        text = str(value).strip()
        if self.kind == "choice":
            if text not in self.choices:
                raise ValueError(f"{self.name} is one of {', '.join(self.choices)}, not {text!r}.")
            return text
        if self.kind == "bool":
            words = {"true": True, "1": True, "yes": True, "on": True}
            words |= {"false": False, "0": False, "no": False, "off": False}
            if text.lower() not in words:
                raise ValueError(f"{self.name} is true or false, not {text!r}.")
            return words[text.lower()]
        try:
            number = int(text) if self.kind == "int" else float(text)
        except ValueError:
            what = "a whole number" if self.kind == "int" else "a number"
            raise ValueError(f"{self.name} is {what}, not {text!r}.") from None
        # Written so that a NaN is refused too.
        if not (self.low is None or number >= self.low) or not (self.high is None or number <= self.high):
            raise ValueError(f"{self.name} is {_between(self.low, self.high)}, not {text}.")
        return number


@dataclass(frozen=True)
class Part:
    """One row of a part table.

    build: "module:callable". Drafters are called with (models, views, mixer, **params), views with (models,
    **params), policies, verifiers and the mixture with (**params).
    gives: what a drafter offers; needs: what a policy or verifier asks of the drafter (names in OFFERS).
    role: which of a pair's models a drafter runs on, None for none.
    """

    name: str
    title: str
    build: str
    params: tuple[Param, ...] = ()
    gives: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    role: str | None = None
    lossless: bool = True
    greedy_only: bool = False


OFFERS = {
    "chain": "proposes tokens",
    "tree": "gives the probabilities of several tokens at every place",
    "views": "looks at the prompt through views",
}

_CHAIN, _TREE = frozenset({"chain"}), frozenset({"chain", "tree"})

DRAFTERS: dict[str, Part] = {
    part.name: part
    for part in (
        Part("none", "no drafter", "specvl_demo.assemble:no_drafter"),
        Part(
            "small",
            "small vision-language model",
            "specvl_demo.assemble:small_vlm",
            gives=_TREE | {"views"},
            role="small",
        ),
        Part(
            "self",
            "the target itself",
            "specvl_demo.assemble:target_as_drafter",
            gives=_TREE | {"views"},
        ),
        Part(
            "eagle2",
            "EAGLE-2 head",
            "specvl_demo.assemble:eagle2_head",
            gives=_TREE,
            role="eagle2",
        ),
        Part(
            "hivis",
            "HiViS head",
            "specvl_demo.assemble:hivis_head",
            params=(
                Param(
                    "variant",
                    "full",
                    "weights: of both training stages, or of the first alone (where a pair has them)",
                    choices=("full", "stage-1"),
                ),
            ),
            gives=_TREE,
            role="hivis",
        ),
        Part(
            "dream",
            "DREAM head",
            "specvl_demo.assemble:dream_head",
            params=(
                Param(
                    "variant",
                    "full",
                    "weights: trained with cross-attention, or without it (where a pair has them)",
                    choices=("full", "no-cross"),
                ),
                Param(
                    "keep",
                    0.0,
                    "share of the visual tokens it looks at, those the target attends to most; 1: all, "
                    "0: as the head was trained, or the paper's 0.75 where it does not say",
                    0.0,
                    1.0,
                ),
                Param(
                    "ancestry", True, "branches of a tree are apart in cross-attention; false: as published"
                ),
            ),
            gives=_TREE,
            role="dream",
        ),
        Part(
            "ngram",
            "prompt lookup",
            "specvl_demo.assemble:prompt_lookup",
            params=(
                Param("longest", 3, "most last tokens that must have occurred before", 1, 10),
                Param("shortest", 1, "fewest last tokens that must have occurred before", 1, 10),
            ),
            gives=_CHAIN,
        ),
    )
}

VIEWS: dict[str, Part] = {
    part.name: part
    for part in (
        Part("multimodal", "the whole prompt", "specvl_demo.assemble:full_view"),
        Part("text-only", "no picture, a newline in its place", "specvl_demo.assemble:text_view"),
        Part(
            "caption",
            "a caption in place of the picture: Florence-2's, of the pocket pair the drafter's own",
            "specvl_demo.assemble:caption_view",
            params=(Param("caption_length", 24, "longest caption, in tokens", 1, 256),),
        ),
        Part(
            "pooled",
            "a coarser picture",
            "specvl_demo.assemble:pooled_view",
            params=(Param("pool", 2, "patches averaged along each side, before the projector", 1, 16),),
        ),
        Part(
            "pruned",
            "part of the picture",
            "specvl_demo.assemble:pruned_view",
            params=(
                Param("drop_image", 0.8, "share of a picture's visual tokens left out", 0.0, 1.0),
                Param("drop_video", 0.9, "share of a clip's visual tokens left out", 0.0, 1.0),
                Param("guided", False, "keep what the target attends to first, then evenly; false: evenly"),
                Param(
                    "share", 0.4, "guided: share of all attention that the best tokens must hold", 0.0, 1.0
                ),
                Param(
                    "positions",
                    "auto",
                    "positions of what stays: numbered anew, with gaps, or as suits the decoder",
                    choices=("auto", "original", "compact"),
                ),
            ),
        ),
    )
}

MIXTURE = Part(
    "mixture",
    "a mixture weighted by what was right lately",
    "specvl_demo.core.mixture:mixture",
    params=(
        Param(
            "weights",
            "w-grid",
            "rule: search a grid, inverse divergence (two forms), count matches, boost, or equal weights",
            choices=("w-grid", "kld", "kld-softmax", "tvd", "block-efficiency", "adaboost", "uniform"),
        ),
        Param("history", 0, "verified tokens that count; 0: all", 0, 4096),
        Param("grid_steps", 10, "w-grid: parts into which a weight is divided", 1, 20),
        Param("weight_temperature", 1.0, "above 1 evens the weights out, below 1 sharpens them", 0.05, 20.0),
        Param("boost", 1.0, "adaboost: factor of the vocabulary's term", 0.0, 10.0),
    ),
)
"""Mixes several views of a drafter."""

POLICIES: dict[str, Part] = {
    part.name: part
    for part in (
        Part("one-node", "no draft", "specvl_demo.core.policies:OneNode"),
        Part(
            "chain",
            "a chain",
            "specvl_demo.core.policies:Chain",
            params=(Param("gamma", 5, "tokens drafted in a row", 1, 64),),
            needs=_CHAIN,
        ),
        Part(
            "static-tree",
            "a fixed tree of up to 25 paths",
            "specvl_demo.core.policies:static_tree",
            params=(Param("tree_nodes", 26, "nodes of the tree, the root included", 2, 26),),
            needs=_TREE,
        ),
        Part(
            "branches",
            "chains that part at the root",
            "specvl_demo.core.policies:branches",
            params=(
                Param("gamma", 10, "tokens drafted in a row", 1, 64),
                Param("count", 2, "chains", 1, 8),
            ),
            needs=_TREE,
        ),
        Part(
            "beam",
            "a tree of even width",
            "specvl_demo.core.policies:beam",
            params=(
                Param("gamma", 5, "levels", 1, 32),
                Param("beams", 2, "nodes a level", 1, 16),
            ),
            needs=_TREE,
        ),
        Part(
            "entropy-tree",
            "a tree shaped by the drafter's confidence",
            "specvl_demo.core.policies_sage:entropy_tree",
            params=(
                Param("min_depth", 3, "levels when the drafter is lost", 1, 32),
                Param("max_depth", 8, "levels when the drafter is sure", 1, 32),
                Param("min_width", 2, "width when the drafter is sure", 1, 32),
                Param("max_width", 10, "width when the drafter is lost", 1, 32),
                Param("top_k", 10, "likeliest tokens whose entropy is the confidence; most children", 2, 64),
                Param("max_nodes", 64, "nodes of the tree, the root included", 2, 512),
                Param(
                    "growth",
                    "template",
                    "template: planned from an earlier distribution; online: from what is drafted",
                    choices=("template", "online"),
                ),
                Param(
                    "confidence",
                    "root",
                    "where confidence is read: at the root, the last accepted node, over all nodes",
                    choices=("root", "accepted", "mean"),
                ),
                Param("immediate", False, "confidence of this round instead of the last (not in the paper)"),
                Param(
                    "order",
                    "best-first",
                    "what a full template gives up: improbable paths, or the last of a depth-first walk",
                    choices=("best-first", "depth-first"),
                ),
                Param(
                    "first",
                    "static",
                    "first tree: the static one, or grown at confidence 0.5",
                    choices=("static", "entropy"),
                ),
                Param("track", 10, "rounds whose accepted lengths move the largest depth", 1, 1000),
                Param("lower", 2.0, "mean accepted length below which the largest depth falls", 0.0, 64.0),
                Param("upper", 3.0, "mean accepted length above which the largest depth rises", 0.0, 64.0),
            ),
            needs=_TREE,
        ),
        Part(
            "best-first",
            "a tree of the likeliest paths",
            "specvl_demo.core.policies:BestFirst",
            params=(
                Param("nodes", 60, "nodes of the tree, the root included", 2, 512),
                Param("width", 10, "nodes expanded a level, and likeliest tokens taken after each", 1, 64),
                Param("loops", 5, "levels below the first", 0, 32),
            ),
            needs=_TREE,
        ),
    )
}

VERIFIERS: dict[str, Part] = {
    part.name: part
    for part in (
        Part("strict", "strict verification", "specvl_demo.core.verify:Strict"),
        Part(
            "visual",
            "visual-semantic loose verification",
            "specvl_demo.core.verify_loose:VisualVerifier",
            params=(
                Param(
                    "loose",
                    0.7,
                    "λ: share of a draft, least visual tokens first, that need not match",
                    0.0,
                    1.0,
                ),
                Param(
                    "anchors", 10, "N: visual tokens most like a token whose mean is its relevance", 1, 4096
                ),
                Param(
                    "shift", True, "also keep a token where the target's own stands elsewhere in the draft"
                ),
            ),
            needs=_CHAIN,
            lossless=False,
            greedy_only=True,
        ),
        Part(
            "entropy-gate",
            "entropy gate with deferred window",
            "specvl_demo.core.verify_loose:EntropyVerifier",
            params=(
                Param(
                    "gate", 0.3, "entropy of the target (nats) below which a mismatch is refused", 0.0, 2.0
                ),
                Param("window", 6, "tokens, the mismatch included, that must agree again; 0: none", 0, 64),
            ),
            needs=_CHAIN,
            lossless=False,
            greedy_only=True,
        ),
    )
}


def _between(low: float | None, high: float | None) -> str:
    if low is None:
        return f"at most {high:g}"
    return f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
