"""Threads of steps beside other programs: how many, and for which targets."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from specvl_demo.pairs.machine import Load
from specvl_demo.serving import threads
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.target import VLMTarget
from tests.conftest import tiny_llava


@pytest.mark.parametrize(
    ("n", "n_cores", "others", "used"),
    [
        (2, 2, 0.0, 2),
        (2, 2, 0.17, 2),
        (2, 2, 0.25, 1),  # half of one core, whose other half is a thread of ours
        (2, 2, 1.0, 1),
        (1, 2, 0.5, 1),
        (2, 8, 0.25, 2),  # six cores are free
        (8, 8, 0.25, 6),
        (16, 16, 0.5 / 16, 15),
        (2, 64, 1.0, 1),
    ],
)
def test_a_thread_gives_way_to_every_program_that_fills_a_core(
    n: int, n_cores: int, others: float, used: int
) -> None:
    assert threads.fitting(n, n_cores, others) == used


def test_only_a_load_that_lasts_counts_and_an_old_look_says_nothing_about_now() -> None:
    look = threads._Look()
    looks = ((0.1, 0.9, 0.0), (0.5, 0.9, 0.0), (0.5, 0.2, 0.2), (0.5, 0.9, 0.2), (0.5, 0.8, 0.8))
    for seconds, others, found in (*looks, (0.1, 0.1, 0.8)):
        look._load = SimpleNamespace(seconds=seconds, others=lambda others=others: others)
        assert look.others() == found
    look._load = SimpleNamespace(seconds=3600.0, others=lambda: 0.9)
    assert look.others() == 0.0


def test_a_child_that_has_ended_is_no_load() -> None:
    """As one that decoded a picture for the race that begins."""
    load = Load()
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert load._since()[1] >= 0.25


def test_all_threads_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        share = 0.5
        monkeypatch.setattr(threads._LOOK, "others", lambda: share)
        monkeypatch.setattr("os.cpu_count", lambda: 2)
        with threads.fitted() as fit:
            fit()
            assert torch.get_num_threads() == 1
            share = 0.0
            fit()
            assert torch.get_num_threads() == 2
            share = 0.5
            fit()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(now)


def test_only_a_lean_target_whose_bits_stay_is_run_on_any_threads() -> None:
    """Whether they stay is the processor's matter: the trial finds it out."""
    model, now = tiny_llava(kv_heads=2), torch.get_num_threads()
    lean, plain = (VLM(model, "tiny", backend=name) for name in ("lean", "hf"))
    torch.set_num_threads(2)
    try:
        assert not VLMTarget(plain).on_any_threads
        output, threads_used = lean.decoder.logits, []

        def shaken(hidden: torch.Tensor) -> torch.Tensor:
            threads_used.append(torch.get_num_threads())
            return output(hidden) + (threads_used[-1] == 1) * 1e-6

        lean.decoder.logits = shaken  # type: ignore[method-assign]
        assert not VLMTarget(lean).on_any_threads
        assert sorted(set(threads_used)) == [1, 2]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(now)
