"""What can be chosen here, as plain data for the page: pairs, methods, their parameters, examples, limits.

Read from the tables of pairs and methods and from examples/; loads no model and fetches nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specvl_demo import __version__, media, methods, registry
from specvl_demo.methods import AND, SLOTS, Method, Param, Slot
from specvl_demo.pairs import PAIRS, Pair, find
from specvl_demo.report.declared import DECLARED, declarations
from specvl_demo.training import scenes
from specvl_demo.ui import words
from specvl_demo.ui.jobs import MOST_FILES, MOST_SHOWN, MOST_TEXT, MOST_TOKENS, MOST_TURNS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PICTURE_TYPES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".avif")
CLIP_TYPES = (".mp4", ".mov", ".webm", ".avi")
FIRST_METHODS = ("sage", "chain", "tabed", "ngram")
"""What a first visitor is offered: the first of these that runs."""


def describe(first_pair: str) -> dict[str, Any]:
    """The whole catalog; first_pair stands first and is what a visitor starts with."""
    machine = registry.detect()
    pairs = sorted(PAIRS, key=lambda pair: pair.id != first_pair)
    served = registry.served(find(first_pair))
    shown = examples()
    return {
        "version": __version__,
        "machine": machine.title,
        "pairs": [_pair(pair, machine) for pair in pairs],
        "methods": [_method(method) for method in methods.METHODS.values()],
        "charts": {chart["id"]: chart for name in DECLARED for chart in declarations(name)},
        "examples": shown["examples"],
        "lessons": {"machine": shown["machine"], "methods": shown["lessons"]},
        "defaults": {"methods": [name for name in FIRST_METHODS if name in served][:1]},
        "limits": {
            "files": MOST_FILES,
            "shown": MOST_SHOWN,
            "turns": MOST_TURNS,
            "bytes": media.Limits().max_bytes,
            "question": MOST_TEXT,
            "tokens": MOST_TOKENS,
            "picture_types": PICTURE_TYPES,
            "clip_types": CLIP_TYPES,
        },
        "scene": {
            "kinds": list(scenes.KINDS),
            "colours": {name: _css(rgb) for name, rgb in scenes.COLOURS.items()},
            "sizes": list(scenes.SIZES),
            "places": list(scenes.PLACES),
            "grounds": {name: _css(rgb) for name, rgb in scenes.GROUNDS.items()},
        },
    }


def panel(pair_id: str, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What can be set on a method with these parts: presets, parts and parameters, each with its standard.

    problem: a sentence where the chosen parts do not fit together.
    """
    pair, method = find(pair_id), methods.find(name)
    named = registry.presets(pair, name)
    standard = registry.standard(pair, name)
    asked = settings.get("preset")
    preset = named.get(asked if asked in named else standard or "")
    parts = {slot: settings[slot] for slot in SLOTS if slot in settings}
    problem = None
    try:
        params = methods.parameters(name, parts, preset)
    except ValueError as fault:
        params, problem = [], str(fault)
    start = methods.choose(name, None, preset).settings
    return {
        "presets": list(named),
        "standard": standard,
        "parts": [_slot(method, slot, start[slot]) for slot in SLOTS if len(_open(method, slot)) > 1],
        "params": [_param(param, _paper(method, parts)) for param in params],
        "free": method.options is None,
        "problem": problem,
    }


def examples() -> dict[str, Any]:
    """The shipped examples whose files are really there, and what the methods were found to do on them."""
    index = EXAMPLES / "examples.json"
    if not index.is_file():
        return {"machine": "", "examples": [], "lessons": {}}
    found = json.loads(index.read_text(encoding="utf-8"))
    there = [one for one in found["examples"] if all((EXAMPLES / name).is_file() for name in one["media"])]
    return {**found, "examples": [_example(one) for one in there]}


def example_files() -> list[Path]:
    """Files of the examples that a page may fetch."""
    return [path for path in EXAMPLES.glob("*.*") if path.suffix != ".py"]


def _example(one: Mapping[str, Any]) -> dict[str, Any]:
    shown = []
    for name in one["media"]:
        path = EXAMPLES / name
        kind = "video" if path.suffix in CLIP_TYPES else "image"
        shown.append({"path": str(path), "url": _url(path), "name": name, "kind": kind})
    trace = EXAMPLES / one["trace"] if one.get("trace") else None
    recorded = _url(trace) if trace and trace.is_file() else None
    pictures = [item["url"] for item in shown if item["kind"] == "image"]
    return {**one, "media": shown, "trace": recorded, "thumbs": pictures}


def _url(path: Path) -> str:
    return f"gradio_api/file={path}"


def _pair(pair: Pair, machine: registry.Machine) -> dict[str, Any]:
    verdict = registry.available(pair, machine)
    return {
        "id": pair.id,
        "title": pair.title,
        "available": verdict.ok,
        "help": pair.note or verdict.reason,
        "reason": verdict.reason,
        "scenes": pair.shipped,
        "methods": {method.name: _served(pair, method) for method in methods.METHODS.values()},
    }


def _served(pair: Pair, method: Method) -> bool | str:
    """True, or the sentence that says why the pair does not serve the method."""
    try:
        registry.choose(pair, method.name)
    except ValueError as fault:
        return str(fault)
    return True


def _method(method: Method) -> dict[str, Any]:
    return {
        "name": method.name,
        "title": method.title,
        "help": method.summary,
        "lossless": method.lossless,
        "reference": method.reference,
        "charts": [chart["id"] for chart in declarations(method.name)],
    }


def _open(method: Method, slot: Slot) -> list[methods.Part]:
    return methods.alternatives(method.name, slot)


def _slot(method: Method, slot: Slot, standard: Any) -> dict[str, Any]:
    """A part of the method that may be another one; several views may stand together."""
    return {
        "key": slot,
        "kind": "set" if slot == "views" else "choice",
        "default": standard,
        "choices": [[part.name, part.title] for part in _open(method, slot)],
        "joined": AND,
        "title": words.SLOTS[slot],
        "help": words.SLOT_HELP[slot],
    }


def _paper(method: Method, parts: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as the method's paper sets them, with these parts; empty where nobody says."""
    paper = method.presets.get("paper")
    if paper is None:
        return {}
    try:
        return {param.name: param.default for param in methods.parameters(method.name, parts, paper)}
    except ValueError:
        return {}  # these parts do not fit together, which `panel` tells


def _param(param: Param, paper: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "key": param.name,
        "kind": param.kind,
        "default": param.default,
        "paper": paper.get(param.name),
        "min": param.low,
        "max": param.high,
        "choices": [[choice, choice] for choice in param.choices],
        "title": param.name.replace("_", " "),
        "help": param.help,
    }


def _css(rgb: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*rgb)
