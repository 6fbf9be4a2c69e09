"""Where pairs run: from sizes only, on machines that need not exist."""

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from specvl_demo import pairs
from specvl_demo.pairs import PAIRS, ROLES, Checkpoint, find, fitting, machine, on_disk
from specvl_demo.pairs.fitting import LoadPlan, Options
from specvl_demo.pairs.machine import Gpu, Machine
from specvl_demo.pairs.placing import place
from specvl_demo.serving import choosing, loader
from tests.shared.refusals import refuses
from tests.shared.server import run_python

LAPTOP = Machine(8, 16_000_000_000, "x86_64")
H200 = Machine(16, 128_000_000_000, "x86_64", (Gpu("NVIDIA H200", 150_000_000_000),))
SMALL_GPU = Machine(
    8, 32_000_000_000, "x86_64", (Gpu("RTX", 8_000_000_000), Gpu("RTX big", 24_000_000_000))
)
L4 = Machine(8, 32_000_000_000, "x86_64", (Gpu("NVIDIA L4", 24_000_000_000, (8, 9)),))
T4 = Machine(8, 32_000_000_000, "x86_64", (Gpu("Tesla T4", 16_000_000_000, (7, 5)),))


@pytest.fixture(autouse=True)
def nothing_cached(monkeypatch) -> None:
    monkeypatch.setattr(on_disk, "_cached_config", lambda repo: None)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_every_pair_is_complete(pair: pairs.PairSpec):
    assert find(pair.id) is pair and set(pair.drafters) <= set(ROLES)
    for checkpoint in (pair.target, *pair.drafters.values()):
        assert checkpoint.licence and checkpoint.params > 1e5
        assert checkpoint.local or checkpoint.id.count("/") == 1
    assert all(drafter.params < pair.target.params for drafter in pair.drafters.values())


def test_sizes_of_shipped_weights_are_those_of_the_files():
    pocket = find("pocket")
    for checkpoint in (pocket.target, *pocket.drafters.values()):
        stored = sum(path.stat().st_size for path in checkpoint.folder.glob("*.safetensors"))
        assert stored == 0 or checkpoint.params == pytest.approx(stored / 2, rel=0.1), checkpoint.id


def test_verdicts_follow_memory():
    seven = find("llava-1.5-7b")
    refused = place(seven, LAPTOP)
    assert not refused.ok and "no GPU" in refused.reason and "16.0 GB" in refused.reason
    served = place(seven, H200)
    assert (served.ok, served.plan.device, served.plan.dtype) == (True, "cuda:0", "bfloat16")
    assert served.must_fetch and "hub" in served.reason
    assert place(seven, SMALL_GPU, roles=("small",)).plan.device == "cuda:1"
    assert place(seven, SMALL_GPU, Options("float32")).ok is False
    assert not place(find("qwen2.5-vl-72b"), H200).ok
    lacking = place(find("qwen3-vl-4b"), H200, roles=("dream",)).reason
    assert lacking == "It has no DREAM head with cross-attention to the target's features here."
    assert place(find("smolvlm2-2.2b"), LAPTOP).plan.device == "cpu"


def test_what_no_card_holds_is_spread_over_all_of_them():
    two = replace(H200, gpus=H200.gpus * 2)
    served = place(find("qwen2.5-vl-72b"), two)
    assert served.ok and "2 GPUs (NVIDIA H200 + NVIDIA H200)" in served.reason
    assert served.plan.split.keys() == {0, 1} and served.plan.device == "cuda:0"
    assert not place(find("llava-1.5-7b"), two).plan.split


