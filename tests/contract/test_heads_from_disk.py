"""Heads of a pair on disk, as used on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specvl_demo.methods.heads.blocks import Geometry
from specvl_demo.serving import loader
from tests import corpus, pocketlike
from tests.contract.test_checkpoints import write
from tests.contract.test_cli import assets, run_json  # noqa: F401 - a fixture for every test here
from tests.heads import random_module

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
    plain = run_json(capsys, "generate", "--method", "ar", *question)
    fast = run_json(capsys, "generate", "--method", method, *question)
    assert fast["token_ids"] == plain["token_ids"] and fast["lossless"]


def drafted(trace: Path) -> set[int]:
    rounds = [json.loads(line) for line in trace.read_text().splitlines()]
    return {
        token for one in rounds if one["kind"] == "round" for token in one["tree"]["tokens"][1:]
    }


@pytest.mark.parametrize("method", ["chain", "eagle2", "hivis", "dream", "custom"])
def test_a_draft_vocabulary_bounds_what_is_drafted_and_changes_no_answer(
    method: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first tokens of a drafter's own list where it has one, else the target's commonest."""
    question = ["--prompt", "what is in the picture", "--max-new-tokens", "12"]
    named = ["--set", "drafter=self", "--set", "views=text-only"] if method == "custom" else []
    plain = run_json(capsys, "generate", "--method", "ar", *question)
    counted = place / "pocket" / "target" / loader.COMMONEST
    counted.write_text(json.dumps(list(range(200, 240))))
    ids = torch.arange(270, 320, dtype=torch.int32)
    own = {} if method in ("chain", "custom") else {"draft_ids": ids}
    role = place / "pocket" / method / "model.safetensors"
    if own:
        before = load_file(role)
        save_file(before | own, role)
    try:
        fast = run_json(
            capsys,
            *("generate", "--method", method, *question, *named),
            *("--set", "draft_vocab=20", "--trace", str(tmp_path / "t.jsonl")),
        )
    finally:
        counted.unlink()
        if own:
            save_file(before, role)
    assert fast["token_ids"] == plain["token_ids"]
    first = 270 if own else 200
    known = {*range(first, first + 20), pocketlike.tokenizer().eos_token_id}
    assert drafted(tmp_path / "t.jsonl") and drafted(tmp_path / "t.jsonl") <= known
