"""How much the page may draw while lanes compute, decided by what drawing was measured to cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.javascript import needs_node, run


@needs_node
@pytest.mark.parametrize(
    ("share", "late", "pace"),
    [
        (0.01, 0.0, "full"),  # a browser elsewhere, with a graphics card
        (0.01, 0.6, "steady"),  # a slow one
        (0.08, 0.0, "steady"),
        (0.26, 0.0, "calm"),  # two cores, one half of them drawing
    ],
)
def test_the_pace_follows_from_what_was_measured(
    tmp_path: Path, share: float, late: float, pace: str
) -> None:
    body = "const {paceFor} = await load('drawing.js'); return paceFor(...data);"
    assert run(tmp_path, body, [share, late]) == pace


@needs_node
def test_what_was_drawn_at_a_cost_is_drawn_less_and_then_not_at_all(tmp_path: Path) -> None:
    body = """
      const {Drawing} = await load('drawing.js');
      const drawing = new Drawing();
      return data.map((share) => { drawing.learn(drawing.name, share); return drawing.name; });"""
    assert run(tmp_path, body, [0.05, 0.3, 0.3]) == ["calm", "undrawn", "undrawn"]
