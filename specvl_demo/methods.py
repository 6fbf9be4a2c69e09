"""The table of decoding methods: a method is drafter x views x tree policy x verifier, with its parameters.

Rows of data, over the parts of `parts`, and the rules of what fits what; nothing is computed or imported here
(`assemble` does that), so the command line, the page and the docs can read it at once. Standard library only.

To add a method: add one row to METHODS. Long because the table is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from specvl_demo.parts import (
    AND,
    DRAFTERS,
    MIXTURE,
    OFFERS,
    POLICIES,
    SLOTS,
    VERIFIERS,
    VIEWS,
    Param,
    Part,
    Slot,
    Value,
)


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


_MTCP = "multimodal+text-only+caption+pooled"

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
            presets={"pocket": {"gamma": 10}},
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
            presets={"pocket": {"tree_nodes": 18}},
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
                "pocket": {"drop_image": 0.5, "drop_video": 0.5, "tree_nodes": 12},
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
                "pocket": {"gamma": 8},
                "pocket-mtcp": {"gamma": 8, "views": _MTCP, "weights": "kld"},
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
                    "max_nodes": 12,
                    "max_depth": 10,
                    "min_width": 1,
                    "max_width": 6,
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
                "pocket": {"gamma": 10, "loose": 0.3, "anchors": 5, "drop_image": 0.5, "drop_video": 0.5},
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
                "pocket": {"gamma": 12, "window": 4},
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
            presets={
                "paper": {"nodes": 60, "width": 10, "loops": 5},
                "pocket": {"policy": "chain", "gamma": 8},
                "pocket-tree": {"nodes": 12, "width": 3, "loops": 5},
            },
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
                "pocket": {"policy": "chain", "gamma": 7},
                "pocket-tree": {"nodes": 10, "width": 2, "loops": 7},
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
                "pocket": {"policy": "chain", "gamma": 10},
                "pocket-tree": {"nodes": 10, "width": 2, "loops": 5},
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
    preset: Mapping[str, Value] | None = None,
    temperature: float = 0.0,
) -> Choice:
    """A method with these settings; ValueError with a sentence where something is unknown or does not fit.

    settings: parameters by name, and parts by slot (drafter, views, policy, verifier; views joined with "+").
    preset: the changes of parameters and parts to start from.
    """
    method, settings, start = find(name), dict(settings or {}), preset or {}
    views_asked = "views" in settings
    names = {slot: str(settings.pop(slot, start.get(slot, _own(method, slot)))) for slot in SLOTS}
    drafter, policy, verifier = (
        _part(method, slot, names[slot]) for slot in ("drafter", "policy", "verifier")
    )
    views = tuple(_part(method, "views", view) for view in names["views"].split(AND) if view)
    if not views_asked and "views" not in drafter.gives:
        # Another drafter was asked for, and the views go with the method's own one.
        views = ()
    params = _params(method, (drafter, *views, policy, verifier), start)
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
    name: str, settings: Mapping[str, Value] | None = None, preset: Mapping[str, Value] | None = None
) -> list[Param]:
    """What can be set on a method with these parts, each with its value there as default."""
    choice = choose(name, settings, preset)
    parts = (choice.drafter, *choice.views, choice.policy, choice.verifier)
    params = _params(choice.method, parts, preset or {})
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
        return f"{_a(asked)} needs a drafter that {OFFERS[lacking[0]]}; {drafter.name!r} does not."
    if not policy.needs and drafter.gives:
        return f"Policy {policy.name!r} drafts nothing: {drafter.title} would never be asked; choose another."
    if choice.views and "views" not in drafter.gives:
        return f"The drafter {drafter.name!r} sees the prompt in its own way; leave views empty."
    if not choice.views and "views" in drafter.gives:
        return f"The drafter {drafter.name!r} needs at least one view of the prompt: {', '.join(VIEWS)}."
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


def _params(method: Method, parts: tuple[Part, ...], preset: Mapping[str, Value]) -> dict[str, Param]:
    views = [part for part in parts if VIEWS.get(part.name) is part]
    mixture = (MIXTURE,) if len(views) > 1 else ()
    changes = {**method.defaults, **preset}
    return {
        param.name: replace(param, default=param.read(changes.get(param.name, param.default)))
        for part in (*parts, *mixture)
        for param in part.params
    }


def _a(part: Part) -> str:
    return part.title[:1].upper() + part.title[1:]
