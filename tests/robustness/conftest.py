"""How long a test of this folder may take."""

from __future__ import annotations

import pytest

SECONDS = 900
"""What a test of this folder may take: most start servers, and a machine that is busy takes its time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "robustness" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))
