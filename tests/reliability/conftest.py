"""One server of the real page with the shipped models, for all tests of this folder that need it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.reliability.support import server
from tests.ui.conftest import ROOT


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """`python app.py` as it is started by people: its address and its process."""
    with server(ROOT / "app.py", tmp_path_factory.mktemp("served")) as running:
        yield running
