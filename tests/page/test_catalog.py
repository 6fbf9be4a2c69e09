"""What the page offers."""

from __future__ import annotations

from pathlib import Path

import pytest

from specvl_demo import pairs
from specvl_demo.methods.base import METHODS
from specvl_demo.pairs import PAIRS, Checkpoint, PairSpec
from specvl_demo.pairs.machine import Gpu, Machine
from specvl_demo.serving import availability, choosing
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
        assert METHODS[first].offered is not None
        assert first in choosing.served(pairs.find(pair["id"]))


def test_what_runs_on_this_gpu_is_listed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the pair that a visitor starts with; each says what it needs, or why it does not."""
    card = Gpu("NVIDIA L4", 24_000_000_000, (8, 9))
    monkeypatch.setattr(catalog, "detect", lambda: Machine(8, 32 * 10**9, "x86_64", (card,)))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(availability, "_can_pack", lambda: False)
    listed = catalog.describe("qwen2.5-vl-72b")["pairs"]
    assert listed[0]["id"] == "qwen2.5-vl-72b" and not listed[0]["available"]
    runs = [pair["available"] for pair in listed[1:]]
    assert runs == sorted(runs, reverse=True) and set(runs) == {True, False}
    assert all("needs about" in pair["reason"] for pair in listed if pair["available"])
