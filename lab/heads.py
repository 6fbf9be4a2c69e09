"""Compares trained heads on one target, each drafting the same chain and the same tree, given a
folder with one for each, with the card that `train` writes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.options import LabOptions
from specvl_demo.compare import measure
from specvl_demo.methods.base import METHODS, Choice, Models, Part, Value, choose
from specvl_demo.methods.heads import checkpoints
from specvl_demo.pairs import fingerprints
from specvl_demo.serving.loaded import LoadedPair

SHAPES: dict[str, dict[str, Value]] = {
    "chain": {"policy": "chain", "gamma": 5},
    "tree": {"policy": "best-first", "nodes": 16, "width": 3, "loops": 5},
}


@dataclass(frozen=True)
class Trained:
    """A head in a folder, the role it serves, and its card."""

    folder: Path
    role: str
    head: Any
    card: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def part(self) -> Part:
        """Return its method's drafter with this head in place of the pair's."""
        part = METHODS[self.role].drafter

        def build(models: Models, *rest: Any) -> Any:
            return part.build(replace(models, drafters={self.role: self.head}), *rest)

        return replace(part, build=build)

    def drafting(self, shape: str) -> Choice:
        """Return its method with this head and one of SHAPES."""
        chosen = choose(self.role, SHAPES[shape])
        method = replace(chosen.method, name=f"{self.name} {shape}")
        return replace(chosen, method=method, drafter=self.part)


def report(options: LabOptions) -> dict[str, Any]:
    """Return `machine, settings, rows`: one per head and shape, with what was unlike."""
    if options.heads is None:
        raise ValueError(
            "Comparing heads needs --heads: a folder with a folder for each trained head."
        )
    loaded, found = options.load([]), options.cases()
    heads = opened(loaded, options.heads)
    choices = [choose("ar"), *(one.drafting(shape) for one in heads for shape in SHAPES)]
    measured = measure.run_bench(
        loaded, found, choices, options.repeats, options.max_new_tokens, (), options.tell
    )
    own = {head.name: fingerprints.folder_hash(head.folder) for head in heads}
    machine = measured["machine"]
    machine |= {"weights": {"target": machine["weights"]["target"], **own}}
    return {
        **measured,
        "heads": [
            {"head": one.name, **{key: one.card[key] for key in ("parameters", "steps")}}
            for one in heads
        ],
        "unlike": unlike({one.name: one.card for one in heads}),
    }


def opened(loaded: LoadedPair, folder: Path) -> list[Trained]:
    """Return the heads in the folders of `folder` by name; ValueError if none fits the target."""
    found, target = [], loaded.models.target
    config: Any = target.vlm.model.config
    text = config.get_text_config().to_dict()
    for one in sorted(config.parent for config in folder.glob("*/config.json")):
        head = checkpoints.open_head(one, target.decoder, target=text)
        try:
            card = json.loads((one / "card.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise ValueError(
                f"{one} has no readable card.json; `python -m recipes` writes one."
            ) from None
        role = checkpoints.role_in(one)
        if role is not None:
            found.append(Trained(one, role, head, card))
    if not found:
        raise ValueError(f"{folder} has no folder with a trained head; name one with --heads.")
    return found


def unlike(cards: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return one sentence for everything in which the cards of several heads differ."""
    values: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, card in cards.items():
        facts = {key: card.get(key) for key in ("weights", "data", "conversations", "steps")}
        for key, value in {**card["recipe"], **facts}.items():
            values[key][json.dumps(value)].append(name)
    return [
        f"{key}: "
        + "; ".join(f"{value} for {', '.join(names)}" for value, names in by.items())
        + "."
        for key, by in sorted(values.items())
        if len(by) > 1
    ]
