"""The decoder of any Hugging Face vision-language model, driven with explicit masks and positions.

Given a model's decoder, embeddings and head as they were loaded; changes nothing but which
attention function the decoder calls. Hybrid sliding windows, three-axis positions and DeepStack are
served here. Keeps nothing of a request: positions, masks and the cache are arguments.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin

from specvl_demo.decoders.attention import attend, probabilities
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.decoders.batch_invariance import ordered_attention
from specvl_demo.decoders.forward import AuxStates, ForwardInput
from specvl_demo.decoders.kv_cache import KVCache, Layout
from specvl_demo.decoders.output_head import OutputHead, linear_logits

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.llama.modeling_llama import LlamaAttention

ATTENTION = "specvl_tree"


class HFDecoder(LanguageBackend):
    """A backend over `model.get_decoder()`."""

    def __init__(self, model: PreTrainedModel) -> None:
        decoder = model.get_decoder()
        head = model.get_output_embeddings()
        if head is None:
            raise ValueError(
                f"{type(model).__name__} has no output head; load it with its language model"
            )
        super().__init__(decoder, model.get_input_embeddings(), head)
        # Here, not above: the page's server and the list of methods never build a decoder, and
        # these two take as long as torch itself.
        from transformers import AttentionInterface  # noqa: PLC0415
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask  # noqa: PLC0415

        AttentionInterface.register(ATTENTION, _attention)
        # Without a mask function of the same name the library would leave padded batches without a
        # mask.
        AttentionMaskInterface.register(ATTENTION, sdpa_mask)
        decoder.set_attn_implementation(ATTENTION)
        config = decoder.config
        types = set(getattr(config, "layer_types", None) or ())
        window = getattr(config, "sliding_window", None)
        sliding = "sliding_attention" in types or (not types and window is not None)
        self.window: int | None = window if sliding else None
        self._hybrid = sliding and len(types) > 1
        softcap = getattr(config, "final_logit_softcapping", None)
        # Without a reference back: graphs go with their decoder, not with the garbage collector.
        self.output = OutputHead(
            partial(_logits, head, self._embeddings, softcap), len(head.weight)
        )
        rope = getattr(config, "rope_parameters", None) or {}
        self.axes = 3 if "mrope_section" in rope else 1
        self._long_from = _first_long_position(rope)
        # Layers differ in shape in Gemma 4.
        each = getattr(config, "per_layer_config", None) or [config] * self.n_layers
        self._shapes = [
            (
                getattr(layer_config, "num_key_value_heads", None)
                or layer_config.num_attention_heads,
                getattr(layer_config, "head_dim", None)
                or self.width // layer_config.num_attention_heads,
            )
            for layer_config, _ in zip(each, decoder.layers, strict=True)
        ]
        self.near_blocks = config.model_type == "gemma4_text"
        self.n_cached = sum(2 * heads * width for heads, width in self._shapes)

    def layouts(self) -> list[Layout]:
        """Where every layer keeps its rows: on several devices if the model was spread.

        Asked anew each time: on a ZeroGPU Space the weights move after they were loaded.
        """
        layers = zip(self._decoder.layers, self._shapes)
        return [Layout(next(layer.parameters()).device, *shape) for layer, shape in layers]

    def new_layer(self) -> tuple[nn.Module, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]:
        """Return a layer like those that attend, without weights, and its rotary positions."""
        decoder: Any = self._decoder
        i = next(i for i, layer in enumerate(decoder.layers) if hasattr(layer, "self_attn"))
        with torch.device("meta"):
            layer = type(decoder.layers[i])(decoder.config, i)
        layer.self_attn.layer_idx = 0
        return layer.eval().requires_grad_(False), decoder.rotary_emb

    def decode(self, call: ForwardInput) -> Tensor:
        aux = call.aux
        cache = call.cache
        arguments: dict[str, Any] = {
            "inputs_embeds": call.x,
            "position_ids": call.positions.expand(*call.positions.shape[:-2], *call.x.shape[:2]),
            "attention_mask": self._masks(call),
            "past_key_values": as_hf_cache(cache),
            "use_cache": True,
            "specvl": call,
        }
        if call.deepstack is not None:
            arguments["visual_pos_masks"] = call.visual
            arguments["deepstack_visual_embeds"] = list(call.deepstack)
        with ExitStack() as stack:
            self._keep_layer_inputs(aux, stack)
            if self._long_from is not None and cache.length:
                hook = partial(_rotate_each_row, self._long_from, arguments["position_ids"])
                stack.callback(self._decoder.rotary_emb.register_forward_hook(hook).remove)
            cache.whole = call.columns is not None
            stack.callback(setattr, cache, "whole", False)
            hidden = self._decoder(**arguments).last_hidden_state
        # Of a split model all meet on one device.
        for states in (aux.layers, aux.attention):
            states.update({i: rows.to(self.device) for i, rows in states.items()})
        return hidden.to(self.device)

    def _masks(self, call: ForwardInput) -> Tensor | dict[str, Tensor] | None:
        if call.mask is None:
            return None
        full, window = (
            m if m is None or m.ndim == 4 else m[None, None] for m in (call.mask, call.second_mask)
        )
        if self.window is None:
            return full
        assert full is not None and window is not None  # as `ForwardInput` says
        return {"full_attention": full, "sliding_attention": window} if self._hybrid else window

    def _keep_layer_inputs(self, aux: AuxStates, stack: ExitStack) -> None:
        """Put the inputs of chosen layers aside while the forward runs."""

        def keep(i: int, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            aux.layers[i] = args[0] if args else kwargs["hidden_states"]

        for i in aux.request.layers:
            if i < self.n_layers:
                hook = partial(keep, i)
                handle = self._decoder.layers[i].register_forward_pre_hook(hook, with_kwargs=True)
                stack.callback(handle.remove)


def _first_long_position(rope: Mapping[str, Any]) -> int | None:
    """Return the position from which rows are rotated otherwise; None if all are rotated alike.

    Dynamic scaling begins only where a model's context ends here.
    """
    is_long = rope.get("rope_type") == "longrope"
    # Some families have a table for every kind of layer.
    kinds = {table.get("rope_type") for table in rope.values() if isinstance(table, Mapping)}
    if "longrope" in kinds or (is_long and "mrope_section" in rope):
        raise ValueError("longrope is supported only where all layers have it, on one axis")
    return int(rope["original_max_position_embeddings"]) if is_long else None


def _rotate_each_row(
    start: int, positions: Tensor, rotary: nn.Module, args: tuple[Any, ...], out: Any
) -> tuple[Tensor, ...]:
    """Return longrope's cosines and sines as steps of one row have them: a row is rotated by its
    own position, where the library rotates all rows of a step by their highest.

    A prompt is one step, in the library's `generate` too. start: The first long position.
    """
    short = rotary.forward(args[0], positions.clamp_max(start - 1))
    late = (positions >= start)[..., None]
    return tuple(torch.where(late, *both) for both in zip(out, short, strict=True))


def _logits(head: Any, embeddings: Any, softcap: float | None, hidden: Tensor) -> Tensor:
    """Return the head's logits where ids are, capped as some families do."""
    logits = linear_logits(head, hidden).to(embeddings.weight.device)
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap


