"""The cache against plain lists."""

from __future__ import annotations

import random

import pytest
import torch

from specvl_demo.decoders.kv_cache import KVCache, Layout

SHAPE = (2, 3, 2, 4)  # layers, batch, heads, width
LAYER = Layout(torch.device("cpu"), 2, 4)


def empty(room: int) -> KVCache:
    return KVCache([LAYER] * 2, 3, room, torch.float32)


def rows(k: int, seed: int) -> torch.Tensor:
    """[layers, 2, batch, heads, k, width]"""
    layers, batch, heads, width = SHAPE
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(layers, 2, batch, heads, k, width, generator=generator)


def append(cache: KVCache, new: torch.Tensor) -> None:
    for layer in range(SHAPE[0]):
        keys, values = cache.write(layer, new[layer, 0], new[layer, 1])
        assert keys.shape[2] == cache.length + new.shape[4]
        assert torch.equal(keys[:, :, cache.length :], new[layer, 0])
        assert torch.equal(values[:, :, cache.length :], new[layer, 1])
    cache.advance(new.shape[4])


def test_random_rounds_agree_with_lists() -> None:
    rng = random.Random(0)
    for case in range(50):
        cache, kept = empty(200), rows(0, 0)
        for step in range(8):
            new = rows(rng.randint(1, 9), 100 * case + step)
            start = cache.length
            append(cache, new)
            chosen = sorted(rng.sample(range(new.shape[4]), rng.randint(0, new.shape[4])))
            cache.keep(start, chosen)
            kept = torch.cat((kept, new[..., chosen, :]), dim=4)
            assert cache.length == kept.shape[4]
            assert torch.equal(cache.blocks[0][:, :, :, :, : cache.length], kept)


def test_spans_are_where_write_puts_rows() -> None:
    cache, new = empty(9), rows(3, 1)
    append(cache, rows(2, 0))
    slots, keys, values = cache.spans(3)
    for layer in range(SHAPE[0]):
        slots[layer].copy_(new[layer])
    cache.advance(3)
    assert torch.equal(cache.blocks[0][:, :, :, :, 2:5], new)
    assert all(torch.equal(k, cache.blocks[0][i, 0, :, :, :5]) for i, k in enumerate(keys))
    assert all(torch.equal(v, cache.blocks[0][i, 1, :, :, :5]) for i, v in enumerate(values))


def test_a_copy_is_independent() -> None:
    cache = empty(4)
    append(cache, rows(3, 0))
    twin = cache.copy(10)
    append(twin, rows(5, 1))
    assert (cache.length, twin.length, twin.room) == (3, 8, 10)
    assert torch.equal(twin.blocks[0][:, :, :, :, :3], rows(3, 0))


def test_it_refuses_what_does_not_fit() -> None:
    cache = empty(4)
    append(cache, rows(3, 0))
    with pytest.raises(ValueError, match="room for 4"):
        cache.advance(2)
    with pytest.raises(ValueError, match="do not fit"):
        cache.write(0, rows(2, 0)[0, 0], rows(2, 0)[0, 1])
    with pytest.raises(ValueError, match="not written"):
        cache.keep(1, [0, 2])
    with pytest.raises(ValueError, match="truncate"):
        cache.truncate(4)
    with pytest.raises(ValueError, match="does not fit into 2"):
        cache.copy(2)
