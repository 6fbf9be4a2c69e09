"""The method table: rows that fit together, parameters that are checked, refusals that say why."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

from specvl_demo import methods
from specvl_demo.methods import DRAFTERS, METHODS, MIXTURE, POLICIES, SLOTS, VERIFIERS, VIEWS, choose

TABLES = {"drafter": DRAFTERS, "views": VIEWS, "policy": POLICIES, "verifier": VERIFIERS}


@pytest.mark.parametrize("name", METHODS)
def test_every_row_is_legal_with_every_preset(name: str) -> None:
    method = METHODS[name]
    for preset in (None, *method.presets.values()):
        choice = choose(name, preset=preset)
        assert choice.lossless == method.lossless
        for param in methods.parameters(name, preset=preset):
            assert param.read(param.default) == param.default == choice.params[param.name]
        assert (preset or {}).items() <= choice.settings.items()
    assert method.defaults.items() <= choose(name).params.items()


@pytest.mark.parametrize("name", METHODS)
def test_what_a_row_offers_instead_is_legal_too(name: str) -> None:
    for slot in SLOTS:
        for part in methods.alternatives(name, slot):
            if METHODS[name].options is not None:
                assert choose(name, {slot: part.name}).settings[slot] == part.name


@pytest.mark.parametrize(
    "part", [p for t in TABLES.values() for p in t.values()] + [MIXTURE], ids=lambda p: p.name
)
def test_every_part_can_be_built_from_its_parameters(part: methods.Part) -> None:
    """The callable it names exists and takes exactly the parameters of the row."""
    module, name = part.build.split(":")
    wanted = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    named = {name for name, one in wanted.items() if one.kind is not one.VAR_KEYWORD}
    rest = len(named) < len(wanted)
    given = {param.name for param in part.params}
    assert named - {"models", "views", "mixer"} <= given
    assert rest or given <= named
    if part in (*POLICIES.values(), *VERIFIERS.values()):
        made = getattr(importlib.import_module(module), name)(**{p.name: p.default for p in part.params})
        if part.name in VERIFIERS:
            assert made.lossless == part.lossless
        else:
            assert made.max_nodes >= 1


def test_parameters_of_one_method_do_not_share_a_name() -> None:
    """A setting must not mean two things, whatever parts are combined."""
    for drafter in DRAFTERS.values():
        for policy in POLICIES.values():
            for verifier in VERIFIERS.values():
                used = [drafter, *VIEWS.values(), policy, verifier, MIXTURE]
                names = [param.name for part in used for param in part.params] + list(SLOTS)
                assert len(set(names)) == len(names), (drafter.name, policy.name, verifier.name)


@pytest.mark.parametrize(
    ("method", "settings", "sentence"),
    [
        ("nope", {}, "no method 'nope'; known: ar, chain"),
        ("chain", {"gamma": 0}, "between 1 and 64"),
        ("chain", {"gamma": "five"}, "whole number"),
        ("chain", {"gamma": "nan"}, "whole number"),
        ("chain", {"colour": 1}, "no parameter 'colour'"),
        ("chain", {"policy": "best-first"}, "take custom"),
        ("custom", {"policy": "nope"}, "no policy 'nope'"),
        ("custom", {"drafter": "ngram", "policy": "static-tree"}, "'ngram' does not"),
        ("custom", {"drafter": "ngram", "views": "multimodal"}, "views empty"),
        ("custom", {"drafter": "none"}, "'none' does not"),
        ("custom", {"policy": "one-node"}, "never be asked"),
        ("custom", {"views": ""}, "at least one view"),
        ("custom", {"views": "multimodal+multimodal"}, "twice"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(
    method: str, settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence) as refusal:
        choose(method, settings)
    assert str(refusal.value).endswith(".")


def test_verifiers_for_greedy_answers_refuse_sampling() -> None:
    for part in VERIFIERS.values():
        settings = {"verifier": part.name}
        assert choose("custom", settings).lossless == part.lossless
        if part.greedy_only:
            with pytest.raises(ValueError, match="sampling"):
                choose("custom", settings, temperature=0.7)
        else:
            choose("custom", settings, temperature=0.7)


def test_values_come_from_text_as_well() -> None:
    choice = choose("chain", {"gamma": "7"})
    assert choice.params["gamma"] == 7 and choice.settings["policy"] == "chain"
    param = methods.Param("guided", False, "")
    assert [param.read(text) for text in ("true", "ON", "0", "no")] == [True, True, False, False]
    with pytest.raises(ValueError, match="true or false"):
        param.read("maybe")
    share = methods.Param("share", 0.5, "", 0.0, 1.0)
    assert share.read("1") == 1.0 and isinstance(share.read(1), float)
    for bad in ("nan", "inf", "-0.1"):
        with pytest.raises(ValueError, match="between 0 and 1"):
            share.read(bad)


def test_several_views_bring_the_mixtures_parameters() -> None:
    one = choose("custom").params
    two = choose("custom", {"views": "multimodal+text-only"}).params
    assert set(two) - set(one) == {param.name for param in MIXTURE.params}


def test_the_table_can_be_read_without_torch() -> None:
    code = (
        "import sys; import specvl_demo.methods; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
