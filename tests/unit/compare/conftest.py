"""A pair on disk with random weights, loaded once: its shapes are the pocket pair's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specvl_demo import pairs
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
