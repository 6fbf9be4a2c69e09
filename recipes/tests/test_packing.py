"""Weights in eight bits, as recipes write them and the app reads them."""

import torch
from torch import nn

from recipes import packing
from specvl_demo.vlm import eight_bits


def weights() -> dict[str, torch.Tensor]:
    rows = torch.randn(300, 200, generator=torch.Generator().manual_seed(0))
    return {"fc.weight": rows * torch.logspace(-3, 1, 300)[:, None], "norm.weight": torch.ones(200)}


def test_every_row_keeps_its_own_size():
    stored = packing.packed(weights())
    assert stored["fc.weight"].dtype == torch.int8
    assert torch.equal(stored["norm.weight"], torch.ones(200))
    restored, was = eight_bits.unpack_matrices(stored), weights()["fc.weight"]
    assert set(restored) == set(weights()) and restored["fc.weight"].dtype == torch.float16
    step = was.abs().amax(1, keepdim=True) / 127
    assert ((restored["fc.weight"] - was).abs() <= 0.51 * step + 1e-3 * was.abs()).all()


def test_a_rounded_module_is_what_its_file_holds():
    module = nn.Linear(300, 200)
    before = packing.packed({"weight": module.weight.detach().clone()})
    packing.round_to(module)
    assert torch.equal(module.weight, eight_bits.unpack_matrices(before)["weight"].float())
    after = packing.packed({"weight": module.weight.detach()})
    assert torch.equal(after["weight"], before["weight"])
