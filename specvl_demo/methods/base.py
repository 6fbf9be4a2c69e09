"""Methods as data: drafter x views x tree policy x verifier, with presets, charts and texts.

Every file of this folder declares settings and parts and registers its method here; `register` does
the same for a file outside the package. The command line, the page and the docs read these tables.
`build_parts` turns a choice into the parts of a lane. One file, since a method is registered only
if its choices can be made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from specvl_demo.core.engine import Parts
from specvl_demo.core.types import Policy
from specvl_demo.core.verification import LosslessVerifier
from specvl_demo.methods.declare import AUTO, Lesson, Param, Settings, Value, Values
from specvl_demo.methods.tree_size import Worth, worthwhile_nodes
from specvl_demo.pairs import Checkpoint
from specvl_demo.records import Chart, check_chart

if TYPE_CHECKING:  # the page's process reads the methods, and loads no model
    from specvl_demo.pairs.fitting import LoadPlan
    from specvl_demo.vlm.prompts import PromptBuilder
    from specvl_demo.vlm.target import VLMTarget

T = TypeVar("T")
Slot = Literal["drafter", "views", "policy", "verifier", "mixture"]
SLOTS: tuple[Slot, ...] = ("drafter", "views", "policy", "verifier")
"""What can be chosen by name. The mixture cannot: it is added if there are several views."""
AND = "+"
"""Joins several views in one setting: views=multimodal+text-only."""

OFFERS = {
    "chain": "proposes tokens",
    "tree": "returns the probabilities of several tokens at every position",
    "views": "reads the prompt through views",
}
CHAIN = frozenset({"chain"})
TREE = frozenset({"chain", "tree"})
"""What a drafter offers, or what a policy or verifier needs of it: names in OFFERS."""


@dataclass(frozen=True)
class Opening:
    """One model to load, and its target, which is loaded already: what `Part.open` is given.

    Attributes:
        checkpoint: Of the drafter.
        fetch: fetch(is_head) returns the folder of its files, downloaded first if they are not
            here; of a head, .bin files too.
        plan: How models beside the target are loaded: whole, on the device of its first layers.
    """

    checkpoint: Checkpoint
    fetch: Callable[[bool], Path]
    plan: LoadPlan
    target: VLMTarget
    prompter: PromptBuilder


@dataclass(frozen=True, eq=False)
class Part:
    """A drafter, view, mixture, tree policy or verifier that methods are made of.

    Attributes:
        build: Makes a new object for one lane: a drafter of models, views, mixer (None for one
            view) and settings, an instance of the class `settings`; a view of models and settings;
            mixtures, policies and verifiers of settings alone.
        gives: What a drafter offers (names in OFFERS).
        needs: What a policy or verifier requires of the drafter (names in OFFERS).
        role: Which of a pair's models a drafter runs on, None for none; `open` loads that model,
            or raises ValueError with a sentence if its files do not fit the target.
        label: Names a policy and its settings in the title of a method that has another one.
        notes: What the page calls its notes, if not as its charts do.
    """

    slot: Slot
    name: str
    title: str
    build: Callable[..., Any]
    settings: type[Settings] = Settings
    gives: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    role: str | None = None
    open: Callable[[Opening], Any] | None = None
    lossless: bool = True
    greedy_only: bool = False
    label: Callable[[Any], str] | None = None
    charts: tuple[Chart, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)

    def read_settings(self, values: Values) -> Settings:
        """Return its settings with those of these values that are its own."""
        names = {param.name for param in self.settings.params()} & values.keys()
        return self.settings(**{name: values[name] for name in names})


def note_names() -> dict[str, str]:
    """Return what the page calls the notes of all parts."""
    parts = (part for of_slot in PARTS.values() for part in of_slot.values())
    return {key: text for part in parts for key, text in part.notes.items()}


STRICT = Part("verifier", "strict", "strict verification", lambda settings: LosslessVerifier())
"""Keeps exactly what the target would have emitted: the verifier of every method by default."""


@dataclass(frozen=True, eq=False)
class Method:
    """One row of the method table.

    Attributes:
        views: Empty for drafters that have none.
        reference, url: The name of its paper, and where it is.
        defaults: Parameters that differ from the parts' own defaults.
        options: Other parts, or names of parts of other files, that may replace its own; None: all.
        presets: Named changes of parameters and, by slot, of parts.
        preset_titles: The page's names of presets, if they differ from their names.
        order: Its place in the list of methods.
        listed: Where the page lists it: "first", with the five papers' ("paper", which can be raced
            with one press), or one press away ("more").
        offered: Its rank for a first visitor, who gets the first that the pair supports.
    """

    name: str
    title: str
    summary: str
    drafter: Part
    policy: Part
    verifier: Part = STRICT
    views: tuple[Part, ...] = ()
    reference: str = ""
    url: str = ""
    defaults: Values = field(default_factory=dict)
    options: tuple[Part | str, ...] | None = ()
    presets: Mapping[str, Values] = field(default_factory=dict)
    preset_titles: Mapping[str, str] = field(default_factory=dict)
    learn: Lesson | None = None
    order: int = 500
    listed: Literal["first", "paper", "more"] = "more"
    offered: int | None = None

    @property
    def lossless(self) -> bool:
        """Whether it returns the target's own answer with its default parts."""
        return self.verifier.lossless

    @property
    def parts(self) -> list[Part]:
        """All parts it declares, the default ones first."""
        options = [part for part in self.options or () if isinstance(part, Part)]
        return [self.drafter, *self.views, self.policy, self.verifier, *options]


