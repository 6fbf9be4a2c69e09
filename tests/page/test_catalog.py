"""What the page offers."""

from __future__ import annotations

from pathlib import Path

import pytest

from specvl_demo import pairs
from specvl_demo.pairs import PAIRS, Checkpoint, PairSpec
from specvl_demo.pairs.machine import Gpu, Machine
from specvl_demo.serving import choosing
from specvl_demo.ui.page import catalog


def test_drawn_scenes_are_offered_to_what_learnt_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shipped models were trained on them; a person's own, in a folder too, was not."""
    own = PairSpec("own", "Own", "LLaVA", Checkpoint(str(tmp_path), 1e6, "own", local=True), {})
    assert own.local and not own.shipped
    few = (*(pair for pair in PAIRS if pair.shipped), own)
    monkeypatch.setattr(catalog, "PAIRS", few)
    told = {pair["id"]: pair["knows"] == "scenes" for pair in catalog.describe("pocket")["pairs"]}
    assert told == {pair.id: pair.id == "pocket" for pair in few}


@pytest.mark.parametrize("gpu", ["NVIDIA L4", None])
def test_every_pair_offers_a_method_it_supports_first(
    gpu: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = () if gpu is None else (Gpu(gpu, 80_000_000_000, (8, 9)),)
    machine = Machine(8, 64_000_000_000, "x86_64", gpus)
    monkeypatch.setattr(catalog, "detect", lambda: machine)
    for pair in catalog.describe("pocket")["pairs"]:
        (first,) = pair["first"]
        assert first in catalog.FIRST_METHODS and first in choosing.served(pairs.find(pair["id"]))
