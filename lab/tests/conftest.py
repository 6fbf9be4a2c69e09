"""The laboratory's own tests, by `python -m pytest lab/tests`: no part of `make test`."""

from collections.abc import Iterator

import pytest

from specvl_demo import pairs
from specvl_demo.serving import loader
from specvl_demo.serving.loaded import LoadedPair
from tests.shared import pocketlike


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedPair]:
    """A pair on disk with random weights: its shapes are the pocket pair's."""
    folder = tmp_path_factory.mktemp("bench")
    pocketlike.save_pair(folder / "pocket")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "ASSETS", folder)
        yield loader.load_pair(pairs.find("pocket"))