def test_offline_only_what_is_asked_for_must_be_cached(monkeypatch):
    """With the target and its small drafter cached, nothing else is missed unless asked for."""
    pair, machine = find("llava-1.5-7b"), replace(H200, offline=True)
    monkeypatch.setattr(
        on_disk, "has_weights", lambda one: one in (pair.target, pair.drafters["small"])
    )
    for roles in ((), ("small",)):
        assert place(pair, machine, roles=roles).ok
    for wanted in (("small", "hivis"), None):
        assert "HF_HUB_OFFLINE" in place(pair, machine, roles=wanted).reason
    monkeypatch.setattr(loader, "detect_machine", lambda: machine)
    refuses("does not run here: Not in the local cache", loader.load_pair, pair, ("hivis",))


def test_shipped_weights_that_are_missing_are_said(monkeypatch):
    monkeypatch.setattr(on_disk, "has_weights", lambda one: False)
    verdict = place(find("pocket"), LAPTOP)
    assert not verdict.ok and "missing from assets" in verdict.reason
    assert on_disk.loadable_drafters(find("pocket")) == {}


def test_a_folder_of_ones_own_is_local_and_not_shipped(tmp_path: Path):
    """It is never fetched, takes the memory any model does, and is not among the assets."""
    own = Checkpoint(str(tmp_path), 8.09e6, "", local=True)
    pair = replace(find("pocket"), target=own, drafters={})
    assert not pair.shipped and find("pocket").shipped
    assert place(pair, LAPTOP).reason == f"The weights of {tmp_path} are not there."
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    verdict = place(pair, LAPTOP)
    assert verdict.ok and not verdict.must_fetch
    assert verdict.needs_bytes > fitting.PROCESS_BYTES["cpu"] + 8.09e6


def test_packed_weights_are_refused_before_anything_is_fetched(monkeypatch):
    seven = find("qwen2.5-vl-7b")
    verdict = place(seven, LAPTOP, Options(quantised="4bit"))
    assert verdict.reason == "4-bit weights need a GPU that torch can use; there is none."
    monkeypatch.setattr(fitting.importlib.util, "find_spec", lambda name: None)
    verdict = place(seven, H200, Options(quantised="8bit"))
    assert verdict.reason == "8-bit weights need the package bitsandbytes, which is not installed."
    monkeypatch.setattr(fitting.importlib.util, "find_spec", lambda name: name)
    verdict = place(seven, SMALL_GPU, Options(quantised="4bit"))
    assert verdict.ok and "bfloat16 with 4-bit weights" in verdict.reason
    small = replace(
        LAPTOP, gpus=(Gpu("too small", 10**9),)
    )  # its processor has room for whole ones
    assert place(find("smolvlm2-2.2b"), small).ok
    assert not place(find("smolvlm2-2.2b"), small, Options(quantised="4bit")).ok
    # Only the target is packed.
    packed, whole = (
        fitting.memory_needs(seven, replace(verdict.plan, quantised=packing), ("small",)).total
        for packing in ("4bit", "none")
    )
    assert packed < 0.7 * whole and packed > 2 * seven.drafters["small"].params


def test_a_verdict_is_a_methods_and_counts_no_other_drafter(monkeypatch):
    """What needs no small drafter runs where that one would not fit; packed, all of it does."""
    can, served = False, [find(name) for name in ("qwen2.5-vl-7b", "qwen2-vl-7b", "qwen3-vl-8b")]
    monkeypatch.setattr(fitting, "_has_bitsandbytes", lambda: can)
    for pair in served:
        light = {"ar", "ngram", *(role for role in pair.drafters if role == "hivis")}
        told = {name: choosing.place_method(pair, name, L4) for name in (*light, "sage")}
        assert {name for name, verdict in told.items() if verdict.ok} == light
        assert all(told[name].plan.dtype == "bfloat16" for name in light)
    can = True
    for pair in served:
        verdict = choosing.place_method(pair, "sage", L4)
        assert verdict.ok and verdict.plan.quantised == "4bit" and "4-bit weights" in verdict.reason
        assert choosing.place_method(pair, "ar", L4).plan.quantised == "none"
    refuses("dream needs a", choosing.place_method, find("qwen3-vl-8b"), "dream", L4)


