"""What the trained drafters owe to their parts: rows of `bench --suite ablations`.

Given a pair's drafters, gives choices under names of their own: every drafter with the same chain of five,
heads with a part left out beside whole ones, and trees with one thing changed. Knows no models.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from specvl_demo.methods import Choice, Value, choose

_CHAIN: dict[str, Value] = {"policy": "chain", "gamma": 5}
_TREE: dict[str, Value] = {"policy": "best-first", "nodes": 16, "width": 3, "loops": 5}

ROWS: tuple[tuple[str, str, dict[str, Value]], ...] = (
    ("small-chain", "chain", {"gamma": 5}),
    ("eagle2-chain", "eagle2", _CHAIN),
    ("hivis-chain", "hivis", _CHAIN),
    ("hivis-chain-stage-1", "hivis", {**_CHAIN, "variant": "stage-1"}),
    ("dream-chain", "dream", _CHAIN),
    ("dream-chain-no-cross", "dream", {**_CHAIN, "variant": "no-cross"}),
    ("dream-chain-all-visual", "dream", {**_CHAIN, "keep": 1.0}),
    ("dream-tree", "dream", _TREE),
    ("dream-tree-leaky", "dream", {**_TREE, "ancestry": False}),
    ("hivis-tree", "hivis", _TREE),
    ("hivis-tree-stage-1", "hivis", {**_TREE, "variant": "stage-1"}),
)
"""Name, method, settings. The chain is the same for all, so that its τ compares drafters, not trees."""


def choices(roles: Collection[str]) -> list[Choice]:
    """`ar`, then every row whose drafter is among the pair's roles."""
    found = [choose("ar")]
    for name, method, settings in ROWS:
        choice = choose(method, settings)
        if choice.drafter.role in roles:
            found.append(replace(choice, method=replace(choice.method, name=name)))
    return found
