"""Ceilings: derived from bytes and operations, bounded by the acceptance length, said for every
pair.
"""

from __future__ import annotations

import pytest

from specvl_demo import pairs
from specvl_demo.bench import pages, suites
from specvl_demo.methods.base import METHODS, choose
from specvl_demo.serving import ceilings, choosing
from specvl_demo.serving.ceilings import CPU, DEVICES, Device, ceiling, device_of, shape_of, tau

PAIR = pairs.find("qwen2.5-vl-7b")


def test_a_ceiling_is_tau_over_the_round_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory binds: a chain of three by a drafter a sixth of the target's size costs 1.5
    steps.
    """
    monkeypatch.setattr(ceilings, "HOST_STEP_S", 0.0)
    monkeypatch.setattr(ceilings, "HOST_ROUND_S", 0.0)
    target = pairs.Checkpoint("t", 6e9, "x")
    pair = pairs.PairSpec("p", "P", "none", target, {"small": pairs.Checkpoint("s", 1e9, "x")})
    found = ceiling(pair, choose("chain", {"gamma": 3}), DEVICES[3], acceptance=0.5)
    assert found.tau == 1 + 0.5 + 0.25 + 0.125 == tau(0.5, 3)
    assert found.speedup == pytest.approx(found.tau / 1.5)
    assert found.pays_from == 0.35  # 1 + a + a² + a³ = 1.5
    slow = Device("slow", 1e12, 1e12, 1e12)  # arithmetic binds: four rows cost four steps
    assert ceiling(pair, choose("chain", {"gamma": 3}), slow, acceptance=1.0).speedup < 1


def test_every_method_has_a_shape_and_no_ceiling_beats_its_acceptance_length() -> None:
    assert all(shape_of(choose(name)).nodes >= 1 for name in METHODS)
    for name in choosing.served(PAIR):
        for device in (*DEVICES, CPU):
            found = ceiling(PAIR, choosing.choose(PAIR, name), device)
            assert found.speedup <= found.tau
    with pytest.raises(ValueError, match="no drafter of kind 'dream'"):
        ceiling(PAIR, choose("dream"), CPU)
    assert ceiling(PAIR, choose("ar"), CPU).speedup == 1.0


def test_packing_the_target_leaves_less_to_gain() -> None:
    choice = choosing.choose(PAIR, "hivis")
    assert (
        ceiling(PAIR, choice, DEVICES[0], target_bytes=0.7).speedup
        < ceiling(PAIR, choice, DEVICES[0]).speedup
    )


def test_devices_are_found_by_the_names_that_torch_gives() -> None:
    names = {
        "Tesla T4": "T4",
        "NVIDIA A10G": "A10G",
        "NVIDIA L4": "L4",
        "NVIDIA H100 80GB HBM3": "H100",
    }
    names |= {"NVIDIA A100-SXM4-80GB": "A100", "NVIDIA H200 MIG 3g.71gb": "H200", "cpu": CPU.name}
    names |= {
        "NVIDIA GeForce RTX 4090": "RTX 4090",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000",
    }
    assert {name: device_of(name).name for name in names} == names
    with pytest.raises(ValueError, match="known: T4"):
        device_of("NVIDIA GeForce RTX 4090 Laptop GPU")


def test_the_table_says_what_could_win_where() -> None:
    report = suites.derived()
    rows = {row["pair"]: row for row in report["rows"]}
    assert "pocket" not in rows and len(rows) == sum(not pair.shipped for pair in pairs.PAIRS)
    assert len(report["rows"]) == len(rows) + sum(bool(pair.accepted) for pair in pairs.PAIRS)
    assert rows["llava-ov-72b"]["T4"] is None and "4-bit" in rows["qwen2.5-vl-72b"]["H100"]
    assert rows["llava-ov-72b"]["acceptance"] == "80%"
    text = pages.ceilings({"suite": "ceilings", **report}).markdown()
    assert "Derived" in text and f"{ceilings.ACCEPTANCE:.0%} for a drafter" in text
    assert "dream 5.51 (DREAM, Table 1" in text


def test_what_was_published_stands_beside_what_is_stated_with_its_source() -> None:
    for pair in pairs.PAIRS:
        for name, (told, where) in pair.accepted.items():
            choice = choosing.choose(pair, name)
            assert 1 < told <= shape_of(choice).depth + 1 and where
            found = ceiling(pair, choice, DEVICES[4])
            assert found.published == pytest.approx(found.speedup * told / found.tau)
            assert found.source == where