def test_a_card_that_is_too_small_leaves_no_giant_in_float32_to_the_processor(monkeypatch):
    """Not by itself: 50 GB, and seconds a token. Where any drafters will do, fewer are loaded."""
    monkeypatch.setattr(fitting, "_has_bitsandbytes", lambda: False)
    roomy = replace(L4, memory_bytes=64_000_000_000)
    seven = find("qwen2.5-vl-7b")
    refused = place(seven, roomy, roles=("small",))
    assert not refused.ok
    assert "--dtype float32" in refused.reason and "bitsandbytes" in refused.reason
    giant = place(seven, roomy, Options("float32"), roles=("small",))
    assert giant.plan.device == "cpu" and giant.needs_bytes > 4e10
    fewer = place(seven, roomy)
    assert fewer.plan.device == "cuda:0" and {*fewer.roles} == {*seven.drafters} - {"small"}


@pytest.mark.parametrize("name", ["photo", "pocket"])
def test_shipped_pairs_stay_on_the_processor_where_its_kernels_run(name: str, monkeypatch):
    monkeypatch.setattr(on_disk, "why_missing", lambda *_: None)
    both = replace(H200, kernels=True)
    served = place(find(name), both, roles=())
    assert served.plan.device == "cpu" and "kernels" in served.reason
    for other, options in ((both, Options("bfloat16")), (H200, Options())):
        assert place(find(name), other, options, roles=()).plan.device == "cuda:0"


@pytest.mark.parametrize(
    ("forms", "runs"),
    [("sm_75 sm_90a", False), ("sm_60", True), ("compute_52", True), ("gfx942", True)],
)
def test_cards_that_torch_was_not_built_for_are_left_out(forms: str, runs: bool, monkeypatch):
    """Alone such a card is no GPU, and the reason is told; beside another it keeps its number."""
    card = Gpu("P40", 10**10, (6, 1), machine.is_built((6, 1), forms.split()))
    monkeypatch.setattr(machine, "_all_gpus", lambda: (card,))
    monkeypatch.setenv(machine.GPU_SHARE, "0.5")
    seen = machine.detect_machine()
    assert [gpu.memory_bytes for gpu in seen.gpus] == [5 * 10**9] * runs
    assert ("was not built for P40" in seen.no_gpu) != runs
    beside = replace(L4, gpus=(card, *L4.gpus))
    assert place(find("smolvlm2-2.2b"), beside).plan.device == f"cuda:{int(not runs)}"


def test_a_driver_that_torch_cannot_use_is_named(monkeypatch):
    monkeypatch.setattr(machine, "_driver", lambda: "L4, driver 535.1")
    refused = place(find("llava-1.5-7b"), replace(LAPTOP, no_gpu=machine.why_no_gpu()))
    assert "(L4, driver 535.1)" in refused.reason


def test_memory_needed_grows_with_the_caches_of_the_lanes():
    """LLaVA-NeXT keeps half a megabyte a token: five lanes outgrow a card that holds two."""
    pair = find("llava-1.6-7b")
    kv = 2 * 32 * 32 * 128 * 2 * pair.n_tokens
    half = LoadPlan("bfloat16")
    needs = [fitting.memory_needs(pair, half, (), n).total for n in (1, 2, 5)]
    assert needs[1] - needs[0] == kv and needs[2] - needs[0] == 4 * kv and kv > 1.8e9
    assert needs[1] < 0.9 * L4.gpus[0].memory_bytes < needs[2]
    alone, beside = (fitting.memory_needs(pair, half, ("small",), n).total for n in (1, 2))
    assert beside - alone == kv + pair.drafters["small"].kv * 2 * pair.n_tokens > kv


def test_steps_of_half_precision_are_tried_for_exactness_and_those_of_float32_are_not():
    """Whether they cost AR too much is measured where they run."""
    for options, exact in ((Options(), True), (Options(exact="off"), False)):
        assert fitting.wants_exact(LoadPlan("bfloat16"), options) is exact
    assert fitting.wants_exact(LoadPlan("float32"), Options()) is None


