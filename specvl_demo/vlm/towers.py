"""Vision towers of the Qwen-VL and GLM-V families with few operations, over the library's modules.

The library's attention is called once for every window of a picture, unless it takes windows of
several lengths at once as flash attention does: 28 of the 32 layers of Qwen2.5-VL's tower then make
some 90 calls each for a photograph, and a GPU waits for the host. Here it takes them at once,
padded to the longest. Patches that do not overlap are multiplied by a matrix: for the same as a
three-dimensional convolution, some versions of cuDNN need seconds.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specvl_demo.decoders.attention import fused

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ATTENTION = "specvl_flash_windows"
"""The library passes windows to what has "flash" in its name."""
_MOST_PADDED = 2
"""Windows are padded if this makes at most so many times as many rows."""


def make_lean(model: PreTrainedModel) -> None:
    """Let the model's vision tower attend in all its windows at once, if it has windows, and embed
    patches by a matrix. Weights and their names stay.
    """
    from transformers import AttentionInterface  # noqa: PLC0415 - a server never builds a model

    inside = set(model.get_decoder().modules())
    configs = {}
    for part in set(model.modules()) - inside:
        if _takes_windows(part):
            configs[id(part.config)] = part.config
        embed = getattr(part, "proj", None)
        if (
            isinstance(embed, nn.Conv3d)
            and embed.groups == 1
            and not any(embed.padding)
            and embed.stride == embed.kernel_size
        ):
            part.proj = _PatchEmbedding(embed)
    if configs:
        AttentionInterface.register(_ATTENTION, _window_attention)
    for config in configs.values():
        # Not by `set_attn_implementation`, which would look for the flash attention package.
        config._attn_implementation = _ATTENTION


class _PatchEmbedding(nn.Module):
    """A convolution over patches [n, channels, time, height, width], as a product: [n, width]."""

    def __init__(self, convolution: nn.Conv3d) -> None:
        super().__init__()
        self.weight = convolution.weight
        self.bias = convolution.bias

    def forward(self, patches: Tensor) -> Tensor:
        return F.linear(patches.flatten(1), self.weight.flatten(1), self.bias)


def _takes_windows(part: nn.Module) -> bool:
    attends = type(part).__name__.endswith("VisionAttention") and hasattr(part, "config")
    return attends and "cu_seqlens" in inspect.signature(type(part).forward).parameters


def _window_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend in each window of [1, heads, N, width]; returns [1, N, heads, width].

    Args:
        cu_seq_lens_q: [windows + 1] where they begin and end; None for one.
        max_length_q: Of the longest one.
    """
    bounds = cu_seq_lens_q
    n = query.shape[2]
    if bounds is None or max_length_q is None or len(bounds) == 2:
        return fused(query, key, value, attention_mask, scale=scaling).transpose(1, 2), None
    starts = bounds[:-1]
    ends = bounds[1:]
    longest = int(max_length_q)
    if len(starts) * longest > _MOST_PADDED * n:
        lengths = (ends - starts).tolist()
        windows = zip(*(states.split(lengths, 2) for states in (query, key, value)))
        mixed = torch.cat([fused(q, k, v, scale=scaling) for q, k, v in windows], 2)
        return mixed.transpose(1, 2), None
    every = torch.arange(n, device=query.device)
    rows = starts[:, None] + every[:longest]
    mask = None
    if len(starts) * longest > n:  # some are shorter
        mask = (rows < ends[:, None])[:, None, None]
        rows = rows.clamp_max(n - 1)
    # [windows, heads, longest, width]
    q, k, v = (states[0][:, rows].transpose(0, 1) for states in (query, key, value))
    mixed = fused(q, k, v, mask, scale=scaling)
    window = torch.bucketize(every, ends, right=True)
    place = window * longest + every - starts[window]
    return mixed.transpose(1, 2).flatten(0, 1)[place][None], None
