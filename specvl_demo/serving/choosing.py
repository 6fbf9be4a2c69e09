"""Chooses methods and settings for a pair; loads no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from specvl_demo import pairs
from specvl_demo.methods import base
from specvl_demo.methods.base import Choice, Value, Values
from specvl_demo.methods.heads.files import differences, flatten_config
from specvl_demo.pairs import (
    CUSTOM,
    ROLES,
    PairSpec,
    Role,
    base_weights,
    on_disk,
    placing,
)
from specvl_demo.pairs.machine import Machine
from specvl_demo.question import json_kind, list_of, text_of, wrong_kind
from specvl_demo.vlm.hub import RECURRENT, text_section, unapplied_settings

MAX_NAME = 120
"""Characters of a name."""


def default_pair() -> PairSpec:
    """Return the pair to start with: photo if its weights and a drafter are there, else pocket."""
    photo = pairs.find("photo")
    ready = on_disk.has_weights(photo.target) and base_weights.problem(photo.target.folder) is None
    return photo if ready and on_disk.loadable_drafters(photo) else pairs.find("pocket")


def roles_of(choices: Sequence[Choice]) -> list[Role]:
    """Return the roles of the drafters that these methods need, each once."""
    roles = dict.fromkeys(role for choice in choices if (role := choice.drafter.role) is not None)
    return cast("list[Role]", list(roles))


def read_lanes(
    names: Any, settings: Any, baseline: bool = False
) -> list[tuple[str, dict[str, Value]]]:
    """Return the methods in plain data, each with its settings; ValueError if there is none, or if
    one is named twice.

    settings: Parameters by method, whose bounds `choose` checks; those of other methods do not
    count. baseline: Whether the plain model runs first.
    """
    methods = list(map(_method_name, list_of(names, str, "The methods", "a list of names")))
    if not methods and not baseline:
        raise ValueError("The methods must name at least one method; `models` lists them.")
    if twice := [name for name in methods if methods.count(name) > 1]:
        raise ValueError(f"The methods name {twice[0]} twice.")
    what = 'an object with the parameters of each method by name, such as {"chain": {"gamma": 3}}'
    if not isinstance(settings, Mapping | None):
        raise wrong_kind("Settings", what, settings)
    settings = settings or {}
    for name, values in settings.items():
        _method_name(name)
        if not isinstance(values, Mapping | None):
            raise ValueError(f"Settings must be {what}; under {name!r} is {json_kind(values)}.")
        for key, value in (values or {}).items():
            if not isinstance(value, Value):
                setting = f"The setting {text_of(key, 'A setting', MAX_NAME)!r}"
                raise wrong_kind(setting, "a number, text, true or false", value)
    each_once = dict.fromkeys(["ar", *methods] if baseline else methods)
    return [(name, dict(settings.get(name) or {})) for name in each_once]


def _method_name(name: Any) -> str:
    return base.find(text_of(name, "A method's name", MAX_NAME)).name


def choose(
    pair: PairSpec, name: str, settings: Values | None = None, temperature: float = 0.0
) -> Choice:
    """Return a method set up for a pair; ValueError if a name is unknown or parts do not fit.

    `preset` among the settings names the changes to start from; the default is the preset made for
    the pair, else the paper's.
    """
    method = base.find(name)
    rest = dict(settings or {})
    preset = rest.pop("preset", None)
    if preset is not None and preset not in method.presets:
        presets = ", ".join(method.presets) or "none"
        raise ValueError(f"{method.name} has no preset {preset!r}; it has: {presets}.")
    start = method.presets.get(str(preset or standard_preset(pair, name)))
    choice = base.choose(name, rest, start, temperature)
    role = choice.drafter.role
    here = on_disk.loadable_drafters(pair)
    if role is not None and role not in here:
        a = "an" if ROLES[role].startswith("E") else "a"
        # Those of two models that a user chose are named.
        held = [f"the {ROLES[role]}" for role in here] if pair.id == CUSTOM else []
        raise ValueError(
            f"{method.name} needs {a} {ROLES[role]}; {pair.display_name} has"
            f" {' and '.join(held) or 'none'} here."
        )
    if pair.family in RECURRENT and choice.policy.needs >= base.TREE:
        raise ValueError(
            f"{method.name} drafts a tree, but {pair.family} has linear-attention layers, whose"
            " state follows one chain; choose a method that drafts a chain, or set policy=chain."
        )
    return choice


def fits(pair: PairSpec, name: str, settings: Values | None, temperature: float) -> bool:
    """Whether a method can be set up so."""
    try:
        choose(pair, name, settings, temperature)
    except ValueError:
        return False
    return True


def standard_preset(pair: PairSpec, name: str) -> str | None:
    """Return the preset a method starts from: the one made for the pair, else the paper's."""
    presets = base.find(name).presets
    return next((preset for preset in (pair.id, "paper") if preset in presets), None)


def supported_methods(pair: PairSpec, temperature: float = 0.0) -> list[str]:
    """Return the methods that the pair's drafters support by default."""
    names = (name for name in base.METHODS if name != "custom")
    return [name for name in names if fits(pair, name, None, temperature)]


def offered_methods(pair: PairSpec) -> list[str]:
    """Return those of them that a first visitor is offered, the best first."""
    ranks = {name: base.find(name).offered for name in supported_methods(pair)}
    return sorted(filter(ranks.get, ranks), key=lambda name: ranks[name] or 0)


def place_method(pair: PairSpec, name: str, machine: Machine) -> placing.Placement:
    """Return whether a method, which the pair must support, runs here with only its drafter."""
    role = choose(pair, name).drafter.role
    return placing.place(pair, machine, roles=[] if role is None else [role])


def pair_remarks(pair: PairSpec) -> list[str]:
    """Return what the target asks for in vain, and what the heads' configurations leave out or set
    differently from the target's, as far as their files are here; `LoadedPair.remarks` has more.
    """
    target = on_disk.config(pair.target)
    if target is None:
        return []
    text = text_section(target)
    sentences = unapplied_settings(on_disk.config(pair.target, "generation_config.json") or {})
    for role, checkpoint in pair.drafters.items():
        if role != "small" and (config := on_disk.config(checkpoint)):
            windows = role in ("dflash", "assistant")
            sentences += differences(flatten_config(config), text, checkpoint.title, windows)
    return sentences
