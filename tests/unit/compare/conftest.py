"""A pair on disk with random weights, loaded once: texts mean nothing, shapes are the pocket
pair's.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specvl_demo import pairs
from specvl_demo.compare.measure import BenchOptions
from specvl_demo.methods.base import choose
from specvl_demo.serving import loader
from specvl_demo.serving.loader import Loaded
from tests import pocketlike


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    folder = tmp_path_factory.mktemp("bench")
    pocketlike.save_pair(folder / "pocket")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "ASSETS", folder)
        yield loader.load(pairs.find("pocket"))


@pytest.fixture(scope="module")
def options(loaded: Loaded) -> BenchOptions:
    """AR and a chain of three on that pair: one repeat, at most three questions."""
    choices = [choose("ar"), choose("chain", {"gamma": 3})]
    return BenchOptions(loaded.pair, choices, 1, 8, 3, lambda roles: loaded)
