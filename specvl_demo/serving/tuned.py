"""Presets measured on this machine: written by `bench tune`, offered as the preset `tuned-here`.

One JSON file per user, by pair and method. Stores what was chosen, where, when and on which inputs;
knows nothing of how. Standard library only.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specvl_demo.methods.declare import Value
from specvl_demo.pairs.machine import cores

NAME = "tuned-here"
VARIABLE = "SPECVL_TUNED"
"""Names another file than the default."""


def place() -> Path:
    """Return the file: the one that SPECVL_TUNED names, else one among the user's settings."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    settings = os.environ.get("XDG_CONFIG_HOME")
    return (Path(settings) if settings else Path.home() / ".config") / "specvl-demo" / "tuned.json"


def here() -> str:
    """Describe this machine in a few words: presets tuned on another one are not offered."""
    return f"{platform.node()}, {cores()} cores, {platform.machine()}"


def presets(pair: str, method: str) -> dict[str, Mapping[str, Value]]:
    """Return the tuned preset of a method by its name; empty if none was tuned for this pair on
    this machine.
    """
    found = (entry(pair) or {}).get("methods", {}).get(method)
    return {NAME: found["settings"]} if found else {}


def entry(pair: str) -> dict[str, Any] | None:
    """Return everything stored about a pair on this machine; None if there is nothing.

    Raises:
        ValueError: With a sentence if the file cannot be read.
    """
    found = _read().get(pair)
    return found if isinstance(found, dict) and found.get("machine") == here() else None


def write(pair: str, facts: Mapping[str, Any], methods: Mapping[str, Mapping[str, Any]]) -> Path:
    """Store presets of a pair, keeping those of other pairs and of methods that were not tuned this
    time.

    Args:
        told: When, on which inputs, with which weights.
        methods: `settings` and the expected result, by name.
    """
    path, kept = place(), (entry(pair) or {}).get("methods", {})
    rows = {name: {**row, **facts} for name, row in methods.items()}
    all_of_it = _read() | {pair: {"machine": here(), "methods": {**kept, **rows}}}
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written to another file and renamed, so that a reader never gets half a file.
    half = path.with_suffix(".part")
    half.write_text(json.dumps(all_of_it, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    half.replace(path)
    return path


def _read() -> dict[str, Any]:
    path = place()
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not all(isinstance(one["methods"], dict) for one in found.values()):
            raise TypeError("methods are missing")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as fault:
        raise ValueError(f"{path} cannot be read ({fault}): delete it, or tune again.") from None
    return found
