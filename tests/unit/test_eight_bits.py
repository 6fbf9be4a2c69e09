"""Drafters' weights in eight bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from specvl_demo.methods.heads import files
from specvl_demo.vlm import eight_bits


def weights() -> dict[str, torch.Tensor]:
    rows = torch.randn(300, 200, generator=torch.Generator().manual_seed(0))
    return {"fc.weight": rows * torch.logspace(-3, 1, 300)[:, None], "norm.weight": torch.ones(200)}


def test_every_row_keeps_its_own_size() -> None:
    stored = eight_bits.packed(weights())
    assert stored["fc.weight"].dtype == torch.int8 and torch.equal(stored["norm.weight"], torch.ones(200))
    found, was = eight_bits.unpacked(stored), weights()["fc.weight"]
    assert set(found) == set(weights()) and found["fc.weight"].dtype == torch.float16
    step = was.abs().amax(1, keepdim=True) / 127
    assert ((found["fc.weight"] - was).abs() <= 0.51 * step + 1e-3 * was.abs()).all()


def test_a_rounded_module_is_what_its_file_holds() -> None:
    module = nn.Linear(300, 200)
    before = eight_bits.packed({"weight": module.weight.detach().clone()})
    eight_bits.round_to(module)
    assert torch.equal(module.weight, eight_bits.unpacked(before)["weight"].float())
    assert torch.equal(eight_bits.packed({"weight": module.weight.detach()})["weight"], before["weight"])


def test_a_head_is_read_from_such_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({}))
    stored = eight_bits.packed(weights())
    save_file(stored, tmp_path / "model.safetensors")
    assert files.read(tmp_path)[0]["fc.weight"].dtype == torch.float16
    del stored["fc.weight" + eight_bits.SCALE]
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"fc\.weight is in eight bits; it needs fc\.weight\.scale"):
        files.read(tmp_path)
