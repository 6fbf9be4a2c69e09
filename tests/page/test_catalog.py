"""What the page is told can be chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from specvl_demo.pairs import PAIRS, Checkpoint, Pair
from specvl_demo.ui.page import catalog


def test_drawn_scenes_are_offered_to_what_learnt_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shipped models were trained on them; a person's own, in a folder too, was not."""
    own = Pair("own", "Own", "LLaVA", Checkpoint(str(tmp_path), 1e6, "own", local=True), {})
    assert own.local and not own.shipped
    monkeypatch.setattr(catalog, "PAIRS", (*PAIRS, own))
    told = {pair["id"]: pair["knows"] == "scenes" for pair in catalog.describe("pocket")["pairs"]}
    assert told == {pair.id: pair.id == "pocket" for pair in (*PAIRS, own)}
