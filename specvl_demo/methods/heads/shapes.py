"""The tensors of published heads and their shapes, as data."""

from __future__ import annotations

from collections.abc import Mapping

Shapes = Mapping[str, str]
"""Shapes by name, a word for each dimension: D the target's width; Q and K all heads of queries and
of keys, H one head; F the MLP's width; S all states that are fused; V the head's vocabulary; N any
number; 2D is twice D. A * stands for any shape.
"""

_ROWS = (("q", "Q"), ("k", "K"), ("v", "K"))


def attention(name: str, inputs: str = "D") -> Shapes:
    """Return the projections of an attention."""
    projections = {f"{name}.{letter}_proj.weight": f"{rows} {inputs}" for letter, rows in _ROWS}
    return {**projections, f"{name}.o_proj.weight": "D Q"}


def in_layer(number: int | str, shapes: Shapes) -> Shapes:
    return {f"layers.{number}.{name}": shape for name, shape in shapes.items()}


MLP: Shapes = {
    **{"mlp.gate_proj.weight": "F D", "mlp.up_proj.weight": "F D", "mlp.down_proj.weight": "D F"},
    "post_attention_layernorm.weight": "D",
}
BLOCK: Shapes = {**attention("self_attn"), **MLP}
"""A Llama-type block without a norm before it."""
FIRST = in_layer(0, BLOCK)
COPIES: Shapes = {"embed_tokens.weight": "N D", "lm_head.weight": "V D", "head.weight": "*"}
"""Of the target's own tables."""
BIASES = in_layer(0, {f"self_attn.{name}_proj.bias": rows for name, rows in _ROWS})