def test_old_cards_compute_in_float16():
    small = find("smolvlm2-2.2b")
    assert place(small, T4).plan.dtype == "float16" and place(small, L4).plan.dtype == "bfloat16"
    assert place(small, T4, Options(dtype="float32")).plan.dtype == "float32"


def test_devices_are_looked_for_by_another_process(monkeypatch):
    """A build of torch with CUDA looks for devices where the context does not stay."""
    import torch

    monkeypatch.setattr(machine.metadata, "version", lambda name: "2.13.0")
    monkeypatch.setattr(machine, "_torch_gpus", lambda: pytest.fail("this process looked"))
    machine._gpus_by_process.cache_clear()
    assert machine.gpus() == () and not torch.cuda.is_initialized()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""  # no test sees a GPU, nor do its servers
    done = SimpleNamespace(stdout='a driver says hello\n[["A card", 24000000000, [8, 9], true]]\n')
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: done)
    machine._gpus_by_process.cache_clear()
    assert machine.gpus() == (Gpu("A card", 24_000_000_000, (8, 9)),)
    machine._gpus_by_process.cache_clear()


def test_a_pair_that_was_only_looked_at_still_has_to_be_fetched(tmp_path: Path, monkeypatch):
    """Asking whether two models fit puts configurations into the cache, and no weights."""
    monkeypatch.undo()
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache", lambda *_: str(tmp_path / "config.json")
    )
    (tmp_path / "config.json").write_text("{}")
    one = find("qwen3-vl-4b").target
    assert not on_disk.has_weights(one)
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    assert on_disk.has_weights(one)


def test_a_container_has_what_it_was_lent(tmp_path: Path):
    own = tmp_path / "cgroup"
    assert machine.container_limits(tmp_path / "nowhere", own) == (None, None)
    own.write_text("0::/a/b\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "a" / "cpu.max").write_text("250000 100000\n")
    (tmp_path / "a" / "memory.max").write_text("8000000000\n")
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    assert machine.container_limits(tmp_path, own) == (2.5, 8_000_000_000)


GUARD = """
import socket, sys
def refuse(*asked, **more):
    raise SystemExit(f"the network was asked: {asked}")
socket.socket.connect = socket.socket.connect_ex = refuse
socket.getaddrinfo = socket.create_connection = refuse
from specvl_demo.__main__ import main
sys.exit(main(["models", "--json"]))
"""


@pytest.mark.slow
def test_looking_fetches_nothing(tmp_path: Path):
    """The whole list of pairs, in a process whose every connection fails, with an empty cache."""
    cache = tmp_path / "cache"
    cache.mkdir()
    done = run_python("-c", GUARD, HF_HOME=str(cache))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [pair["id"] for pair in told["pairs"]] == [pair.id for pair in PAIRS]
    assert not list(cache.rglob("*"))
    for pair in told["pairs"]:
        assert pair["reason"].endswith(".") and pair["methods"] and pair["licence"]
        assert set(pair["memory_bytes"]) == {"float32", "bfloat16", "float16"}


def test_a_target_meant_for_8_bits_takes_them_where_the_processor_has_products_of_them():
    photo = replace(pairs.find("photo"), target=replace(pairs.find("photo").target, base=None))
    new = replace(LAPTOP, kernels=True)

    def quantised(machine: Machine, **options: str) -> str:
        return place(photo, machine, Options(**options), ()).plan.quantised  # type: ignore[arg-type]

    assert (quantised(new), quantised(LAPTOP)) == ("8bit", "none")
    assert quantised(new, quantised="none") == quantised(new, dtype="float32") == "8bit"
    assert quantised(replace(new, gpus=H200.gpus), dtype="bfloat16") == "none"
    assert place(pairs.find("pocket"), new, Options(), ()).plan.quantised == "none"
