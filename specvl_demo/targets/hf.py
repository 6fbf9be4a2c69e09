"""The decoder of any Hugging Face vision-language model, driven with explicit masks and positions.

Given a model's decoder, embeddings and head as they were loaded; changes nothing but which attention function
the decoder calls. Hybrid sliding windows, three-axis positions and DeepStack are served here. Keeps nothing
of a request: positions, masks and the cache are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from specvl_demo.core.cache import KVCache
from specvl_demo.targets.decoder import Call, Kept, attention_of

ATTENTION = "specvl_tree"
_PACKED_ROWS = 256


class HFDecoder:
    """A `targets.decoder.Backend` over `model.get_decoder()`."""

    def __init__(self, model: nn.Module) -> None:
        AttentionInterface.register(ATTENTION, _attention)
        # Without a mask function of the same name the library would leave padded batches without a mask.
        AttentionMaskInterface.register(ATTENTION, sdpa_mask)
        self._decoder = model.get_decoder()
        self._decoder.set_attn_implementation(ATTENTION)
        self._embeddings = model.get_input_embeddings()
        self._head = model.get_output_embeddings()
        if self._head is None:
            raise ValueError(f"{type(model).__name__} has no output head; load it with its language model")
        config = self._decoder.config
        types = set(getattr(config, "layer_types", None) or ())
        window = getattr(config, "sliding_window", None)
        sliding = "sliding_attention" in types or (not types and window is not None)
        self.window: int | None = window if sliding else None
        self._hybrid = sliding and len(types) > 1
        self._softcap = getattr(config, "final_logit_softcapping", None)
        self.width: int = config.hidden_size
        self.n_layers: int = config.num_hidden_layers
        self.vocab: int = self._head.weight.shape[0]
        self._kv_heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self._head_width: int = getattr(config, "head_dim", None) or self.width // config.num_attention_heads
        rope = getattr(config, "rope_parameters", None) or {}
        self.axes = 3 if "mrope_section" in rope else 1
        read = [*self._decoder.layers.parameters(), self._head.weight]
        self.n_weights = sum(weight.numel() for weight in read)
        self.n_cached = 2 * self.n_layers * self._kv_heads * self._head_width
        # More than one where a model larger than a card was spread over several.
        self._devices = [next(layer.parameters()).device for layer in self._decoder.layers]

    @property
    def device(self) -> torch.device:
        """Where ids, masks and logits are; layers may lie elsewhere."""
        return self._embeddings.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the output head; the precision that drafts and masks are made in."""
        return self._head.weight.dtype

    def embed(self, ids: Tensor) -> Tensor:
        """ids [...] -> embeddings [..., D], by the module: some families scale what the table holds."""
        return self._embeddings(ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., D] after the final norm -> logits [..., V]."""
        logits = self._head(hidden).to(self.device)
        if self._softcap is not None:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits

    def new_cache(self, batch: int, room: int) -> KVCache:
        """An empty cache that `forward` writes into."""
        shape = (self.n_layers, batch, self._kv_heads, self._head_width, room)
        if len(set(self._devices)) > 1:
            return SplitCache(*shape, dtype=self.dtype, devices=self._devices)
        return HFCache(*shape, dtype=self.dtype, device=self.device)

    def forward(self, call: Call) -> Tensor:
        """Hidden states after the final norm [B, T, D]; the cache is T rows longer afterwards."""
        if not isinstance(call.cache, HFCache):
            raise TypeError(
                f"this decoder writes into its own kind of cache, got {type(call.cache).__name__}"
            )
        with ExitStack() as stack:
            if call.kept is not None:
                self._watch(call.kept, stack)
            hidden = self._decode(call)
        call.cache.advance(call.x.shape[1])
        if call.kept is not None and self.n_layers in call.kept.capture.layers:
            call.kept.layers[self.n_layers] = hidden
        return hidden

    def _decode(self, call: Call) -> Tensor:
        """The library's decoder; the cache is written but not yet longer."""
        arguments: dict[str, Any] = {
            "inputs_embeds": call.x,
            "position_ids": call.positions.expand(*call.positions.shape[:-2], *call.x.shape[:2]),
            "attention_mask": self._masks(call),
            "past_key_values": call.cache.adapter,
            "use_cache": True,
            "specvl": _Asked(call.kept, packed=call.mask is not None),
        }
        if call.deepstack is not None:
            arguments["visual_pos_masks"] = call.visual
            arguments["deepstack_visual_embeds"] = list(call.deepstack)
        return self._decoder(**arguments).last_hidden_state.to(self.device)

    def _masks(self, call: Call) -> Tensor | dict[str, Tensor] | None:
        if call.mask is None:
            return None
        if self.window is not None and call.window_mask is None:
            raise ValueError(
                f"this decoder looks through a window of {self.window}; it needs a window mask too"
            )
        full, window = (
            m if m is None or m.ndim == 4 else m[None, None] for m in (call.mask, call.window_mask)
        )
        if self._hybrid:
            return {"full_attention": full, "sliding_attention": window}
        return full if self.window is None else window

    def _watch(self, kept: Kept, stack: ExitStack) -> None:
        """Put the inputs of chosen layers aside while the forward runs."""

        def watch(i: int) -> None:
            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                kept.layers[i] = args[0] if args else kwargs["hidden_states"]

            handle = self._decoder.layers[i].register_forward_pre_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)

        for i in kept.capture.layers:
            if i < self.n_layers:
                watch(i)


