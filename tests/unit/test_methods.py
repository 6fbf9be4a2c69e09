"""The method table: rows that fit together, parameters that are checked, refusals that say why."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from specvl_demo import methods, records
from specvl_demo.methods import base
from specvl_demo.methods.base import METHODS, PARTS, SLOTS, choose
from specvl_demo.methods.declare import Param, setting, tex
from specvl_demo.methods.policies import ChainSettings
from specvl_demo.methods.tree_size import FIXED, GROWN, Worth, worthwhile_nodes
from tests.shared.refusals import refuses


@pytest.mark.parametrize("name", METHODS)
def test_every_row_is_legal_with_every_preset(name: str):
    method = METHODS[name]
    for preset in (None, *method.presets.values()):
        choice = choose(name, preset=preset)
        assert choice.lossless == method.lossless
        for param in base.parameters(name, preset=preset):
            assert param.read(param.default) == param.default == choice.params[param.name]
        assert (preset or {}).items() <= choice.settings.items()
    assert method.defaults.items() <= choose(name).params.items()


@pytest.mark.parametrize("name", METHODS)
def test_what_a_row_offers_instead_is_legal_too(name: str):
    there = {part for parts in PARTS.values() for part in parts}
    assert {option for option in METHODS[name].options or () if isinstance(option, str)} <= there
    for slot in SLOTS:
        for part in base.parts_for_slot(name, slot):
            if METHODS[name].options is not None:
                assert choose(name, {slot: part.name}).settings[slot] == part.name


def test_no_parameter_has_the_name_of_a_slot():
    """A setting must not mean two things; `register` refuses two parameters of one name."""
    parts = [part for slot in PARTS.values() for part in slot.values()]
    names = {param.name for part in parts for param in part.settings.params()}
    assert names.isdisjoint([*SLOTS, "preset"])


@pytest.mark.parametrize(("name", "depth"), [("eagle2", 6), ("hivis", 7), ("dream", 6)])
def test_paper_presets_are_as_deep_as_the_papers_count(name: str, depth: int):
    """Levels of drafted tokens, the first one counted."""
    choice = choose(name, preset=METHODS[name].presets["paper"])
    assert choice.params["loops"] + 1 == depth


def test_titles_name_a_foreign_policy_and_the_size_of_a_tree():
    preset = METHODS["eagle2"].presets["pocket"]
    assert choose("eagle2", preset=preset).title == "EAGLE-2, chain of up to 10"
    assert choose("chain", {"gamma": 3}).title == "Chain"
    assert choose("eagle2", {"nodes": 60}).title == "EAGLE-2, best-first tree of 60"
    assert choose("dream", {"policy": "static-tree"}).title == "DREAM, static tree of 26"
    assert choose("tree", {"tree_nodes": 12}).title == "Static tree of 12"
    sage = choose("sage", preset=METHODS["sage"].presets["photo"])
    assert sage.title == "SAGE, online, ≤ 14 nodes, width ≤ 2"


def test_a_name_that_is_taken_is_refused():
    chain = METHODS["chain"]
    refuses("already", base.register, chain)
    other = replace(chain.policy, title="another")
    refuses("already", base.register, replace(chain, name="other", policy=other))
    refuses(
        "no parameter|whole number",
        base.register,
        replace(chain, name="other", presets={"bad": {"gamma": "x"}}),
    )
    another = replace(chain, name="other", policy=replace(other, name="p"))
    refuses("no parameter 'gama'", base.register, replace(another, presets={"x": {"gama": 2}}))
    assert "other" not in METHODS and "p" not in base.PARTS["policy"]
    for odd, part in ((replace(chain, name="a.b"), "letters, digits"), (None, "takes a Method")):
        refuses(part, base.register, odd)


@dataclass(frozen=True)
class Keeping(ChainSettings):
    keep: float = setting(0.5, "share of the draft that a rejection leaves", 0.0, 1.0)


def test_what_would_fail_in_a_race_is_refused_when_registered():
    chain, (chart, *_) = METHODS["chain"], METHODS["sage"].policy.charts
    bad_chart = records.Chart(chart.id, chart.title, chart.help, "step", chart.series, chart.y)  # type: ignore[arg-type]
    drawn = replace(chain.policy, name="half", charts=(bad_chart,))
    half = replace(chain.policy, name="half", build=lambda settings: object())
    for changes, sentence in (
        ({"policy": drawn}, "'odd' cannot be registered: chart 'shape': Invalid enum value 'step'"),
        ({"policy": half}, "policy object must derive from specvl_demo.core.types.Policy"),
        (
            {"policy": replace(chain.policy, name="half", settings=Keeping)},
            "policy 'half' and drafter 'dream' both have a parameter 'keep' and mean different"
            " things by it; rename one",
        ),
        ({"presets": {"bad": 3}}, "'odd' cannot be registered"),
        ({"presets": {"bad": {"gamma": 0}}}, "preset 'bad': gamma must be a whole number"),
    ):
        refuses(sentence, base.register, replace(chain, name="odd", **changes))
        assert "odd" not in METHODS and "half" not in base.PARTS["policy"]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("json.py", "", "another module is called json: rename the file"),
        ("broken_methods.py", "\ndef x(:\n", "whose line 2 is not valid Python"),
    ],
)
def test_a_file_of_methods_that_cannot_be_read_is_refused_by_name(
    name: str, text: str, sentence: str, tmp_path: Path
):
    (tmp_path / name).write_text(text)
    refuses(sentence, methods._run_plugin, str(tmp_path / name))


def test_verifiers_for_greedy_answers_refuse_sampling():
    for part in PARTS["verifier"].values():
        settings = {"verifier": part.name}
        assert choose("custom", settings).lossless == part.lossless
        if part.greedy_only:
            refuses("sampling", choose, "custom", settings, temperature=0.7)
        else:
            choose("custom", settings, temperature=0.7)


def test_values_come_from_text_as_well():
    choice = choose("chain", {"gamma": "7"})
    assert choice.params["gamma"] == 7 and choice.settings["policy"] == "chain"
    param = Param("guided", False, "")
    assert [param.read(text) for text in ("true", "ON", "0", "no")] == [True, True, False, False]
    refuses("true or false", param.read, "maybe")
    share = Param("share", 0.5, "", 0.0, 1.0)
    assert share.read("1") == 1.0 and isinstance(share.read(1), float)
    for bad in ("nan", "inf", "-0.1"):
        refuses("between 0 and 1", share.read, bad)


def test_a_limit_of_nodes_may_be_left_to_the_machine():
    choice = choose("eagle2", {"policy": "best-first", "nodes": "auto"})
    assert choice.params["nodes"] == choice.settings["nodes"] == "auto"
    assert choice.title == "EAGLE-2, best-first tree of as many nodes as pay here"
    assert choose("sage", preset={"max_nodes": "auto"}).params["max_nodes"] == "auto"
    refuses("between 1 and 64", choose, "chain", {"gamma": "auto"})
    refuses("between 2 and 1025", choose, "eagle2", {"policy": "best-first", "nodes": "some"})


def test_as_many_nodes_are_verified_as_pay():
    """A tree of n nodes emits so many tokens a round; made-up machines charge for its rows."""
    free = {1: 1.0, 64: 1.0}
    assert worthwhile_nodes(free, 2, 1025, GROWN) == 64, "as many as were timed"
    assert worthwhile_nodes(free, 2, 26, FIXED) == 26, "but no more than the method takes"
    jump = {1: 1.0, 8: 1.0, 9: 4.0, 64: 4.0}
    assert worthwhile_nodes(jump, 2, 1025, FIXED) == 8, "rows that fit into a tile"
    assert worthwhile_nodes({1: 1.0, 3: 3.0}, 2, 1025, GROWN) == 3, "drafting costs time anyway"


def test_paths_are_verified_that_bring_more_than_their_rows():
    """At first a step brings one token, and a path as much as it promises."""
    likely = [0.9, 0.8, 0.4, 0.3, 0.2]
    for path, count in (([0, 1, 2], 2), ([0, 1, 2, 3], 4)):
        worth = Worth({1: 1.0, 9: 2.0})
        assert worth.count(likely) == 5
        for _ in range(9):
            worth.learn([1.0, *likely], path)
        assert worth.count(likely) == count


def test_a_formula_is_read_from_tex():
    assert tex(r"y_t = \frac{a ( i )}{N} \sum_{\text{top 3}} x_{t + 1}") == [
        ["sub", "y", "t"],
        "=",
        ["frac", ["a", "(", "i", ")"], "N"],
        ["sum", ["text", "top 3"], ""],
        ["sub", "x", ["t", "+", "1"]],
    ]
