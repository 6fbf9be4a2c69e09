"""One server of the real page with the shipped models, for all tests of this folder that need it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.page.conftest import ROOT
from tests.robustness.support import server

SECONDS = 900
"""What a test of this folder may take: most start servers, and a machine that is busy takes its time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "robustness" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """`python app.py` as it is started by people: its address and its process."""
    with server(ROOT / "app.py", tmp_path_factory.mktemp("served")) as running:
        yield running