def part_name(row: Method | Choice, slot: Slot) -> str:
    """Return the name of the part in a slot; names of several views are joined."""
    if slot == "views":
        return AND.join(view.name for view in row.views)
    return getattr(row, slot).name


PARTS: dict[Slot, dict[str, Part]] = {slot: {} for slot in (*SLOTS, "mixture")}
METHODS: dict[str, Method] = {}


def register(method: Method) -> Method:
    """Add a method and its parts to the tables.

    Raises:
        ValueError: If a name is taken or the method is not valid.
    """
    if not isinstance(method, Method):
        raise ValueError(f"register takes a Method, not an object of type {type(method).__name__}.")
    if not re.fullmatch(r"[A-Za-z0-9_-]+", method.name):
        raise ValueError(f"A method's name has only letters, digits, - and _, not {method.name!r}.")
    if method.name in METHODS:
        raise ValueError(f"There is already a method {method.name!r}; choose another name.")
    for part in method.parts:
        if PARTS[part.slot].get(part.name, part) is not part:
            raise ValueError(f"There is already a {part.slot} {part.name!r}; choose another name.")
    new = [part for part in method.parts if part.name not in PARTS[part.slot]]
    for part in new:
        PARTS[part.slot][part.name] = part
    rows = {**METHODS, method.name: method}
    METHODS.clear()
    METHODS.update(sorted(rows.items(), key=lambda row: row[1].order))
    try:
        _check(method)
    except (ValueError, TypeError) as fault:
        del METHODS[method.name]
        for part in new:
            PARTS[part.slot].pop(part.name, None)
        raise ValueError(f"Method {method.name!r} cannot be registered: {fault}") from fault
    return method


def _check(method: Method) -> None:
    """Raise ValueError or TypeError if defaults, presets, charts or the policy are not valid."""
    choice = choose(method.name)
    policy = choice.build(choice.policy)
    if not isinstance(policy, Policy) or not hasattr(policy, "max_nodes"):
        raise ValueError(
            f"its policy {type(policy).__name__} must derive from specvl_demo.core.types.Policy and"
            " set max_nodes"
        )
    for name, preset in method.presets.items():
        try:
            # As settings, not as a starting point, so that unknown names are refused.
            choose(method.name, dict(preset))
        except ValueError as fault:
            raise ValueError(f"preset {name!r}: {fault}") from fault
    for part in method.parts:
        _refuse_shared_parameters(part)
        for chart in part.charts:
            check_chart(chart)


def _refuse_shared_parameters(part: Part) -> None:
    """Raise ValueError if a part that may be combined with this one means something else by the
    name of one of its parameters: the two would have one value.
    """
    params = {param.name: param for param in part.settings.params()}
    for other in (other for slot in PARTS.values() for other in slot.values()):
        together = other is not part and (other.slot != part.slot or part.slot == "views")
        for param in other.settings.params() if together else ():
            if params.get(param.name, param) != param:
                raise ValueError(
                    f"{part.slot} {part.name!r} and {other.slot} {other.name!r} both have a"
                    f" parameter {param.name!r} and mean different things by it; rename one"
                )


