"""The table of decoding methods: a method is drafter x views x tree policy x verifier, with its parameters.

Rows of data and the rules of what fits what; nothing is computed or imported here (`assemble` does that), so
the command line, the page and the docs can read it at once. Standard library only.

To add a part: write it in a file of its own and add one row to DRAFTERS, VIEWS, POLICIES or VERIFIERS, whose
`build` names the callable that makes it from the row's parameters. To add a method: add one row to METHODS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True)
class Method:
    """One row of the method table.

    views: by name, empty for drafters that have none. defaults: parameters that differ from the parts' own.
    options: other parts that may be put into a slot; None allows all. presets: named changes of parameters
    and, by slot, of parts.
    """

    name: str
    title: str
    summary: str
    drafter: str
    policy: str
    verifier: str
    views: tuple[str, ...] = ()
    reference: str = ""
    defaults: Mapping[str, Value] = field(default_factory=dict)
    options: Mapping[Slot, tuple[str, ...]] | None = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)

    @property
    def lossless(self) -> bool:
        """Whether it gives the target's own answer, with the parts it has by default."""
        return VERIFIERS[self.verifier].lossless


@dataclass(frozen=True)
class Choice:
    """A method with everything decided: legal parts and a value for every parameter."""

    method: Method
    drafter: Part
    views: tuple[Part, ...]
    policy: Part
    verifier: Part
    params: Mapping[str, Value]

    @property
    def lossless(self) -> bool:
        """Whether it gives the target's own answer."""
        return self.verifier.lossless

    @property
    def settings(self) -> dict[str, Value]:
        """Parts and parameters as plain values: what a record says about the method."""
        return {
            "drafter": self.drafter.name,
            "views": AND.join(view.name for view in self.views),
            "policy": self.policy.name,
            "verifier": self.verifier.name,
            **self.params,
        }

    def of(self, part: Part) -> dict[str, Value]:
        """The parameters of one of its parts."""
        return {param.name: self.params[param.name] for param in part.params}


