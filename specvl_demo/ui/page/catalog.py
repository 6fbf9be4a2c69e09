"""What can be chosen here, as plain data for the page: pairs, methods, their parameters, examples,
limits. Loads no model and fetches nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec

from specvl_demo import media, question
from specvl_demo.compare.questions import shipped_questions
from specvl_demo.methods import base
from specvl_demo.methods.base import AND, SLOTS, Method, Param, Slot
from specvl_demo.methods.declare import tex
from specvl_demo.options import (
    DETAIL,
    FIRST,
    FURTHER,
    MAX_NEW_TOKENS_SERVED,
    NEW_TOKENS,
    STOP_HELP,
    Dtype,
    Option,
    Quantised,
)
from specvl_demo.pairs import PAIRS, PairSpec, find, placing
from specvl_demo.pairs.fitting import Options
from specvl_demo.pairs.machine import Machine, detect_machine
from specvl_demo.places import EXAMPLES
from specvl_demo.records import JsonObject
from specvl_demo.report import confidence, metrics, remarks, trace
from specvl_demo.serving import choosing
from specvl_demo.ui import messages
from specvl_demo.ui.serve.jobs import MAX_LANES

PICTURE_TYPES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".avif")
CLIP_TYPES = (".mp4", ".mov", ".webm", ".avi")
PRESET_TITLES = {
    "paper": "the paper",
    "published-code": "the published code",
    "pocket": "tuned on the pocket pair",
    "pocket-tree": "tuned on the pocket pair, with a tree",
    "photo": "tuned on the photo pair",
}
"""What presets are called that several methods have."""


def build_catalog(first_pair: str) -> JsonObject:
    """Return the whole catalog: first_pair first, then the pairs that run on this machine, those on
    a GPU before those on its processor.
    """
    machine = detect_machine()
    pairs = [_pair_entry(pair, machine) for pair in PAIRS]
    pairs.sort(key=lambda p: (p["id"] != first_pair, not p["available"], p["device"] == "cpu"))
    return {
        "machine": machine.title,
        "pairs": pairs,
        "methods": [_method_entry(method) for method in base.METHODS.values()],
        "papers": [method.name for method in base.METHODS.values() if method.listed == "paper"],
        "about": messages.ABOUT,
        "notes": base.note_names(),
        "sure": confidence.SENTENCES,
        "rules": remarks.RULES,
        "examples": example_entries(),
        "sampling": [_option_entry(option) for option in FIRST],
        "further": [*(_option_entry(option) for option in FURTHER), _param_entry(STOP)],
        "limits": {
            "files": question.MAX_FILES,
            "shown": question.MAX_SHOWN,
            "lanes": MAX_LANES,
            "turns": question.MAX_TURNS,
            "bytes": media.Limits.max_bytes,
            "question": question.MAX_CHARACTERS,
            "tokens": MAX_NEW_TOKENS_SERVED,
            "picture_types": PICTURE_TYPES,
            "clip_types": CLIP_TYPES,
            "picture_detail": [DETAIL.low, DETAIL.high, DETAIL.default],
        },
    }


STOP = Param("stop", "", STOP_HELP.capitalize(), title="Stop string")


def _option_entry(option: Option) -> JsonObject:
    """Return an option of an answer like a method's parameter."""
    low = 0 if option.or_zero else option.low
    high = MAX_NEW_TOKENS_SERVED if option is NEW_TOKENS else option.high
    numbers = option.default, option.help, low, high
    return _param_entry(Param(option.name, *numbers, title=option.title))


def method_panel(pair_id: str, name: str, settings: Mapping[str, Any]) -> JsonObject:
    """Return what can be set on a method with these parts: presets, parts, parameters, defaults.

    problem: A sentence if the chosen parts do not fit together.
    """
    pair = find(pair_id)
    method = base.find(name)
    titles = PRESET_TITLES | dict(method.preset_titles)
    standard = choosing.standard_preset(pair, name)
    named_preset = settings.get("preset")
    preset = method.presets.get(str(named_preset if named_preset in method.presets else standard))
    parts: JsonObject = {slot: settings[slot] for slot in SLOTS if slot in settings}
    problem = None
    try:
        params = base.parameters(name, parts, preset)
    except ValueError as fault:
        params = []
        problem = str(fault)
    start = base.choose(name, None, preset).settings
    paper = _paper_settings(method, parts)
    return {
        "presets": [[one, titles.get(one, one.replace("-", " "))] for one in method.presets],
        "standard": standard,
        "parts": [
            _slot_entry(slot, start[slot], name)
            for slot in SLOTS
            if len(base.parts_for_slot(name, slot)) > 1
        ],
        "params": [_param_entry(param, paper.get(param.name)) for param in params],
        "problem": problem,
    }


def example_entries() -> list[JsonObject]:
    """Return the shipped examples of the pairs that run here."""
    machine = detect_machine()
    here = {pair.id for pair in PAIRS if placing.place(pair, machine).ok}
    index = json.loads((EXAMPLES / "examples.json").read_bytes())
    return [_example_entry(one) for one in index["examples"] if one["pair"] in here]


def example_files() -> list[Path]:
    """Return the files of the examples, and the folder with pictures of held-out questions."""
    files = [path for path in EXAMPLES.glob("*.*") if path.suffix not in (".py", ".md", ".ipynb")]
    return [*files, EXAMPLES / "pocket"]


def _example_entry(one: JsonObject) -> JsonObject:
    path = EXAMPLES / one["trace"]
    media = [file_reference(EXAMPLES / name) for name in one["media"]]
    return {**one, "media": media, "trace": file_reference(path)["url"], **_recorded_race(path)}


