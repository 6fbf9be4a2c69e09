"""Heads of a pair on disk, as used on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specvl_demo.methods.heads.blocks import Geometry
from tests import corpus, pocketlike
from tests.contract.test_checkpoints import write
from tests.contract.test_cli import run_json
from tests.heads import random_module

pytestmark = pytest.mark.usefixtures("assets")
GEOMETRY = Geometry(width=64, heads=2, kv_heads=2, head_width=32, eps=1e-6)
HEADS = ("eagle2", "hivis", "dream")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random pocket-like pair with random heads, and a picture."""
    folder = tmp_path_factory.mktemp("place")
    pocketlike.save_pair(folder / "pocket")
    for seed, name in enumerate(HEADS):
        module = random_module(name, GEOMETRY, seed)
        write(
            folder / "pocket" / name,
            module.published(),
            num_attention_heads=2,
            specvl={"method": name},
        )
    corpus.halves((200, 100)).save(folder / "a.png")
    return folder


@pytest.mark.parametrize("method", HEADS)
def test_generate_gives_the_plain_answer(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    question = ("--prompt", "what is in the picture", "--image", "a.png", "--max-new-tokens", "12")
    plain = run_json(capsys, "generate --method ar", *question)
    fast = run_json(capsys, f"generate --method {method}", *question)
    assert fast["token_ids"] == plain["token_ids"] and fast["lossless"]


def drafted(trace: Path) -> set[int]:
    rounds = [json.loads(line) for line in trace.read_text().splitlines()]
    return {
        token
        for round_ in rounds
        if round_["kind"] == "round"
        for token in round_["tree"]["tokens"][1:]
    }


@pytest.mark.parametrize("method", ["eagle2", "hivis", "dream"])
def test_a_draft_vocabulary_bounds_what_is_drafted_and_changes_no_answer(
    method: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    question = ["--prompt", "what is in the picture", "--max-new-tokens", "12"]
    plain = run_json(capsys, "generate --method ar", *question)
    role = place / "pocket" / method / "model.safetensors"
    before = load_file(role)
    save_file(before | {"draft_ids": torch.arange(270, 320, dtype=torch.int32)}, role)
    try:
        trace = ("--trace", str(tmp_path / "t.jsonl"))
        fast = run_json(capsys, f"generate --method {method}", *question, *trace)
    finally:
        save_file(before, role)
    assert fast["token_ids"] == plain["token_ids"]
    assert drafted(tmp_path / "t.jsonl") and drafted(tmp_path / "t.jsonl") <= {*range(270, 320)}