@dataclass(frozen=True)
class Choice:
    """A method with everything decided: parts that fit together and a value for every parameter."""

    method: Method
    drafter: Part
    views: tuple[Part, ...]
    policy: Part
    verifier: Part
    params: Values

    @property
    def lossless(self) -> bool:
        return self.verifier.lossless

    @property
    def title(self) -> str:
        """The method's title, with the policy if it is not the default or draws a tree.

        Examples: "EAGLE-2, chain of 8", "Static tree of 12".
        """
        is_default = self.policy is self.method.policy
        drawn = describe_draft(self.settings)
        if is_default and (self.policy.label is None or not self.policy.needs >= TREE):
            return self.method.title
        whole = drawn.startswith(self.method.title.lower())
        return drawn[:1].upper() + drawn[1:] if whole else f"{self.method.title}, {drawn}"

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts that have parameters; several views add the mixture."""
        mixture = PARTS["mixture"].values() if len(self.views) > 1 else ()
        return (self.drafter, *self.views, self.policy, self.verifier, *mixture)

    @property
    def declared(self) -> dict[str, Param]:
        """What can be set on its parts, by name."""
        return {param.name: param for part in self.parts for param in part.settings.params()}

    @property
    def charts(self) -> list[Chart]:
        return [chart for part in self.parts for chart in part.charts]

    @property
    def settings(self) -> dict[str, Value]:
        """Parts and parameters as plain values, as stored in a record."""
        return {**{slot: part_name(self, slot) for slot in SLOTS}, **self.params}

    def build(self, part: Part, *given: Any) -> Any:
        """Return a new object of one of its parts, for one lane."""
        return part.build(*given, part.read_settings(self.params))


def describe_draft(settings: Values) -> str:
    """Return what a round drafts with these settings, in words: "chain of 8"."""
    part = PARTS["policy"][str(settings["policy"])]
    if part.label is None:
        return part.title
    return part.label(part.read_settings(settings))


def find(name: str) -> Method:
    """Return the method of this name; ValueError with the known names if there is none."""
    if name not in METHODS:
        raise ValueError(
            f"There is no method {name!r}; known: {', '.join(METHODS)}. Your own are read from the"
            " files named in SPECVL_METHODS."
        )
    return METHODS[name]


def choose(
    name: str,
    settings: Values | None = None,
    preset: Values | None = None,
    temperature: float = 0.0,
) -> Choice:
    """Return a method with these settings.

    Args:
        settings: Parameters by name, and names of parts by slot (several views joined with "+").
        preset: Changes of parameters and parts to start from.

    Raises:
        ValueError: With a sentence if a name is unknown or the parts do not fit together.
    """
    method = find(name)
    settings = dict(settings or {})
    start = preset or {}
    views_asked = "views" in settings
    names = {
        slot: str(settings.pop(slot, start.get(slot, part_name(method, slot)))) for slot in SLOTS
    }
    drafter, policy, verifier = (
        _allowed_part(method, slot, names[slot]) for slot in ("drafter", "policy", "verifier")
    )
    view_names = filter(None, names["views"].split(AND))
    views = tuple(_allowed_part(method, "views", view) for view in view_names)
    if not views_asked and "views" not in drafter.gives:
        # Another drafter was chosen, and the views belong to the method's default one.
        views = ()
    choice = Choice(method, drafter, views, policy, verifier, {})
    changes = {**method.defaults, **start}
    params = choice.declared
    values = {key: param.read(changes.get(key, param.default)) for key, param in params.items()}
    for key, value in settings.items():
        if key not in params:
            settable = ", ".join([*params, *SLOTS, "preset"])
            raise ValueError(f"{method.name} has no parameter {key!r}; it has: {settable}.")
        values[key] = params[key].read(value)
    choice = replace(choice, params=values)
    reason = misfit(choice, temperature)
    if reason:
        raise ValueError(reason)
    return choice


def parameters(
    name: str,
    settings: Values | None = None,
    preset: Values | None = None,
) -> list[Param]:
    """Return what can be set on a method with these parts, with the current value as default."""
    choice = choose(name, settings, preset)
    adjustable = [
        replace(param, default=choice.params[key]) for key, param in choice.declared.items()
    ]
    return sorted(adjustable, key=lambda param: param.last)


def parts_for_slot(name: str, slot: Slot) -> list[Part]:
    """Return the parts that may fill a slot of a method, its default ones first."""
    method = find(name)
    parts = PARTS[slot]
    others = parts if method.options is None else [getattr(p, "name", p) for p in method.options]
    names = [*part_name(method, slot).split(AND), *others]
    return list(dict.fromkeys(parts[name] for name in names if name in parts))


def misfit(choice: Choice, temperature: float) -> str | None:
    """Return why these parts do not work together, in a sentence; None if they do."""
    drafter = choice.drafter
    policy = choice.policy
    verifier = choice.verifier
    lacking = sorted((policy.needs | verifier.needs) - drafter.gives)
    if lacking:
        part = policy if lacking[0] in policy.needs else verifier
        title = part.title[:1].upper() + part.title[1:]
        return f"{title} needs a drafter that {OFFERS[lacking[0]]}; {drafter.name!r} does not."
    if not policy.needs and drafter.gives:
        return (
            f"Policy {policy.name!r} drafts nothing, so {drafter.title} would never be used;"
            " choose another policy."
        )
    if choice.views and "views" not in drafter.gives:
        return f"The drafter {drafter.name!r} does not use views; leave views empty."
    if not choice.views and "views" in drafter.gives:
        names = ", ".join(PARTS["views"])
        return f"The drafter {drafter.name!r} needs at least one view of the prompt: {names}."
    if len(set(choice.views)) < len(choice.views):
        return "A view is named twice; name each view of the prompt once."
    if verifier.greedy_only and temperature > 0:
        return (
            f"{choice.method.name} is not defined for sampling: {verifier.title} compares drafts"
            " with the target's likeliest token. Set the temperature to 0, or verifier=strict, or"
            " choose another method."
        )
    return None


@dataclass(frozen=True)
class Models:
    """What a pair has loaded.

    Attributes:
        drafters: By role ("small": a VLM; heads by their names).
        words: Token ids that views put in place of pictures, by purpose: "newline"; "caption",
            which precedes a caption; "describe", which follows a picture and makes the drafter
            caption it, up to where its answer begins.
    """

    target: VLMTarget
    drafters: dict[str, Any]
    words: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    _made: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def make_once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returns, the same object for all lanes that use this key."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def drafter(self, role: str) -> Any:
        """Return the model of a role; ValueError if the pair has none."""
        if role not in self.drafters:
            roles = ", ".join(self.drafters) or "none"
            raise ValueError(f"{self.target.name} has no drafter {role!r} here; it has: {roles}.")
        return self.drafters[role]


def opener(role: str) -> Callable[[Opening], Any]:
    """Return what loads a pair's model of this role, as the drafter that runs on it declares."""
    return next(part.open for part in PARTS["drafter"].values() if part.open and part.role == role)