@cache
def _recorded_race(path: Path) -> JsonObject:
    """Return how the lanes of a recorded race compare, and the speedups that can be believed."""
    lanes, _ = trace.inspect_file(path)
    compared = remarks.race_remarks(lanes)
    believed = [lane for lane in lanes[1:] if compared.lanes[lane.begin.lane].doubt is None]
    gains = [metrics.compare_with_ar(lane, lanes[0]).speedup_decode for lane in believed]
    return {"compared": msgspec.to_builtins(compared), "gains": gains}


def file_reference(path: Path) -> JsonObject:
    """Return a file of the server as the page names it in a question, and its relative address. A
    shipped one is named by its place, `examples/`, so that no path is shown to visitors.
    """
    name = path.relative_to(EXAMPLES.parent) if path.is_relative_to(EXAMPLES) else path
    kind = "video" if path.suffix in CLIP_TYPES else "image"
    return {"path": str(name), "url": f"gradio_api/file={name}", "name": path.name, "kind": kind}


def held_out_questions(pair: str) -> list[JsonObject]:
    """Return a pair's own questions, with their kind, as the page asks them."""
    return [
        {
            "kind": case.kind,
            "question": case.words,
            "media": [file_reference(Path(path)) for path in case.paths],
        }
        for case in shipped_questions(find(pair), "evaluate")
    ]


def _pair_entry(pair: PairSpec, machine: Machine) -> JsonObject:
    verdict = placing.place(pair, machine, roles=())
    notes = [pair.note, *choosing.pair_remarks(pair)]
    if verdict.must_fetch or verdict.plan.device != "cpu" or not pair.note:
        notes.insert(1, verdict.reason)
    return {
        "id": pair.id,
        "title": pair.title,
        "available": verdict.ok,
        "device": verdict.plan.device,
        "help": " ".join(filter(None, notes)),
        "reason": verdict.reason,
        "first": choosing.offered_methods(pair)[:1],
        "loading": _loading_options(pair, machine, verdict),
        "knows": pair.knows,
        "describe": pair.describe,
        "words": _vocabulary_words(pair) if pair.knows == "scenes" else None,
        "methods": {name: _method_verdict(pair, name, machine) for name in base.METHODS},
    }


def _loading_options(pair: PairSpec, machine: Machine, fits: placing.Placement) -> JsonObject:
    """Return the default ways to load weights, and of every other way True or why it cannot be."""
    ways = {"dtype": get_args(Dtype)}
    if machine.gpus:
        ways["quantised"] = get_args(Quantised)

    def runs(key: str, value: str) -> bool | str:
        change: JsonObject = {key: value}
        verdict = placing.place(pair, machine, Options(**change), roles=())
        return verdict.ok or verdict.reason

    return {
        "fits": {key: getattr(fits.plan, key) if fits.ok else "" for key in ways},
        **{key: {value: runs(key, value) for value in values} for key, values in ways.items()},
    }


def _vocabulary_words(pair: PairSpec) -> list[str]:
    """Return the words that a drawn-scene model was taught, by its vocabulary."""
    vocabulary = json.loads((pair.target.folder / "tokenizer.json").read_bytes())
    word = re.compile("Ġ([A-Za-z]{2,})|([A-Z][a-z]+)")
    starts = map(word.fullmatch, vocabulary["model"]["vocab"])
    return sorted({(found[1] or found[2]).lower() for found in starts if found})


def _method_verdict(pair: PairSpec, name: str, machine: Machine) -> bool | str:
    """Return True, or the sentence why the method does not run on the pair here."""
    try:
        verdict = choosing.place_method(pair, name, machine)
    except ValueError as fault:
        return str(fault)
    return verdict.ok or verdict.reason


def _method_entry(method: Method) -> JsonObject:
    learn = method.learn
    formula = (tex(learn.formula), learn.aloud) if learn is not None and learn.formula else None
    return {
        "name": method.name,
        "title": method.title,
        "help": method.summary,
        "lossless": method.lossless,
        "greedy": method.verifier.greedy_only,
        "expert": method.listed == "more",
        "reference": method.reference,
        "url": method.url,
        "learn": None if learn is None else {**asdict(learn), "formula": formula},
        "verdict": _paper_verdicts().get(method.name),
    }


@cache
def _paper_verdicts() -> dict[str, str]:
    """Return what was found here of each method's paper, from the shipped record."""
    found = json.loads((EXAMPLES / "papers.json").read_bytes())
    return {
        claim["method"]: f"{claim['says']} On drawn scenes (the {found['pair']} pair)"
        f" this {claim['verdict']} {claim['lacking']}".strip()
        for claim in found["claims"]
    }


def _slot_entry(slot: Slot, standard: Any, method: str) -> JsonObject:
    """Return the alternatives for a part of the method; several views may be combined."""
    return {
        "key": slot,
        "kind": "set" if slot == "views" else "choice",
        "default": standard,
        "choices": [[part.name, part.title] for part in base.parts_for_slot(method, slot)],
        "joined": AND,
    }


def _paper_settings(method: Method, parts: JsonObject) -> JsonObject:
    """Return the parameters as the method's paper sets them, with these parts; empty if unknown."""
    paper = method.presets.get("paper")
    if paper is None:
        return {}
    try:
        return {param.name: param.default for param in base.parameters(method.name, parts, paper)}
    except ValueError:
        return {}  # these parts do not fit together, which `method_panel` reports


def _param_entry(param: Param, paper: Any = None) -> JsonObject:
    return {
        "key": param.name,
        "kind": param.kind,
        "default": param.default,
        "paper": paper,
        "min": param.low,
        "max": param.high,
        "auto": bool(param.auto),
        "choices": list(param.choices.items()),
        "title": param.title or param.name.replace("_", " "),
        "help": param.help,
    }
