"""The steps suite on shapes small enough for any machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from specvl_demo.__main__ import main
from specvl_demo.bench import cases, device, steps
from specvl_demo.decoders.huggingface import HFDecoder
from specvl_demo.serving import loader
from specvl_demo.serving.availability import Options
from specvl_demo.serving.loader import Loaded
from specvl_demo.vlm import random_models
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.random_models import n_weights, random_model


@pytest.mark.parametrize("backend", ["hf", "lean", "graphs"])
def test_every_step_has_its_cost_and_its_bound(backend: str) -> None:
    target, drafter = (
        VLM(random_model(name, "float32", "cpu"), name, backend=backend).decoder
        for name in ("tiny-qwen2.5", "tiny-llava")
    )
    report = steps.suite({"target": target, "drafter": drafter}, 40, (1, 4, 16), repeats=3, size=64)
    labels = [(row["step"], row["model"], row["rows"]) for row in report["rows"]]
    assert labels == [
        ("prefill", "target", 40),
        ("step", "target", 1),
        ("verify", "target", 4),
        ("verify", "target", 16),
        ("prefill", "drafter", 40),
        ("draft", "drafter", 1),
        ("draft", "drafter", steps.WIDTH),
    ]
    for row in report["rows"]:
        assert row["ms"] > 0 and row["share"] == pytest.approx(row["bound_ms"] / row["ms"])
        assert row["bound_by"] in ("memory", "arithmetic")
    assert report["rows"][1]["vs_step"] == 1.0
    json.dumps(report, allow_nan=False)


def test_a_step_reads_the_layers_the_head_and_the_cache() -> None:
    model = random_model("tiny-llava", "float32", "cpu")
    decoder = HFDecoder(model)
    layers = sum(p.numel() for p in model.get_decoder().layers.parameters())
    assert decoder.n_weights == layers + model.get_output_embeddings().weight.numel()
    (cost,) = steps.costs(decoder, "t", steps.Bounds(1e9, 1e12), 50, (1,), repeats=2)
    cached = 2 * 2 * 2 * 16 * 51 * 4  # keys and values, layers, heads, width, rows, bytes
    assert cost["bytes"] == decoder.n_weights * 4 + cached
    assert cost["bound_ms"] == pytest.approx(cost["bytes"] / 1e9 * 1e3)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llava-1.5-7b", 6.74), ("qwen2.5-vl-7b", 7.62), ("qwen2.5-vl-32b", 32.8), ("lvlm68m", 0.068)],
)
def test_shapes_are_the_published_ones(name: str, billions: float) -> None:
    assert n_weights(name) / 1e9 == pytest.approx(billions, rel=0.03)


@pytest.mark.skipif(torch.cuda.is_available(), reason="may fit here")
def test_what_does_not_fit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "--suite", "steps", "--pair", "qwen2.5-vl-32b", "--dtype", "float32"]
    assert main(command) == 2
    assert "GB here" in capsys.readouterr().err


def test_the_suite_prints_one_document(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random_models, "PAIRS", {"llava-1.5-7b": ("tiny-qwen2.5", "tiny-llava")})
    monkeypatch.setattr(steps, "ROWS", (1, 4))
    command = ["bench", "--suite", "steps", "--pair", "llava-1.5-7b", "--repeats", "2", "--json"]
    assert main([*command, "--set", "context=30", "--set", "graphs=true"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {row["step"] for row in report["rows"]} == {"prefill", "step", "verify", "draft"}


def test_a_device_tells_all_in_one_run_and_one_part_that_fails_stops_no_other(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(device, "NODES", (1, 4))
    monkeypatch.setattr(device, "CONTEXT", 24)
    monkeypatch.setattr(device, "DTYPES", ("float16", "float32"))
    scene = cases.scenes_alone(1)
    monkeypatch.setattr(device.cases, "scenes_alone", lambda n: scene)

    def load(pair: object, roles: object, progress: object, options: Options) -> Loaded:
        if options.dtype == "float16":
            raise RuntimeError("no kernel")
        return loaded

    monkeypatch.setattr(loader, "load", load)
    file = tmp_path / "out.md"
    command = "bench --suite device --methods chain --repeats 1 --prompts 1 --max-new-tokens 4"
    assert main([*command.split(), "--report", str(file)]) == 0
    text = file.read_text()
    parts = "Steps, eager and in fixed shapes", "beside the library", "Memory", "in float32"
    assert all(part in text for part in parts)
    assert "Exactness in float16: Failed: RuntimeError: no kernel" in text and "hf-assisted" in text
