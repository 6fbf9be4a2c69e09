"""The lean forward where its matrices are large enough for a second layout."""

from __future__ import annotations

import pytest
import torch

from specvl_demo.targets.lean import _PACKED_NUMBERS, _PACKED_ROWS, _Matrix

ROWS = [1, 2, _PACKED_ROWS.start, 8, _PACKED_ROWS.stop - 1, _PACKED_ROWS.stop]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_both_layouts_give_the_same_product(rows: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(_PACKED_NUMBERS // 48 + 1, 48, generator=generator)
    x = torch.randn(rows, 48, generator=generator)
    more = torch.randn(len(weight), generator=generator) if bias else None
    told = (x.double() @ weight.double().t()).float()
    matrix = _Matrix(weight)
    blocks = torch.backends.mkldnn.is_available() and rows in _PACKED_ROWS
    assert (matrix.packed(x) is not None) == blocks
    assert torch.allclose(matrix(x), told, atol=1e-4)
    out = torch.full_like(told, torch.nan)
    matrix.into(out, x, more)
    assert torch.allclose(out, told if more is None else told + more, atol=1e-4)
    out = torch.ones_like(told)
    matrix.onto(out, x)
    assert torch.allclose(out, 1 + told, atol=1e-4)


def test_a_small_matrix_has_one_layout() -> None:
    assert _Matrix(torch.eye(8)).packed(torch.ones(8, 8)) is None
