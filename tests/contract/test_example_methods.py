"""The plug-ins of examples/methods: in a race of the command line, as docs/adding-a-method.md says,
and their rules.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Scores, Vocabulary
from specvl_demo.methods import base

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "methods"
SIZE, PLACEHOLDER = 12, 9
VOCABULARY = Vocabulary(SIZE, banned=(PLACEHOLDER,))


@pytest.mark.slow
def test_both_race_beside_the_plain_model() -> None:
    paths = os.pathsep.join(str(FOLDER / f"{name}.py") for name in ("suffix", "typical"))
    words = ["-m", "specvl_demo", "race", "--pair", "pocket", "--methods", "ar,suffix,typical"]
    words += ["--image", str(ROOT / "examples" / "scene.png"), "--max-new-tokens", "32", "--json"]
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "SPECVL_METHODS": paths, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
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


def count(text: list[int], run: list[int]) -> int:
    return sum(text[i : i + len(run)] == run for i in range(len(text) - len(run) + 1))


def longest(text: list[int]) -> list[int]:
    """The longest ending without a placeholder that occurs elsewhere too."""
    endings = (text[-n:] for n in range(len(text) - 1, 0, -1) if PLACEHOLDER not in text[-n:])
    return next((ending for ending in endings if count(text, ending) > 1), [])


@pytest.mark.parametrize("letters", [2, 3, 10])
def test_the_automaton_counts_what_a_search_counts(
    letters: int, plugins: dict[str, ModuleType]
) -> None:
    """Random texts, with placeholders, after every token."""
    rng = random.Random(letters)
    for _ in range(12):
        text, automaton = [], plugins["suffix"].Automaton(VOCABULARY)
        for _ in range(24):
            text.append(rng.randrange(letters))
            automaton.add(text[-1:])
            state, length = automaton.match()
            run = longest(text)
            assert length == len(run)
            after = {t: n for t in range(SIZE) if (n := count(text, [*run, t]))} if run else {}
            after.pop(PLACEHOLDER, None)
            if after:
                assert automaton.followers(state) == (state, after)


def test_a_tree_follows_the_commoner_continuation_first(plugins: dict[str, ModuleType]) -> None:
    suffix = plugins["suffix"]
    drafter = suffix.Suffix(suffix.SuffixSettings())
    text = [1, 2, 3, 4, 8, 1, 2, 3, 4, 7, 1, 2, 3, 5, 8, 1, 2, 6, 10, 1, 2]
    prompt = SimpleNamespace(ids=torch.tensor(text))
    drafter.begin(SimpleNamespace(vocabulary=VOCABULARY, prompt=prompt))
    policy = suffix.GreedyTree(suffix.GreedySettings(size=3))
    tree = policy.propose(drafter, torch.tensor([2]), 99)
    # 3 followed three times of four, 6 once; after 3 came 4 twice, 5 once.
    assert tree.tokens.tolist() == [2, 3, 4]
    assert tree.logp.exp().tolist() == pytest.approx([1, 3 / 4, 2 / 3])
    # A match of two tokens is trusted for two.
    drafter.begin(SimpleNamespace(vocabulary=VOCABULARY, prompt=prompt))
    whole = suffix.GreedyTree(suffix.GreedySettings()).propose(drafter, torch.tensor([2]), 99)
    assert max(whole.shape.depth) == 2


def test_what_is_typical_may_stay(plugins: dict[str, ModuleType]) -> None:
    """p > min(ε, δ exp(−H)): so the runner-up of an even choice is, of a clear one is not."""
    even, clear = torch.full((SIZE,), -99.0), torch.full((SIZE,), -99.0)
    even[[3, 4]] = 0.0  # H = ln 2: .15 would be enough, ε is less
    clear[[3, 4]] = torch.tensor([4.0, 0.0])  # the runner-up has .018
    typical = plugins["typical"]
    tree = DraftTree(torch.tensor([1, 4]), chain(1))
    for row, stays in ((even, True), (clear, False)):
        scores = Scores(torch.stack((row, even)), torch.zeros(2, 4))
        verifier = typical.TypicalVerifier(typical.TypicalSettings())
        assert bool(verifier.signal(scores, tree)[1] > 0) == stays
        strict = typical.TypicalVerifier(typical.TypicalSettings(epsilon=1.0, delta=1.0))
        assert not bool(strict.signal(scores, tree)[1] > 1e-6)
