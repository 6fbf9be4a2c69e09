"""Methods of other people: the plug-ins of examples/methods, and docs/adding-a-method.md, executed
literally in a separate process."""

import json
import os
import re
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch

from specvl_demo import pairs, records
from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Prompt, Scores
from specvl_demo.methods import base
from specvl_demo.places import ROOT
from tests.fakes import TableTarget
from tests.shared.server import run_python
from tests.shared.tiny import ask, ids_of, rounds_of, run_lane

FOLDER = ROOT / "examples" / "methods"
SIZE = 12


@pytest.mark.slow
def test_both_race_beside_the_plain_model():
    paths = os.pathsep.join(str(FOLDER / f"{name}.py") for name in ("suffix", "typical"))
    words = ["-m", "specvl_demo", "race", "--pair", "pocket", "--methods", "ar,suffix,typical"]
    words += ["--image", str(ROOT / "examples" / "scene.png"), "--max-new-tokens", "32", "--json"]
    done = run_python(*words, SPECVL_METHODS=paths)
    assert done.returncode == 0, done.stderr
    ar, suffix, typical = json.loads(done.stdout)["lanes"]
    assert suffix["lossless"] and suffix["token_ids"] == ar["token_ids"]
    assert not typical["lossless"] and typical["tau"] > 1


@pytest.fixture(scope="module")
def plugins() -> Iterator[dict[str, ModuleType]]:
    """The files as modules; what they register is forgotten afterwards."""
    methods, parts = dict(base.METHODS), {slot: dict(rows) for slot, rows in base.PARTS.items()}
    modules = {}
    for name in ("suffix", "typical"):
        spec = spec_from_file_location(f"plugin_{name}", FOLDER / f"{name}.py")
        assert spec is not None and spec.loader is not None
        modules[name] = sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(modules[name])
    yield modules
    for table, before in ((base.METHODS, methods), (base.PARTS, parts)):
        table.clear()
        table.update(before)


@pytest.mark.usefixtures("plugins")
def test_suffix_drafts_what_followed_the_longest_ending_before():
    """Of a cycle that the prompt went through once, all is drafted and accepted."""
    steps = torch.arange(SIZE)
    target = TableTarget(torch.nn.functional.one_hot((steps + 1) % SIZE) * 9.0)
    ids = torch.cat((steps, steps[:3]))
    prompt = Prompt(ids, torch.zeros(len(ids), dtype=torch.bool), {}, "?")
    parts = base.build_parts(base.choose("suffix"), base.Models(target, {}, {}))
    rounds = rounds_of(run_lane(parts, ask(target, prompt)))
    assert ids_of(rounds) == [i % SIZE for i in range(3, 27)]
    assert rounds[0].notes["matched"] == 3 and len(rounds) <= 24 / 3
    assert all(round_.n_accepted for round_ in rounds[:-1])


def test_what_is_typical_may_stay(plugins: dict[str, ModuleType]):
    """p > min(ε, δ exp(−H)): so the runner-up of an even choice is, of a clear one is not."""
    even, clear = torch.full((SIZE,), -99.0), torch.full((SIZE,), -99.0)
    even[[3, 4]] = 0.0  # H = ln 2: .15 would be enough, ε is less
    clear[[3, 4]] = torch.tensor([4.0, 0.0])  # the runner-up has .018
    typical = plugins["typical"]
    tree = DraftTree(torch.tensor([1, 4]), chain(1))
    for row, stays in ((even, True), (clear, False)):
        scores = Scores(torch.stack((row, even)), torch.zeros(2, 4))
        verifier = typical.TypicalVerifier(typical.TypicalSettings())
        assert bool(verifier.acceptance_signal(scores, tree)[1] > 0) == stays
        strict = typical.TypicalVerifier(typical.TypicalSettings(epsilon=1.0, delta=1.0))
        assert not bool(strict.acceptance_signal(scores, tree)[1] > 1e-6)


PAGE = (ROOT / "docs" / "adding-a-method.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.S)
    return found


def test_the_pages_example_of_a_pair_is_the_listed_one():
    (pair,) = pairs.from_json(block("json"))
    listed = pairs.find(pair.id)
    assert (pair.target, pair.drafters) == (listed.target, listed.drafters)
    assert pair.title == listed.title


SCRIPT = """
import contextlib, io, json, sys
from specvl_demo.__main__ import main
from specvl_demo.ui.page import catalog
told = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main(words) == 0
    told.append(said.getvalue())
panel = catalog.method_panel("pocket", "growing", {})
print(json.dumps([told, catalog.build_catalog("pocket"), panel]))
"""


@pytest.mark.slow
def test_the_commands_of_the_page_run_and_the_page_offers_the_method(tmp_path: Path):
    (tmp_path / "growing.py").write_text(block("python"), encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    script = block("sh").replace("\\\n", " ")
    lines = [
        line.split()[3:] for line in script.splitlines() if line.startswith("python -m specvl_demo")
    ]
    given = "-c", SCRIPT, json.dumps(lines)
    done = run_python(*given, cwd=tmp_path, SPECVL_METHODS="growing.py")
    assert done.returncode == 0, done.stderr
    said, described, panel = json.loads(done.stdout)
    assert len(said) == 2 and all("growing" in one for one in said)
    told = [records.loads(line) for line in (tmp_path / "growing.jsonl").open(encoding="utf-8")]
    begins = {r.lane: r for r in told if isinstance(r, records.Begin)}
    begin = begins["growing"]
    assert [chart.id for chart in begin.charts] == ["growing"]
    assert begin.settings["shrink_to"] == 0.3
    rounds = rounds_of(told)
    text = {a: "".join(t.text for r in rounds if r.lane == a for t in r.tokens) for a in begins}
    assert text["growing"] == text["ar"]
    assert any(r.n_accepted > 1 for r in rounds if r.lane == "growing")
    assert all("length" in r.notes for r in rounds if r.lane == "growing")
    (method,) = [one for one in described["methods"] if one["name"] == "growing"]
    assert method["help"] and method["lossless"]
    assert described["pairs"][0]["methods"]["growing"] is True
    assert {"longest", "shrink_to", "draws"} == {param["key"] for param in panel["params"]}
    assert panel["standard"] == "pocket" and panel["params"][0]["max"] == 32
