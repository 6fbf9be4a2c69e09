"""Tries on a loaded decoder whether its steps are exact, and from which row count on (see `exact`)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from specvl_demo.core.tree import TreeShape, chain, shape_of
from specvl_demo.core.types import Context
from specvl_demo.decoders.backend import Backend
from specvl_demo.decoders.exact import MOST_NODES, ROWS, padded
from specvl_demo.decoders.sequence import CachedSequence, prefill

_PROMPT, _STEPS, _TREES = 150, 4, (2, 7, 13, 26, 61)
"""Tokens before the steps, steps, and trees: one of every row count."""
_SPARE = 300
"""Rows of the cache behind those that are used, so that its sums are as long as a real answer's."""


@torch.inference_mode()
def least_rows(backend: Backend) -> int | None:
    """The least row count that makes steps of this decoder exact; None where none does.

    Random tokens: logits, keys and values of a path's nodes in random trees, bit for bit beside those of AR
    steps. Costs about a dozen forwards.
    """
    rng = random.Random(0)
    ids = random_ids(backend, _PROMPT + MOST_NODES)
    start = started(backend, ids[:_PROMPT])
    trees = [_tree(rng, size) for size in _TREES]
    scored: dict[tuple[int, int], list[Tensor]] = {}
    for least in ROWS:
        plain = _plain(backend, start, ids[_PROMPT : _PROMPT + _STEPS], least)
        if all(_agree(backend, start, ids[_PROMPT:], tree, plain, least, scored) for tree in trees):
            return least
    return None


def random_ids(backend: Backend, n: int) -> Tensor:
    """[n] tokens, always the same."""
    rng = random.Random(0)
    return torch.tensor([rng.randrange(backend.vocab) for _ in range(n)], device=backend.device)


def text_context(backend: Backend, ids: Tensor) -> Context:
    """These tokens [n] and nothing else, as a prompt."""
    every = torch.arange(len(ids), device=ids.device)
    positions = every if backend.axes == 1 else every.expand(backend.axes, -1)
    text = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    return Context("proof", ids, text, backend.embed(ids), positions, len(ids), every)


def started(backend: Backend, ids: Tensor) -> CachedSequence:
    """A sequence of these tokens [n]."""
    return prefill(backend, [text_context(backend, ids)], 0)[0]


def _fork(start: CachedSequence) -> CachedSequence:
    stream = start.fork(start.length + _STEPS + MOST_NODES + _SPARE)
    stream.cache.clear()
    return stream


def _tree(rng: random.Random, size: int) -> tuple[TreeShape, list[int]]:
    """A random tree and a path in it, as deep as AR steps are taken or as the tree has room for."""
    deep = min(_STEPS, size)
    path = [0, *sorted(rng.sample(range(1, size), deep - 1))]
    parent = [-1, *(rng.randrange(node) for node in range(1, size))]
    for above, node in zip(path, path[1:], strict=False):
        parent[node] = above
    return shape_of(tuple(parent)), path


def _made(stream: CachedSequence, first: int, nodes: Sequence[int], logits: Tensor) -> list[Tensor]:
    """What steps gave for nodes fed from row `first` on: logits [n, V], and keys and values a layer
    [n, 2, 1, heads, width]: those of a precision above the logits' show what rounding hides in them."""
    rows = [first + node for node in nodes]
    layers = range(stream.backend.n_layers)
    return [logits, *(stream.cache.layer(i)[:, :, :, rows].permute(3, 0, 1, 2, 4) for i in layers)]


def _plain(backend: Backend, start: CachedSequence, ids: Tensor, least: int) -> list[Tensor]:
    """What AR steps over these tokens give."""
    stream, said = _fork(start), []
    for token in ids:
        hidden = stream.score(backend.embed(token[None])[None], chain(0), least=least)
        said.append(backend.logits(hidden)[0, :1])
        stream.keep([0])
    return _made(stream, start.length, range(len(ids)), torch.cat(said))


def _agree(
    backend: Backend,
    start: CachedSequence,
    ids: Tensor,
    tree: tuple[TreeShape, list[int]],
    plain: list[Tensor],
    least: int,
    scored: dict[tuple[int, int], list[Tensor]],
) -> bool:
    """Whether the path's nodes are those of the AR steps. scored: by tree size and row count."""
    shape, path = tree
    key = (len(shape), padded(len(shape), least))
    if key not in scored:
        tokens = ids.flip(0)[: len(shape)].clone()
        tokens[path] = ids[: len(path)]
        stream = _fork(start)
        hidden = stream.score(backend.embed(tokens)[None], shape, least=least)
        scored[key] = _made(stream, start.length, path, backend.logits(hidden)[0, path])
    return all(torch.equal(a, b[: len(path)]) for a, b in zip(scored[key], plain, strict=True))
