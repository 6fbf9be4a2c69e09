"""How long a test of this folder may take, and where engines say what they computed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.page import fake_page

SECONDS = 900
"""What a test of this folder may take: most start servers, and busy machines take their time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "robustness" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the engines of a module write what they compute."""
    path = tmp_path_factory.mktemp("ledger") / "rounds.txt"
    path.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(fake_page.LEDGER, str(path))
        yield path
