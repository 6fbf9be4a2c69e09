"""Gumbel noise for every id at every position of an answer, fixed by a seed.

A counter-based generator (Philox 4x64-10, as NumPy's; Salmon et al., SC 2011) keyed by seed and
position counts through the ids, so that neither device nor order nor vocabulary matters: a smaller
vocabulary gets the first ones. A GPU computes the same integers by itself, for some positions at
once: made by the host, the noise of one token would take longer than half of a 7B model's step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

AHEAD = 32
"""Positions that a GPU draws at once: its launches are many, whatever their size."""
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10
_LOW = 2**32 - 1


class Noise:
    """The noise of one seed, kept for positions that are needed again."""

    def __init__(self, seed: int) -> None:
        self._seed = seed % 2**64
        self._rows: dict[int, Tensor] = {}

    def rows(self, positions: Sequence[int], size: int, device: torch.device) -> Tensor:
        """Return standard Gumbel noise [k, size] of these positions of the answer, in float64."""
        return torch.stack([self._row(at, size, device)[:size] for at in positions])

    def drop_before(self, position: int) -> None:
        """Keep nothing of the positions before this one."""
        self._rows = {at: row for at, row in self._rows.items() if at >= position}

    def _row(self, at: int, size: int, device: torch.device) -> Tensor:
        row = self._rows.get(at)
        if row is None or len(row) < size:
            if device.type == "cpu":
                drawn = draw_on_host(self._seed, at, size)
            else:
                drawn = draw_on_device(self._seed, at, AHEAD, size, device)
            drawn.mul_(2.0**-52).neg_().log1p_().neg_().log_().neg_()
            self._rows |= {at + i: row for i, row in enumerate(drawn)}
            row = drawn[0]
        return row


def draw_on_host(seed: int, at: int, size: int) -> Tensor:
    """Return the high 52 bits of a position's numbers, and a half, [1, size] in float64: never 0,
    never 2 ** 52, so that the noise is always finite.
    """
    bits = np.random.Philox(key=np.array([seed, at], np.uint64)).random_raw(size)
    return torch.from_numpy((bits >> np.uint64(12)) + 0.5)[None]


def draw_on_device(seed: int, at: int, n: int, size: int, device: torch.device) -> Tensor:
    """Return the same of n positions [n, size], computed there by integer operations."""
    blocks = -(-size // 4)
    counter = torch.arange(1, blocks + 1, device=device).expand(n, -1)
    zero = torch.zeros_like(counter)
    x = [counter, zero, zero, zero]
    positions = torch.arange(at, at + n, device=device)[:, None]
    for number in range(_ROUNDS):
        keys = _signed(seed + number * _KEY_STEPS[0]), positions + _signed(number * _KEY_STEPS[1])
        (high, low), (other_high, other_low) = map(_product, x[::2], _MULTIPLIERS)
        x = [other_high ^ x[1] ^ keys[0], other_low, high ^ x[3] ^ keys[1], low]
    return ((torch.stack(x, -1) >> 12) & (2**52 - 1)).flatten(1)[:, :size].double().add_(0.5)


def _product(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """Return the high and the low 64 bits of a product of unsigned numbers, by halves."""
    a_low = a & _LOW
    a_high = (a >> 32) & _LOW
    b_low = b & _LOW
    b_high = b >> 32
    middle = a_high * b_low + (((a_low * b_low) >> 32) & _LOW)
    cross = a_low * b_high + (middle & _LOW)
    high = a_high * b_high + ((middle >> 32) & _LOW) + ((cross >> 32) & _LOW)
    return high, a * _signed(b)


def _signed(number: int) -> int:
    """Return the number of these 64 bits as int64 has it."""
    return (number + 2**63) % 2**64 - 2**63
