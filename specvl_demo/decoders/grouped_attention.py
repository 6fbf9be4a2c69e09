"""Attention under a mask where heads share keys and values: three ways, and their choice.

The heads of a group become rows of one matrix (G heads, T rows: R = G * T), so that their keys and
values are read once. Which way is fastest depends on the device, on R and on the keys, so it is
measured for the steps of fixed shapes. Rows and masks may be anything; knows no models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import torch
from torch import Tensor

from specvl_demo.core.faults import loses_device
from specvl_demo.decoders import graphs
from specvl_demo.decoders.attention import MAX_PACKED, attend, fused, kernels_accept, repeat_mask
from specvl_demo.decoders.graphs import GraphMemory

Call = tuple[Tensor, Tensor, Tensor, Tensor]
"""Queries, keys, values and a mask."""
Way = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Attention of queries [B, kv_heads, R, width] over keys and values [B, kv_heads, S, width] under
an additive mask [B or 1, 1, R, S], of the queries' shape.
"""

_LOW = -3e4
"""What masks are limited to: sums with it are finite in every precision."""
_PARTS = (4, 8, 16)
_LEAST_PART = 64
_REPEATS, _LAYERS = 3, 16
"""Layers that are timed: their keys and values are more than caches hold."""
_CLOSE = 0.03
"""How far ways may differ, by rounding, from the first one's largest number."""


def unfused(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """By two products and a softmax in float32."""
    left = queries.flatten(0, 1)
    right = keys.flatten(0, 1).mT
    if queries.dtype == torch.float32:
        scores = torch.bmm(left, right)
    else:
        scores = torch.bmm(left, right, out_dtype=torch.float32)
    scores = scores.view(*queries.shape[:3], -1)
    share = torch.add(mask, scores, alpha=queries.shape[3] ** -0.5).softmax(-1)
    return share.to(values.dtype) @ values


def split_kv(n: int, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """By the library's kernel over n parts of the keys at once, as if they were separate sequences,
    then their mean, weighted by the sums of exponentials (as in FlashDecoding). Of one sequence.
    """
    keys, values = (rows[0].unflatten(1, (n, -1)).transpose(0, 1) for rows in (keys, values))
    several = mask[0].unflatten(2, (n, -1)).movedim(2, 0)
    several = several.expand(-1, queries.shape[1], -1, -1)
    mixed, sums = _with_logsumexp(queries.expand(n, -1, -1, -1), keys, values, several)
    weights = sums[..., : queries.shape[2]].softmax(0)
    return (mixed * weights[..., None]).sum(0, keepdim=True).to(queries.dtype)


def _with_logsumexp(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Return attention and, for every row, the logarithm of its sum of exponentials."""
    if queries.device.type != "cpu":
        if not kernels_accept(queries, keys, values, mask):
            raise ValueError("the kernel cannot read this")
        # The operator below `scaled_dot_product_attention`, which returns the attention only.
        mixed, sums, _, _ = torch.ops.aten._scaled_dot_product_efficient_attention(
            queries, keys, values, mask, True
        )
        return mixed, sums
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        queries, keys, values, attn_mask=mask
    )


class FastestAttention:
    """Attention under masks in the way that is fastest for each shape."""

    def __init__(self) -> None:
        self._chosen: dict[tuple[int, ...], Way] = {}

    def prepare(
        self,
        queries: Tensor,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        mask: Tensor,
        steady: bool,
    ) -> Callable[[int], Tensor]:
        """Return a function from a layer's number to its attention [B * T, heads * width].

        Args:
            queries: [B, heads, T, width], contiguous in a sequence, written before each layer's.
            keys, values: Of every layer, [B, kv_heads, S, width].
            mask: Additive, [T, S] or [B or 1, 1, T, S].
            steady: Whether many calls will have these shapes, so that a choice is worth its time.
        """
        batch, heads, size, width = queries.shape
        if size > MAX_PACKED:
            return lambda i: attend(queries, keys[i], values[i], mask)
        groups = heads // keys[0].shape[1]
        # Once for all layers.
        mask = repeat_mask(mask.clamp_min(_LOW), groups)
        packed = queries.view(batch, -1, groups * size, width)
        shape = batch, size, mask.shape[3]
        new = steady and graphs.has_graphs(queries.device) and shape not in self._chosen
        if new and not torch.cuda.is_current_stream_capturing():
            layers = [*zip(keys, values, strict=True)][:_LAYERS]
            calls = [(trial_numbers(packed), *both, mask) for both in layers]
            self._chosen[shape] = fastest(attention_ways(batch, mask.shape[3]), calls)
        way = self._chosen.get(shape, fused)

        def attend_layer(i: int) -> Tensor:
            rows = way(packed, keys[i], values[i], mask).unflatten(2, (groups, size))
            # One copy, whatever order the kernel writes in.
            return rows.permute(0, 3, 1, 2, 4).reshape(batch * size, heads * width)

        return attend_layer


def attention_ways(batch: int, n_keys: int) -> list[Way]:
    """Return the ways that take so many keys, the safest first."""
    fit = [n for n in _PARTS if n_keys % n == 0 and n_keys // n >= _LEAST_PART]
    return [fused, unfused, *(partial(split_kv, n) for n in fit if batch == 1)]


def fastest(candidates: Sequence[Way], calls: Sequence[Call]) -> Way:
    """Return the fastest of these ways over the calls of all layers.

    A way that fails here, or disagrees with the first one, is left out.
    """
    rows, keys, values, mask = calls[0]
    half_seen = mask.clone()
    half_seen[..., mask.shape[3] // 2 :] = _LOW
    trial = rows, trial_numbers(keys), trial_numbers(values).cos(), half_seen
    truth = candidates[0](*trial)
    times = {}
    for way in candidates:
        try:
            if agrees(way(*trial), truth):
                times[way] = _replay_seconds(partial(_run_all, way, calls), rows.device)
        except (RuntimeError, TypeError, ValueError) as fault:
            if loses_device(fault):
                raise
    return min(times, key=times.__getitem__, default=candidates[0])


def agrees(mixed: Tensor, truth: Tensor) -> bool:
    """Whether attention differs from another's only as rounding may."""
    far = (mixed.float() - truth.float()).abs().max()
    return far.item() <= _CLOSE * truth.abs().max().item()


def _run_all(way: Way, calls: Sequence[Call]) -> None:
    for call in calls:
        way(*call)


def trial_numbers(like: Tensor) -> Tensor:
    """Return numbers without pattern, of this shape, that no generator must be asked for."""
    return torch.arange(like.numel(), device=like.device).sin().view(like.shape).to(like.dtype)


def _replay_seconds(run: Callable[[], object], device: torch.device) -> float:
    """Return the median seconds of a graph of this: launches take some ways longer to queue than
    to compute, and steps are replayed.
    """
    times = []
    with graphs.collect_no_garbage():
        graph = GraphMemory().capture(run, device)
    for _ in range(1 + _REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    graph.reset()
    return median(times[1:])