OFFERS = {
    "chain": "a token at a time",
    "tree": "probabilities over several tokens, which a tree needs",
    "views": "a look at the prompt through views",
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
            gives=_TREE,
            role="hivis",
        ),
        Part(
            "dream",
            "DREAM head",
            "specvl_demo.assemble:dream_head",
            params=(
                Param(
                    "keep",
                    0.75,
                    "share of the visual tokens it looks at, those the target attends to most; 1: all",
                    0.01,
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
            "the drafter's own caption in place of the picture",
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

MIXTURE: Part | None = Part(
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

_MTCP = "multimodal+text-only+caption+pooled"

_POCKET_TREE: Mapping[str, Value] = {"nodes": 8, "width": 2, "loops": 5}
"""For two CPU cores, where every further node costs (`bench --suite trees` finds it)."""

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "ar",
            "Autoregressive",
            "The target alone, one token a step: what every other method is measured against.",
            drafter="none",
            policy="one-node",
            verifier="strict",
        ),
        Method(
            "chain",
            "Chain",
            "A small model drafts a few tokens in a row, the target checks them in one step.",
            drafter="small",
            views=("multimodal",),
            policy="chain",
            verifier="strict",
            reference="Leviathan et al., arXiv 2211.17192; Gagrani et al., arXiv 2404.08856",
        ),
        Method(
            "tree",
            "Static tree",
            "A small model drafts several continuations at once, in a tree of fixed shape.",
            drafter="small",
            views=("multimodal",),
            policy="static-tree",
            verifier="strict",
            reference="Li et al., arXiv 2401.15077 (the tree of EAGLE-1)",
        ),
        Method(
            "specvlm",
            "SpecVLM",
            "The static tree, drafted by a small model that sees what the target looks at in the picture.",
            drafter="small",
            views=("pruned",),
            policy="static-tree",
            verifier="strict",
            reference="Ji et al., arXiv 2508.16201",
            defaults={"drop_image": 0.9, "drop_video": 0.9, "guided": True},
            options={"drafter": ("self",), "policy": ("chain",)},
            presets={
                "paper": {},
                "pocket": {"drop_image": 0.5, "drop_video": 0.5, "tree_nodes": 10},
            },
        ),
        Method(
            "tabed",
            "TABED",
            "One small model drafts through several views of the prompt; those that were right count more.",
            drafter="small",
            views=("multimodal", "text-only"),
            policy="chain",
            verifier="strict",
            reference="Lee et al., arXiv 2601.20357",
            options={
                "drafter": ("self",),
                "views": ("caption", "pooled", "pruned"),
                "policy": ("beam", "static-tree", "best-first"),
            },
            presets={
                "paper": {},
                "paper-mtcp": {"views": _MTCP, "weights": "kld"},
                "paper-tree-2": {"policy": "beam", "beams": 2},
                "paper-tree-3": {"policy": "beam", "beams": 3},
                "pocket": {},
                "pocket-mtcp": {"views": _MTCP, "weights": "kld"},
            },
        ),
        Method(
            "sage",
            "SAGE",
            "A tree that is deep where the small model is sure and wide where it is not.",
            drafter="small",
            views=("pruned",),
            policy="entropy-tree",
            verifier="strict",
            reference="Tong et al., arXiv 2602.00523",
            options={"drafter": ("self",), "views": ("multimodal",)},
            presets={
                "paper": {},
                "pocket": {
                    "drop_image": 0.5,
                    "drop_video": 0.5,
                    "growth": "online",
                    "first": "entropy",
                    "max_nodes": 10,
                    "min_width": 1,
                    "max_width": 4,
                },
            },
        ),
        Method(
            "lvspec",
            "LVSpec",
            "Tokens that have little to do with the picture need not match: longer rounds, but not lossless.",
            drafter="small",
            views=("pruned",),
            policy="chain",
            verifier="visual",
            reference="Ji et al., arXiv 2604.05650",
            defaults={"gamma": 10, "drop_image": 0.9, "drop_video": 0.9},
            options={
                "drafter": ("self",),
                "views": ("multimodal",),
                "policy": ("branches",),
                "verifier": ("strict",),
            },
            presets={
                "paper": {},
                "paper-3b": {"loose": 0.3, "anchors": 5},
                "paper-no-shift": {"shift": False},
                "paper-branches": {"policy": "branches"},
                "paper-self": {"drafter": "self"},
                "pocket": {"gamma": 8, "drop_image": 0.5, "drop_video": 0.5},
            },
        ),
        Method(
            "fly",
            "FLy",
            "A token may differ where the target is undecided and agrees again at once: not lossless.",
            drafter="small",
            views=("multimodal",),
            policy="chain",
            verifier="entropy-gate",
            reference="Li et al., arXiv 2511.22972",
            defaults={"gamma": 15},
            options={"drafter": ("self",), "views": ("pruned",), "verifier": ("strict",)},
            presets={
                "paper": {},
                "lvspec-paper": {"gamma": 10, "window": 4, "gate": 0.2},
                "gate-only": {"gamma": 10, "window": 0, "gate": 0.2},
                "pocket": {"gamma": 8, "window": 4},
            },
        ),
        Method(
            "eagle2",
            "EAGLE-2",
            "One layer guesses the target's next features from its last; the likeliest paths form a tree.",
            drafter="eagle2",
            policy="best-first",
            verifier="strict",
            reference="Li et al., arXiv 2406.16858",
            options={"policy": ("chain", "static-tree", "entropy-tree")},
            presets={"paper": {"nodes": 60, "width": 10, "loops": 5}, "pocket": _POCKET_TREE},
        ),
        Method(
            "hivis",
            "HiViS",
            "A head that sees no picture: what it must know is in the target's features of the text.",
            drafter="hivis",
            policy="best-first",
            verifier="strict",
            reference="Xie et al., arXiv 2509.23928",
            options={
                "policy": ("chain", "static-tree", "entropy-tree"),
                "verifier": ("visual", "entropy-gate"),
            },
            presets={
                "paper": {"nodes": 60, "width": 10, "loops": 7},
                "published-code": {"nodes": 60, "width": 10, "loops": 5},
                "pocket": _POCKET_TREE,
            },
        ),
        Method(
            "dream",
            "DREAM",
            "Three blocks; the middle one looks up the target's features of everything said and seen.",
            drafter="dream",
            policy="best-first",
            verifier="strict",
            reference="Hu et al., arXiv 2505.19201",
            defaults={"nodes": 32, "width": 4, "loops": 6},
            options={"policy": ("chain", "static-tree", "entropy-tree")},
            presets={
                "paper": {},
                "published-code": {"nodes": 60, "width": 4, "loops": 8, "keep": 1.0, "ancestry": False},
                "pocket": _POCKET_TREE,
            },
        ),
        Method(
            "ngram",
            "Prompt lookup",
            "No model: what followed the same words earlier is guessed to follow again.",
            drafter="ngram",
            policy="chain",
            verifier="strict",
            reference="Saxena 2023, prompt lookup decoding",
        ),
        Method(
            "custom",
            "Custom",
            "Any drafter, views, tree policy and verifier that fit together.",
            drafter="small",
            views=("multimodal",),
            policy="chain",
            verifier="strict",
            options=None,
        ),
    )
}

_TABLES: dict[Slot, dict[str, Part]] = {
    "drafter": DRAFTERS,
    "views": VIEWS,
    "policy": POLICIES,
    "verifier": VERIFIERS,
}


def find(name: str) -> Method:
    """The method of this name; ValueError with the known ones."""
    if name not in METHODS:
        raise ValueError(f"There is no method {name!r}; known: {', '.join(METHODS)}.")
    return METHODS[name]


def choose(
    name: str,
    settings: Mapping[str, Value] | None = None,
    preset: str | None = None,
    temperature: float = 0.0,
) -> Choice:
    """A method with these settings; ValueError with a sentence where something is unknown or does not fit.

    settings: parameters by name, and parts by slot (drafter, views, policy, verifier; views joined with "+").
    preset: the changes of parameters and parts to start from, where the method has such a preset.
    """
    method, settings = find(name), dict(settings or {})
    views_asked = "views" in settings
    start = method.presets.get(preset or "", {})
    names = {slot: str(settings.pop(slot, start.get(slot, _own(method, slot)))) for slot in SLOTS}
    drafter, policy, verifier = (
        _part(method, slot, names[slot]) for slot in ("drafter", "policy", "verifier")
    )
    views = tuple(_part(method, "views", view) for view in names["views"].split(AND) if view)
    if not views_asked and "views" not in drafter.gives:
        # Another drafter was asked for, and the views go with the method's own one.
        views = ()
    params = _params(method, (drafter, *views, policy, verifier), preset)
    for key, value in settings.items():
        if key not in params:
            known = ", ".join([*params, *SLOTS]) or "none"
            raise ValueError(f"{method.name} has no parameter {key!r}; it has: {known}.")
        params[key] = replace(params[key], default=params[key].read(value))
    values = {key: param.default for key, param in params.items()}
    choice = Choice(method, drafter, views, policy, verifier, values)
    reason = misfit(choice, temperature)
    if reason:
        raise ValueError(reason)
    return choice


def parameters(
    name: str, settings: Mapping[str, Value] | None = None, preset: str | None = None
) -> list[Param]:
    """What can be set on a method with these parts, each with its value there as default."""
    choice = choose(name, settings, preset)
    parts = (choice.drafter, *choice.views, choice.policy, choice.verifier)
    params = _params(choice.method, parts, preset)
    return [replace(param, default=choice.params[key]) for key, param in params.items()]


def alternatives(name: str, slot: Slot) -> list[Part]:
    """The parts that may stand in a slot of a method, its own first."""
    method = find(name)
    own = _own(method, slot).split(AND)
    allowed = _TABLES[slot] if method.options is None else method.options.get(slot, ())
    return [_TABLES[slot][part] for part in dict.fromkeys([*own, *allowed]) if part]


def misfit(choice: Choice, temperature: float = 0.0) -> str | None:
    """Why these parts do not work together, in a sentence; None when they do."""
    drafter, policy, verifier = choice.drafter, choice.policy, choice.verifier
    lacking = sorted((policy.needs | verifier.needs) - drafter.gives)
    if lacking:
        asked = policy if lacking[0] in policy.needs else verifier
        return f"{_a(asked)} needs {OFFERS[lacking[0]]}; {drafter.title} cannot give that."
    if not policy.needs and drafter.gives:
        return f"{drafter.title} would never be asked: {policy.title} drafts nothing; choose another policy."
    if choice.views and "views" not in drafter.gives:
        return f"{drafter.title} sees the prompt in its own way; leave views empty."
    if not choice.views and "views" in drafter.gives:
        return f"{drafter.title} needs at least one view of the prompt: {', '.join(VIEWS)}."
    if len({view.name for view in choice.views}) < len(choice.views):
        return "A view is named twice; each view of the prompt counts once."
    if verifier.greedy_only and temperature > 0:
        return (
            f"{_a(verifier)} compares drafts with the target's likeliest token and is not defined for "
            "sampling; set the temperature to 0 or choose strict verification."
        )
    return None


def _own(method: Method, slot: Slot) -> str:
    return AND.join(method.views) if slot == "views" else getattr(method, slot)


def _part(method: Method, slot: Slot, name: str) -> Part:
    table = _TABLES[slot]
    if name not in table:
        raise ValueError(f"There is no {slot.removesuffix('s')} {name!r}; known: {', '.join(table)}.")
    allowed = [part.name for part in alternatives(method.name, slot)]
    if name not in allowed:
        raise ValueError(
            f"{method.title} can have as {slot}: {', '.join(allowed) or 'nothing'}; for {name!r} take custom."
        )
    return table[name]


def _params(method: Method, parts: tuple[Part, ...], preset: str | None) -> dict[str, Param]:
    views = [part for part in parts if VIEWS.get(part.name) is part]
    mixture = (MIXTURE,) if MIXTURE is not None and len(views) > 1 else ()
    changes = {**method.defaults, **method.presets.get(preset or "", {})}
    return {
        param.name: replace(param, default=param.read(changes.get(param.name, param.default)))
        for part in (*parts, *mixture)
        for param in part.params
    }


def _a(part: Part) -> str:
    return part.title[:1].upper() + part.title[1:]


def _between(low: float | None, high: float | None) -> str:
    if low is None:
        return f"at most {high:g}"
    return f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
