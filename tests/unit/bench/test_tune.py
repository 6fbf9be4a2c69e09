"""Tuning: it climbs to the top, keeps what it found for this machine alone, and is offered as a
preset.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specvl_demo import pairs
from specvl_demo.bench import cases, tune
from specvl_demo.bench.measure import BenchOptions
from specvl_demo.bench.tune import Trial
from specvl_demo.methods import base
from specvl_demo.serving import choosing, tuned
from specvl_demo.serving.loader import Loaded
from specvl_demo.ui.page import catalog


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "deep" / "tuned.json"
    monkeypatch.setenv(tuned.VARIABLE, str(path))
    return path


class Hill:
    """Trials with one top; stands in for a bench."""

    def __init__(self, name: str, top: Mapping[str, float]) -> None:
        self.name, self.top, self.tried = name, top, {}

    def choice(self, settings: Mapping[str, Any]) -> base.Choice:
        return base.choose(self.name, settings)

    def trial(self, settings: Mapping[str, Any]) -> Trial:
        height = -sum(abs(settings[axis] - value) for axis, value in self.top.items())
        return self.tried.setdefault(
            tuple(sorted(settings.items())), Trial(dict(settings), 1.0, float(height))
        )


@pytest.mark.parametrize(
    ("name", "top"),
    [
        ("chain", {"gamma": 8, "floor": 0.0}),
        ("chain", {"gamma": 1, "floor": 0.2}),
        ("eagle2", {"nodes": 10, "width": 3, "loops": 4}),
        ("tree", {"tree_nodes": 8}),
        ("sage", {"max_nodes": 12, "max_depth": 5, "max_width": 2}),
    ],
)
def test_it_climbs_to_the_top(name: str, top: dict[str, float]) -> None:
    hill = Hill(name, top)
    policy = base.choose(name).policy.name
    tune.climb(hill, policy)
    best = max(hill.tried.values(), key=lambda one: one.speedup)
    assert best.settings == top
    whole = 1
    for ladder in tune.LADDERS[policy].values():
        whole *= len(ladder)
    assert len(hill.tried) < whole or len(top) == 1  # a climb, not a search of everything


def test_a_head_may_turn_out_to_draft_best_in_a_row() -> None:
    """Where a chain is allowed it is climbed too, and the preset then names the policy."""
    assert tune.policies(Hill("chain", {})) == ["chain"]
    assert tune.policies(Hill("sage", {})) == ["entropy-tree"]
    hill = Hill("hivis", {"gamma": 7, "floor": 0.0})
    assert tune.policies(hill) == ["best-first", "chain"]
    tune.climb(hill, "chain")
    best = max(hill.tried.values(), key=lambda one: one.speedup)
    assert best.settings == {"policy": "chain", "gamma": 7, "floor": 0.0}
    assert hill.choice(best.settings).policy.name == "chain"


def test_every_ladder_is_within_the_bounds_of_its_parameters() -> None:
    for policy, ladders in tune.LADDERS.items():
        for axis, ladder in ladders.items():
            params = base.PARTS["policy"][policy].settings.params()
            param = next(one for one in params if one.name == axis)
            assert all(param.read(rung) == rung for rung in ladder)
            assert list(ladder) == sorted(ladder)


def test_a_preset_is_kept_for_this_machine_and_offered(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = pairs.find("pocket")
    assert tuned.NAME not in choosing.presets(pair, "sage")
    tuned.write("pocket", {"when": "now"}, {"sage": {"settings": {"max_nodes": 20}}})
    tuned.write("pocket", {"when": "later"}, {"chain": {"settings": {"gamma": 7}}})
    assert choosing.presets(pair, "chain")[tuned.NAME] == {"gamma": 7}
    start = choosing.presets(pair, "sage")[tuned.NAME]
    assert start == {**choosing.presets(pair, "sage")["pocket"], "max_nodes": 20}
    choice = choosing.choose(pair, "ngram")
    assert tuned.NAME not in choice.settings  # another method has none
    monkeypatch.setattr(choosing, "roles_here", lambda pair: pair.drafters)
    choice = choosing.choose(pair, "sage", {"preset": tuned.NAME, "max_depth": 4})
    assert (choice.params["max_nodes"], choice.params["max_depth"]) == (20, 4)
    standard = choosing.presets(pair, "sage")["pocket"]["max_nodes"]
    # Offered, never taken unasked.
    assert choosing.choose(pair, "sage").params["max_nodes"] == standard != 20
    shown = catalog.panel("pocket", "sage", {"preset": tuned.NAME})
    assert tuned.NAME in dict(shown["presets"]) and shown["standard"] == "pocket"
    assert {param["key"]: param["default"] for param in shown["params"]}["max_nodes"] == 20
    found = json.loads(place.read_text())
    found["pocket"]["machine"] = "another one"
    place.write_text(json.dumps(found))
    assert tuned.entry("pocket") is None and tuned.NAME not in choosing.presets(pair, "sage")


def test_a_broken_file_is_one_sentence(place: Path) -> None:
    place.parent.mkdir()
    for text in ("{", "[1]", '{"pocket": 3}'):
        place.write_text(text)
        with pytest.raises(ValueError, match="delete it, or tune again"):
            tuned.presets("pocket", "chain")


def test_a_method_is_tuned_on_real_rounds(
    loaded: Loaded, options: BenchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    standard = choosing.choose(loaded.pair, "chain").params["gamma"]
    ladder = (standard - 1, standard, standard + 1)
    monkeypatch.setitem(tune.LADDERS, "chain", {"gamma": ladder})
    longer = replace(options, max_new_tokens=12)
    (row,) = tune.tune(loaded, ["chain"], cases.scenes_alone(1), longer)
    assert row["settings"]["gamma"] in ladder and row["tried"] >= 2
    assert 1.0 <= row["tau"] <= row["settings"]["gamma"] + 1
    assert row["measured"] > 0 and row["standard"] > 0
    assert tune.tunable(loaded.pair)[0] == "chain"