def as_hf_cache(cache: KVCache) -> Cache:
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
        self._cache = weakref.ref(cache)
        self._layer = layer
        self.is_initialized = True

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the buffer exists."""

    def update(
        self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return self._kv_cache.write(self._layer, keys, values)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._kv_cache.length + query_length, 0

    def get_seq_length(self) -> int:
        return self._kv_cache.length

    def get_max_length(self) -> int:
        return self._kv_cache.room

    get_max_cache_shape = get_max_length

    @property
    def _kv_cache(self) -> KVCache:
        cache = self._cache()
        assert cache is not None  # the forward that writes holds it
        return cache


def _attention(
    module: LlamaAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    specvl: ForwardInput | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as ours [B, T, heads * width], and on request its probabilities.

    specvl: The call that goes through the decoder's keywords; None in a layer run by itself.
    """
    for name in ("softcap", "position_bias"):
        if kwargs.get(name) is not None:
            raise ValueError(f"{type(module).__name__} attends with {name}, which is not supported")
    batch, _, size, width = query.shape
    scale = width**-0.5 if scaling is None else scaling
    if specvl is not None:
        aux = specvl.aux
        columns = specvl.columns
        if module.layer_idx in aux.request.attention:
            aux.attention[module.layer_idx] = probabilities(
                query, key, attention_mask, aux.request.rows, scale
            )
        if columns is not None and attention_mask is not None:
            columns = columns.to(query.device)
            mixed = ordered_attention(query, key, value, attention_mask[0, 0], columns, scale)
            return mixed.view(batch, size, -1), None
    causal = attention_mask is None and size > 1
    return attend(query, key, value, attention_mask, causal, scale).view(batch, size, -1), None
