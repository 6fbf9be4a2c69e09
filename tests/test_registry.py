"""Pairs and the verdicts about them: by sizes alone, on machines that need not exist."""

from __future__ import annotations

import dataclasses

import pytest

from specvl_demo import registry
from specvl_demo.pairs import PAIRS, ROLES, find
from specvl_demo.registry import Machine, Options, available

LAPTOP = Machine(8, 16_000_000_000, "x86_64")
H200 = Machine(16, 128_000_000_000, "x86_64", (("NVIDIA H200", 150_000_000_000),))
SMALL_GPU = Machine(8, 32_000_000_000, "x86_64", (("RTX", 8_000_000_000), ("RTX big", 24_000_000_000)))


@pytest.fixture(autouse=True)
def nothing_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_cached", lambda one: False)


def test_pocket_comes_first_and_ids_are_unique() -> None:
    assert PAIRS[0].id == "pocket" and PAIRS[0].local
    assert len({pair.id for pair in PAIRS}) == len(PAIRS)
    families = {pair.family for pair in PAIRS}
    for wanted in ("LLaVA", "LLaVA-NeXT", "LLaVA-OneVision", "Qwen2.5-VL", "Qwen3-VL", "SmolVLM", "Gemma 3"):
        assert wanted in families
    assert "Pixtral" in families


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_every_pair_is_complete(pair: registry.Pair) -> None:
    assert set(pair.drafters) <= set(ROLES)
    for one in pair.checkpoints:
        assert one.licence and one.params > 1e5
        assert one.local or one.id.count("/") == 1
    assert all(one.params < pair.target.params for one in pair.drafters.values())
    with pytest.raises(dataclasses.FrozenInstanceError):
        pair.id = "other"  # type: ignore[misc]


def test_sizes_of_shipped_weights_are_those_of_the_files() -> None:
    for one in PAIRS[0].checkpoints:
        stored = sum(path.stat().st_size for path in one.folder.glob("*.safetensors"))
        assert stored == 0 or one.params == pytest.approx(stored / 2, rel=0.1), one.id


def test_an_unknown_pair_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no pair 'nope'; known: pocket, llava-1\.5-7b") as refused:
        find("nope")
    assert "\n" not in str(refused.value)


def test_verdicts_follow_memory() -> None:
    seven = find("llava-1.5-7b")
    refused = available(seven, LAPTOP)
    assert not refused.ok and "no GPU" in refused.reason and "16.0 GB" in refused.reason
    served = available(seven, H200)
    assert (served.ok, served.device, served.dtype) == (True, "cuda:0", "bfloat16")
    assert served.must_fetch and "hub" in served.reason
    assert available(seven, SMALL_GPU).device == "cuda:1"
    assert available(seven, SMALL_GPU, Options("float32")).ok is False
    assert not available(find("qwen2.5-vl-72b"), H200).ok
    assert available(find("smolvlm2-2.2b"), LAPTOP).device == "cpu"


def test_offline_is_said_before_anything_is_tried() -> None:
    verdict = available(find("smolvlm2-2.2b"), dataclasses.replace(LAPTOP, offline=True))
    assert not verdict.ok and "HF_HUB_OFFLINE" in verdict.reason


def test_shipped_weights_that_are_missing_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_shipped", lambda one: False)
    verdict = available(PAIRS[0], LAPTOP)
    assert not verdict.ok and "missing" in verdict.reason
    assert registry.roles_here(PAIRS[0]) == {}


def test_every_verdict_is_a_sentence() -> None:
    for pair in PAIRS:
        for machine in (LAPTOP, H200, SMALL_GPU):
            reason = available(pair, machine).reason
            assert reason.endswith(".") and "\n" not in reason


def test_detecting_this_machine() -> None:
    here = registry.detect()
    assert here.n_cpus >= 1 and here.memory_bytes > 2**30 and "CPU cores" in here.title