def build_parts(choice: Choice, models: Models) -> Parts:
    """Return new parts for one lane. What is AUTO is chosen by what the target's rows cost here."""
    settings = choice.settings
    open_: list[Any] = [p for p in choice.policy.settings.params() if settings[p.name] == AUTO]
    costs = models.target.row_costs if open_ else {}
    chosen = {p.name: worthwhile_nodes(costs, p.low, p.high, p.auto) for p in open_}
    choice = replace(choice, params={**choice.params, **chosen})
    policy = choice.build(choice.policy)
    if chosen:
        policy.worth = Worth(costs)
    views = [choice.build(view, models) for view in choice.views]
    mixer = next((choice.build(part) for part in choice.parts if part.slot == "mixture"), None)
    return Parts(
        method=choice.method.name,
        title=f"{choice.title} (auto)" if chosen else choice.title,
        lossless=choice.lossless,
        settings=settings,
        chosen=chosen,
        drafter=choice.build(choice.drafter, models, views, mixer),
        policy=policy,
        verifier=choice.build(choice.verifier),
        draws=cast("Any", choice.params.get("draws", "argmax")),
        charts=choice.charts,
    )


def _allowed_part(method: Method, slot: Slot, name: str) -> Part:
    """Return the part of this name; ValueError if it is unknown or the method cannot have it."""
    parts = PARTS[slot]
    if name not in parts:
        raise ValueError(
            f"There is no {slot.removesuffix('s')} {name!r}; known: {', '.join(parts)}."
        )
    allowed = parts_for_slot(method.name, slot)
    if parts[name] not in allowed:
        names = ", ".join(part.name for part in allowed) or "nothing"
        raise ValueError(
            f"{method.title} can have as {slot}: {names}; to use {name!r}, take the method custom."
        )
    return parts[name]
