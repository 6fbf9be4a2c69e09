"""Chooses methods and settings for a pair: which it supports, and how.

Reads the tables of pairs and methods; loads no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from specvl_demo import pairs
from specvl_demo.methods import base
from specvl_demo.methods.base import Choice, Value
from specvl_demo.methods.heads.files import compare, flattened
from specvl_demo.pairs import CUSTOM, ROLES, Checkpoint, PairSpec, Role, base_weights
from specvl_demo.pairs.machine import Machine
from specvl_demo.serving import availability
from specvl_demo.serving.availability import Availability, available, there
from specvl_demo.vlm.hub import RECURRENT, asks


def default_pair() -> PairSpec:
    """Return the pair a visitor starts with: photo if its weights and a drafter are there, else
    pocket.
    """
    photo = pairs.find("photo")
    ready = there(photo.target) and base_weights.why_not(photo.target.folder) is None
    return photo if ready and roles_here(photo) else pairs.find("pocket")


def roles_here(pair: PairSpec) -> dict[Role, Checkpoint]:
    """Return the drafters of a pair that can be loaded: local ones only if their weights exist."""
    return {
        role: checkpoint
        for role, checkpoint in pair.drafters.items()
        if not checkpoint.local or there(checkpoint)
    }


def roles_of(choices: Sequence[Choice]) -> list[Role]:
    """Return the roles of the drafters that these methods need, each once."""
    roles = dict.fromkeys(
        choice.drafter.role for choice in choices if choice.drafter.role is not None
    )
    return cast("list[Role]", list(roles))


def choose(
    pair: PairSpec, name: str, settings: Mapping[str, Value] | None = None, temperature: float = 0.0
) -> Choice:
    """Return a method set up for a pair.

    `preset` among the settings names the changes to start from; the default is the preset made for
    the pair, else the paper's.

    Raises:
        ValueError: With a sentence if a name is unknown or the parts do not fit together.
    """
    if name not in base.METHODS:
        raise ValueError(
            f"There is no method {name!r}; known: {', '.join(_possible(pair, temperature))};"
            f" others need a drafter that {pair.called} does not have here (`python -m recipes`"
            " trains one). Your own are read from the files named in SPECVL_METHODS."
        )
    method = base.find(name)
    rest = {key: value for key, value in (settings or {}).items() if key != "preset"}
    preset = (settings or {}).get("preset")
    named = method.presets
    if preset is not None and preset not in named:
        presets = ", ".join(named) or "none"
        raise ValueError(f"{method.name} has no preset {preset!r}; it has: {presets}.")
    start = named.get(str(preset or standard(pair, name)))
    choice = base.choose(name, rest, start, temperature)
    role = choice.drafter.role
    if role is not None and role not in roles_here(pair):
        a = "an" if ROLES[role].startswith("E") else "a"
        raise ValueError(
            f"{method.name} needs {a} {ROLES[role]}; {pair.called} has {_held(pair)} here."
        )
    if pair.family in RECURRENT and choice.policy.needs >= base.TREE:
        raise ValueError(
            f"{method.name} drafts a tree, but {pair.family} has linear-attention layers, whose"
            " state follows one chain; choose a method that drafts a chain, or set policy=chain."
        )
    return choice


def _held(pair: PairSpec) -> str:
    """Name the drafters of two models that a user chose; "none" for a listed pair."""
    held = [f"the {ROLES[role]}" for role in roles_here(pair)]
    return " and ".join(held) if held and pair.id == CUSTOM else "none"


def standard(pair: PairSpec, name: str) -> str | None:
    """Return the preset a method starts from: the one made for the pair, else the paper's."""
    return next(
        (preset for preset in (pair.id, "paper") if preset in base.find(name).presets), None
    )


def served(pair: PairSpec, temperature: float = 0.0) -> list[str]:
    """Return the methods that the pair's drafters support with their default parts, without
    `custom`.
    """
    return [name for name in _possible(pair, temperature) if name != "custom"]


def _possible(pair: PairSpec, temperature: float) -> list[str]:
    """Return the methods of `served`, and `custom` if its own parts can be chosen."""
    names = []
    for name in base.METHODS:
        try:
            choose(pair, name, temperature=temperature)
        except ValueError:
            continue
        names.append(name)
    return names


def availability_of(pair: PairSpec, name: str, machine: Machine) -> Availability:
    """Return whether a method runs on the pair here, with only the drafter that it needs.

    Raises:
        ValueError: With a sentence if the pair does not support it at all.
    """
    role = choose(pair, name).drafter.role
    return available(pair, machine, roles=[name for name in pair.drafters if name == role])


def remarks(pair: PairSpec) -> list[str]:
    """Return what the target asks for in vain, and what the heads' configurations leave out or set
    differently from the target's, as far as their files are here.

    Weights are not read; `Loaded.remarks` has more.
    """
    target = availability.config(pair.target)
    if target is None:
        return []
    text = target.get("text_config", target)
    penalties = asks(availability.config(pair.target, "generation_config.json") or {})
    sentences = [penalties] if penalties else []
    for role, checkpoint in pair.drafters.items():
        if role != "small" and (config := availability.config(checkpoint)):
            windows = role in ("dflash", "assistant")
            sentences += compare(flattened(config), text, checkpoint.title, windows)
    return sentences
