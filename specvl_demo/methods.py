"""The table of decoding methods: a method is drafter x views x tree policy x verifier, with its parameters.

Rows of data and the rules of what fits what; nothing is computed or imported here (`assemble` does that), so
the command line, the page and the docs can read it at once. Standard library only.

To add a part: write it in a file of its own and add one row to DRAFTERS, VIEWS, POLICIES or VERIFIERS, whose
`build` names the callable that makes it from the row's parameters. To add a method: add one row to METHODS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

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
    options: other parts that may be put into a slot; None allows all. presets: named changes of parameters.
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
    part.name: part for part in (Part("multimodal", "the whole prompt", "specvl_demo.assemble:full_view"),)
}

MIXTURE: Part | None = None
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
            "a fixed tree of 25 paths",
            "specvl_demo.core.policies:RankedTree",
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
    part.name: part for part in (Part("strict", "strict", "specvl_demo.core.verify:Strict"),)
}

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
    preset: the changes of parameters to start from, where the method has such a preset.
    """
    method, settings = find(name), dict(settings or {})
    views_asked = "views" in settings
    names = {slot: str(settings.pop(slot, _own(method, slot))) for slot in SLOTS}
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
