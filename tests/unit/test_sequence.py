"""Streams: level by level as at once, several views as each alone."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from specvl_demo.core.tree import chain, shape_of
from specvl_demo.core.types import Context
from specvl_demo.decoders.sequence import CachedSequence, prefill
from specvl_demo.vlm.encoder import VLM
from tests.conftest import VOCAB, tiny_llava, tiny_prompt


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return tiny_llava(kv_heads=2)


def contexts_of(vlm: VLM) -> list[Context]:
    """The whole prompt, one without its picture, one with every other visual token, gaps kept and closed."""
    encoded = vlm.encode(tiny_prompt(2))
    at = torch.arange(len(encoded.ids))
    text = at[~encoded.visual]
    thin = at[~encoded.visual | (at % 2 == 0)]
    return [
        encoded.context("full"),
        encoded.context("text", text, compact=True),
        encoded.context("thin", thin),
        encoded.context("thin, compact", thin, compact=True),
    ]


def fed_by_level(
    stream: CachedSequence, x: torch.Tensor, parent: tuple[int, ...], as_tensor: bool
) -> tuple[torch.Tensor, list[int]]:
    """Feed a tree level by level: hidden states in the tree's order, and every node's row."""
    shape = shape_of(parent)
    rows: dict[int, int] = {}
    states: dict[int, torch.Tensor] = {}
    for level in range(max(shape.depth) + 1):
        nodes = [node for node, depth in enumerate(shape.depth) if depth == level]
        for node in nodes:
            rows[node] = len(rows)
        if level == 0:
            out = stream.root(x[:, :1])
        else:
            parents = [rows[parent[node]] for node in nodes]
            out = stream.extend(x[:, nodes], torch.tensor(parents) if as_tensor else tuple(parents))
        states |= {node: out[:, i] for i, node in enumerate(nodes)}
    return torch.stack([states[i] for i in range(len(parent))], dim=1), [rows[i] for i in range(len(parent))]


@pytest.mark.parametrize("views", [1, 4])
@pytest.mark.parametrize("as_tensor", [False, True])
@torch.inference_mode()
def test_a_tree_fed_level_by_level_says_what_it_says_at_once(
    model: nn.Module, views: int, as_tensor: bool
) -> None:
    vlm = VLM(model, "m")
    contexts = contexts_of(vlm)[:views]
    levels, _, _ = prefill(vlm.decoder, contexts, 400)
    whole = levels.fork(400)
    rng = random.Random(1)
    for size in (1, 6, 3, 70, 9, 2):
        parent = (-1, *(rng.randrange(max(0, i - 12), i) for i in range(1, size)))
        tokens = torch.tensor([rng.randrange(4, VOCAB) for _ in range(size)])
        x = vlm.decoder.embed(tokens).expand(views, -1, -1)
        out, rows = fed_by_level(levels, x, parent, as_tensor)
        assert torch.allclose(out, whole.score(x, shape_of(parent)), atol=1e-5)
        path = shape_of(parent).path(rng.randrange(size))
        whole.keep(path)
        levels.keep([rows[node] for node in path])
        assert levels.length == whole.length


@torch.inference_mode()
def test_late_tokens_are_fed_with_the_root(model: nn.Module) -> None:
    vlm = VLM(model, "m")
    stream, _, _ = prefill(vlm.decoder, contexts_of(vlm)[:1], 100)
    once = stream.fork(100)
    x = vlm.decoder.embed(torch.tensor([[7, 8, 9, 10]]))
    out = stream.root(x[:, :3])
    more = stream.extend(x[:, 3:], (0,))
    assert torch.allclose(torch.cat((out, more), dim=1), once.score(x, chain(3)), atol=1e-5)
    before = once.length
    stream.keep([0, 1])
    assert stream.length == before + 4


@torch.inference_mode()
def test_branching_after_a_chain_keeps_the_chain(model: nn.Module) -> None:
    vlm = VLM(model, "m")
    stream, _, _ = prefill(vlm.decoder, contexts_of(vlm)[:1], 100)
    once = stream.fork(100)
    x = vlm.decoder.embed(torch.tensor([[7, 8, 9, 10, 11]]))
    parts = [stream.root(x[:, :1])]
    for i, parents in ((1, (0,)), (2, (1,)), (3, (0,)), (4, (2,))):
        parts.append(stream.extend(x[:, i : i + 1], parents))
    assert torch.allclose(torch.cat(parts, dim=1), once.score(x, shape_of((-1, 0, 1, 0, 2))), atol=1e-5)
