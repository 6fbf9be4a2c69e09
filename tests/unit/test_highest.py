"""Searching long rows by blocks finds what torch finds."""

from __future__ import annotations

import pytest
import torch

from specvl_demo.core import highest


@pytest.mark.parametrize("size", [100, 16_384, 49_152, 50_000])
@pytest.mark.parametrize("n", [1, 7])
def test_the_highest_are_torchs(n: int, size: int) -> None:
    rows = torch.randn(n, size, generator=torch.Generator().manual_seed(size))
    rows[0, size // 2 :] = -torch.inf
    assert torch.equal(highest.argmax(rows), rows.argmax(-1))
    for k in (1, 2, 10):
        values, places = highest.topk(rows, k)
        assert torch.equal(values, rows.topk(k).values)
        assert torch.equal(places, rows.topk(k).indices)


def test_of_equal_numbers_the_first_is_found() -> None:
    rows = torch.zeros(2, 16_384)
    rows[0, [70, 75, 9000]] = 1
    rows[1, 16_383] = 1
    assert highest.argmax(rows).tolist() == [70, 16_383]
    assert highest.argmax(torch.full((1, 16_384), -torch.inf)).tolist() == [0]


def test_a_row_that_is_not_a_number_stays_one() -> None:
    rows = torch.zeros(1, 16_384)
    rows[0, 9000] = torch.nan
    assert highest.topk(rows, 2)[0][0, 0].isnan()
