"""The decoder of any Hugging Face vision-language model, driven with explicit masks and positions.

Given a model's decoder, embeddings and head as they were loaded; changes nothing but which
attention function the decoder calls. Hybrid sliding windows, three-axis positions and DeepStack are
served here. Keeps nothing of a request: positions, masks and the cache are arguments.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from specvl_demo.decoders.attention import MOST_PACKED, aligned, own_kernels, packed, probabilities
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.decoders.batch_invariance import ordered_attention
from specvl_demo.decoders.forward import Captured, ForwardInput
from specvl_demo.decoders.kv_cache import KVCache, Layout
from specvl_demo.decoders.output_head import OutputHead

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.llama.modeling_llama import LlamaAttention

ATTENTION = "specvl_tree"


class HFDecoder(LanguageBackend):
    """A backend over `model.get_decoder()`."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        # Here, not above: the page's server and the list of methods never build a decoder, and
        # these two take as long as torch itself.
        from transformers import AttentionInterface  # noqa: PLC0415
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask  # noqa: PLC0415

        AttentionInterface.register(ATTENTION, _attention)
        # Without a mask function of the same name the library would leave padded batches without a
        # mask.
        AttentionMaskInterface.register(ATTENTION, sdpa_mask)
        self._decoder = model.get_decoder()
        self._decoder.set_attn_implementation(ATTENTION)
        self._embeddings = model.get_input_embeddings()
        self._head = model.get_output_embeddings()
        if self._head is None:
            raise ValueError(
                f"{type(model).__name__} has no output head; load it with its language model"
            )
        config = self._decoder.config
        types = set(getattr(config, "layer_types", None) or ())
        window = getattr(config, "sliding_window", None)
        sliding = "sliding_attention" in types or (not types and window is not None)
        self.window: int | None = window if sliding else None
        self._hybrid = sliding and len(types) > 1
        self._softcap = getattr(config, "final_logit_softcapping", None)
        self.width: int = config.hidden_size
        self.input_width = self.width
        self.n_layers: int = config.num_hidden_layers
        # Without a reference back: graphs go with their decoder, not with the garbage collector.
        self.output = OutputHead(
            partial(_logits, self._head, self._embeddings, self._softcap), len(self._head.weight)
        )
        rope = getattr(config, "rope_parameters", None) or {}
        self.axes = 3 if "mrope_section" in rope else 1
        read = [*self._decoder.layers.parameters(), self._head.weight]
        self.n_weights = sum(weight.numel() for weight in read)
        self.n_bytes = sum(weight.nbytes for weight in read)
        # Layers differ in shape in Gemma 4.
        each = getattr(config, "per_layer_config", None) or [config] * self.n_layers
        self._shapes = [
            (
                getattr(layer_config, "num_key_value_heads", None)
                or layer_config.num_attention_heads,
                getattr(layer_config, "head_dim", None)
                or self.width // layer_config.num_attention_heads,
            )
            for layer_config, _ in zip(each, self._decoder.layers, strict=True)
        ]
        self.near_blocks = config.model_type == "gemma4_text"
        self.n_cached = sum(2 * heads * width for heads, width in self._shapes)

    @property
    def device(self) -> torch.device:
        """Where ids, masks and logits are; layers may lie elsewhere."""
        return self._embeddings.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the output head; the precision that drafts and masks are made in."""
        return self._head.weight.dtype

    @property
    def is_split(self) -> bool:
        return len({layer.device for layer in self.layouts()}) > 1

    def layouts(self) -> list[Layout]:
        """Where every layer keeps its rows: on several devices if the model was spread.

        Asked anew each time: on a ZeroGPU Space the weights move after they were loaded.
        """
        layers = zip(self._decoder.layers, self._shapes, strict=True)
        return [Layout(next(layer.parameters()).device, *shape) for layer, shape in layers]

    def new_layer(self) -> tuple[nn.Module, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]:
        """Return a layer like those that attend, without weights, and its rotary positions."""
        decoder = cast("Any", self._decoder)
        i = next(i for i, layer in enumerate(decoder.layers) if hasattr(layer, "self_attn"))
        with torch.device("meta"):
            layer = type(decoder.layers[i])(decoder.config, i)
        layer.self_attn.layer_idx = 0
        return layer.eval().requires_grad_(False), decoder.rotary_emb

    def embed(self, ids: Tensor) -> Tensor:
        """ids [...] -> embeddings [..., D], by the module: some families scale the table's."""
        return self._embeddings(ids)

    def output_rows(self, rows: Tensor) -> Callable[[Tensor], Tensor]:
        weight = self._head.weight
        part = weight[rows.to(weight.device)]

        def multiply(hidden: Tensor) -> Tensor:
            return nn.functional.linear(hidden.to(part.device), part)

        return partial(_logits, multiply, self._embeddings, self._softcap)

    def eager(self, call: ForwardInput) -> Tensor:
        with ExitStack() as stack:
            self.watch(call.captured, stack)
            call.cache.whole = call.columns is not None
            stack.callback(setattr, call.cache, "whole", False)
            return super().eager(call)

    def decode(self, call: ForwardInput) -> Tensor:
        arguments: dict[str, Any] = {
            "inputs_embeds": call.x,
            "position_ids": call.positions.expand(*call.positions.shape[:-2], *call.x.shape[:2]),
            "attention_mask": self._masks(call),
            "past_key_values": adapter(call.cache),
            "use_cache": True,
            "specvl": _AttentionContext(
                self.device, call.captured, call.mask is not None, call.columns
            ),
        }
        if call.deepstack is not None:
            arguments["visual_pos_masks"] = call.visual
            arguments["deepstack_visual_embeds"] = list(call.deepstack)
        return self._decoder(**arguments).last_hidden_state.to(self.device)

    def _masks(self, call: ForwardInput) -> Tensor | dict[str, Tensor] | None:
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
            assert full is not None and window is not None  # as checked above
            return {"full_attention": full, "sliding_attention": window}
        return full if self.window is None else window

    def watch(self, captured: Captured, stack: ExitStack) -> None:
        """Put the inputs of chosen layers aside while the forward runs."""

        def watch(i: int) -> None:
            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                states = args[0] if args else kwargs["hidden_states"]
                # Of a split model all meet on one device.
                captured.layers[i] = states.to(self.device)

            handle = self._decoder.layers[i].register_forward_pre_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)

        for i in captured.capture.layers:
            if i < self.n_layers:
                watch(i)