class HFCache(KVCache):
    """A `KVCache` with the face that Hugging Face decoders write to."""

    def __init__(self, *shape: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(*shape, dtype=dtype, device=device)
        self.adapter = Cache(layers=[_CacheLayer(self, i) for i in range(shape[0])])


class SplitCache(HFCache):
    """The same for a decoder spread over several devices: one buffer on each, kept in step."""

    def __init__(self, *shape: int, dtype: torch.dtype, devices: Sequence[torch.device]) -> None:
        parts = {
            device: KVCache(list(devices).count(device), *shape[1:], dtype=dtype, device=device)
            for device in dict.fromkeys(devices)
        }
        self._parts, self._devices = list(parts.values()), list(devices)
        self._places = [(parts[d], self._devices[:i].count(d)) for i, d in enumerate(devices)]
        self.length = 0
        self.adapter = Cache(layers=[_CacheLayer(self, i) for i in range(shape[0])])

    @property
    def room(self) -> int:
        """Rows there is room for."""
        return self._parts[0].room

    @property
    def batch(self) -> int:
        """Rows are kept for this many sequences."""
        return self._parts[0].batch

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Put rows behind `length` where the layer's buffer lies."""
        part, index = self._places[layer]
        return part.write(index, keys, values)

    def advance(self, k: int) -> None:
        """All layers have written k rows."""
        for part in self._parts:
            part.advance(k)
        self.length += k

    def truncate(self, length: int) -> None:
        """Forget rows from `length` on."""
        for part in self._parts:
            part.truncate(length)
        self.length = length

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Of the rows behind `start` keep these, in this order, on every device."""
        for part in self._parts:
            part.keep(start, rows)
        self.length = start + len(rows)

    def copy(self, room: int, rows: int | None = None) -> SplitCache:
        """The same rows, or the first of them, in buffers of another size."""
        twin = copy(self)
        copies = {id(part): part.copy(room, rows) for part in self._parts}
        twin.length = self.copied(room, rows)
        twin._parts = list(copies.values())
        twin._places = [(copies[id(part)], index) for part, index in self._places]
        twin.adapter = Cache(layers=[_CacheLayer(twin, i) for i in range(len(self._places))])
        return twin


class _CacheLayer(CacheLayerMixin):
    """One layer's view of the cache. Keeps all tokens also for sliding layers: the window is the mask's
    business, since the distance between two nodes of a tree is not that of their rows.
    """

    is_sliding = False
    is_compileable = False

    def __init__(self, cache: KVCache, layer: int) -> None:
        super().__init__()
        self._cache, self._layer = cache, layer
        self.is_initialized = True

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the buffer exists."""

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add the new rows; all rows, these included."""
        return self._cache.write(self._layer, keys, values)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Columns of the mask, and the first position they stand for."""
        return self._cache.length + query_length, 0

    def get_seq_length(self) -> int:
        """Rows that are filled."""
        return self._cache.length

    def get_max_length(self) -> int:
        """Rows that fit."""
        return self._cache.room

    get_max_cache_shape = get_max_length


@dataclass
class _Asked:
    """Travels through the decoder's keyword arguments to the attention function."""

    kept: Kept | None
    packed: bool


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    specvl: _Asked | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The library's fused attention; on request also probabilities, and query heads packed as rows.

    Packing lets the heads of a group share keys and values, which the library would copy once a head for
    every masked call. Exact.
    """
    if specvl is not None and specvl.kept is not None and module.layer_idx in specvl.kept.capture.attention:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        rows = specvl.kept.capture.rows
        specvl.kept.attention[module.layer_idx] = attention_of(query, key, attention_mask, rows, scale)
    groups, size = query.shape[1] // key.shape[1], query.shape[2]
    if specvl is None or not specvl.packed or groups == 1 or size > _PACKED_ROWS or attention_mask is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    batch, heads, _, width = query.shape
    packed = query.reshape(batch, key.shape[1], groups * size, width)
    mask = attention_mask.repeat(1, 1, groups, 1)
    mixed = nn.functional.scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
    return mixed.reshape(batch, heads, size, width).transpose(1, 2).contiguous(), None
