"""The lean forward where its matrices are wide enough for a second layout."""

from __future__ import annotations

import pytest
import torch

from specvl_demo.targets.lean import _PACKED_COLUMNS, _PACKED_ROWS, _Wide


@pytest.mark.parametrize("rows", [1, 2, _PACKED_ROWS.start, 8, _PACKED_ROWS.stop - 1, _PACKED_ROWS.stop])
@torch.inference_mode()
def test_both_layouts_give_the_same_product(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(_PACKED_COLUMNS, 48, generator=generator)
    x = torch.randn(rows, 48, generator=generator)
    told = (x.double() @ weight.double().t()).float()
    assert torch.allclose(_Wide(weight)(x), told, atol=1e-4)