def _logits(
    head: Callable[[Tensor], Tensor], embeddings: nn.Module, softcap: float | None, hidden: Tensor
) -> Tensor:
    """Return the head's logits where ids are, capped as some families do."""
    logits = head(hidden).to(cast("Tensor", embeddings.weight).device)
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap


def adapter(cache: KVCache) -> Cache:
    """Return the face of a cache that the library's decoders write to, always the same one."""
    if cache.adapter is None:
        cache.adapter = Cache(layers=[_CacheLayer(cache, i) for i in range(len(cache.layouts))])
    return cache.adapter


class _CacheLayer(CacheLayerMixin):
    """One layer's view of the cache. Keeps all tokens also for sliding layers: the window is the
    mask's business, since the distance between two nodes of a tree is not that of their rows.
    """

    is_sliding = False
    is_compileable = False

    def __init__(self, cache: KVCache, layer: int) -> None:
        super().__init__()
        # Weak: the cache owns its layers.
        self._cache, self._layer = weakref.ref(cache), layer
        self.is_initialized = True

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the buffer exists."""

    def update(
        self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return self._rows.write(self._layer, keys, values)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._rows.length + query_length, 0

    def get_seq_length(self) -> int:
        return self._rows.length

    def get_max_length(self) -> int:
        return self._rows.room

    get_max_cache_shape = get_max_length

    @property
    def _rows(self) -> KVCache:
        cache = self._cache()
        assert cache is not None  # the forward that writes holds it
        return cache


@dataclass
class _AttentionContext:
    """Goes through the decoder's keywords to its attention. device: for what is captured."""

    device: torch.device
    captured: Captured
    packed: bool
    columns: Tensor | None


def _attention(
    module: LlamaAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    specvl: _AttentionContext | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The library's fused attention; on request also probabilities, and query heads packed as rows.

    Packing lets the heads of a group share keys and values, which the library would copy once a
    head for every masked call. Exact.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if specvl is not None and module.layer_idx in specvl.captured.capture.attention:
        shares = probabilities(query, key, attention_mask, specvl.captured.capture.rows, scale)
        specvl.captured.attention[module.layer_idx] = shares.to(specvl.device)
    if specvl is not None and specvl.columns is not None and attention_mask is not None:
        columns = specvl.columns.to(query.device)
        mixed = ordered_attention(query, key, value, attention_mask[0, 0], columns, scale)
        return mixed.view(1, query.shape[2], query.shape[1], -1), None
    groups, size = query.shape[1] // key.shape[1], query.shape[2]
    if (
        specvl is None
        or not specvl.packed
        or groups == 1
        or size > MOST_PACKED
        or attention_mask is None
    ):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: PLC0415

        if attention_mask is not None and attention_mask.device.type != "cpu":
            attention_mask = aligned(attention_mask)
        with own_kernels(query.device):
            return sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout, scaling, **kwargs
            )
    mixed = packed(query, key, value, attention_mask, scaling)
    return mixed.transpose(1, 2).contiguous(), None
