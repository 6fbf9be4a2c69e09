"""The photo target during training: tower, frozen language model in bfloat16, LoRA in float32.

Base weights are only read, so q, k, v and gate, up are stored as one matrix each, with one low-rank
update each. A training row is a tree: one prefix (the pictures), below it questions, below those
answers. Every branch sees only its ancestors, so five captions, some questions and a story cost one
encoding of the photograph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from recipes.photo_data import Place
from specvl_demo.vlm.photo_assembly import FUSED, LORA_SCALE

FULL = frozenset({"long", "story", "plain", "own", "wrong"})
"""Kinds of answers that may use all tokens; the others consist of short answers' tokens."""


@dataclass
class Node:
    """Tokens of a branch. taught: counted by the loss, `weight` times. kinds: if they differ."""

    ids: list[int]
    taught: bool = False
    kind: str = ""
    kinds: list[str] | None = None
    weight: float = 1.0
    children: list[Node] = field(default_factory=list)


@dataclass
class Row:
    """One training row: pictures, and a tree whose root has their image tokens.

    sampled: Whether answers to the first question are sampled. reward: their mean score.
    """

    pictures: list[Place]
    root: Node
    sampled: bool = False
    reward: float = math.nan


@dataclass
class Packed:
    """Rows laid out one after another: N tokens, M of them taught."""

    ids: Tensor  # [N]
    positions: Tensor  # [N]
    sources: Tensor  # [M], the token whose output predicts
    targets: Tensor  # [M]
    weights: Tensor  # [M]
    spans: list[tuple[int, int, Tensor]]  # a row's first token, its end, the mask [n, n] to add
    kinds: list[str]  # of the taught tokens


def pack(rows: Sequence[Row], dtype: torch.dtype, device: torch.device | None = None) -> Packed:
    """Lay out trees of tokens for `Decoder.forward`. dtype: of the masks."""
    ids: list[int] = []
    positions: list[int] = []
    taught: list[tuple[int, int, float, str]] = []  # source, target, weight, kind
    spans_of_rows: list[tuple[int, int, Tensor]] = []
    for row in rows:
        begin = len(ids)
        # Start, end, index of the parent's span; within the row.
        spans: list[tuple[int, int, int]] = []
        # A node, its depth, its parent's span, the token before it.
        waiting = [(row.root, 0, -1, -1)]
        while waiting:
            node, depth, parent, last = waiting.pop()
            # The last token of a leaf is predicted but never read.
            read = node.ids[:-1] if node.taught and not node.children else node.ids
            if node.taught:
                sources = [last, *range(len(ids), len(ids) + len(node.ids) - 1)]
                of_kinds = node.kinds or [node.kind] * len(node.ids)
                weighed = [node.weight] * len(node.ids)
                taught += zip(sources, node.ids, weighed, of_kinds, strict=True)
            spans.append((len(ids) - begin, len(ids) - begin + len(read), parent))
            ids += read
            positions += range(depth, depth + len(read))
            below = (depth + len(read), len(spans) - 1, len(ids) - 1)
            waiting += [(child, *below) for child in reversed(node.children)]
        n = len(ids) - begin
        sees = torch.zeros(n, n, dtype=torch.bool)
        for start, end, parent in spans:
            within = sees[start:end, start:end]
            within.copy_(torch.ones_like(within).tril())
            while parent >= 0:
                a, b, parent = spans[parent]
                sees[start:end, a:b] = True
        mask = torch.zeros(n, n, dtype=dtype).masked_fill_(~sees, -torch.inf)
        spans_of_rows.append((begin, begin + n, mask.to(device)))
    read_at, targets, weights, kinds = zip(*taught, strict=True)

    def tensor(some: Sequence[float]) -> Tensor:
        return torch.tensor(some, device=device)

    return Packed(
        tensor(ids),
        tensor(positions),
        tensor(read_at),
        tensor(targets),
        tensor(weights),
        spans_of_rows,
        list(kinds),
    )


class Decoder(nn.Module):
    """A Llama whose weights are frozen, with a low-rank update on every matrix."""

    def __init__(self, base: LlamaForCausalLM, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        c = base.config
        self.heads, self.kv_heads = c.num_attention_heads, c.num_key_value_heads
        self.head_dim, self.eps = c.head_dim, c.rms_norm_eps
        self.rotary = base.model.rotary_emb
        self.dtype = dtype
        self.embedding = base.get_input_embeddings().weight.detach().to(dtype)
        self.norm = base.model.norm.weight.detach().to(dtype)
        self.frozen: list[dict[str, Tensor]] = []
        self.lora = nn.ModuleList()
        for layer in base.model.layers:
            weights = {
                name: torch.cat(
                    [getattr(getattr(layer, part), p).weight.detach() for p in names]
                ).to(dtype)
                for name, (part, names) in FUSED.items()
            }
            lora = nn.ParameterDict()
            for name, w in weights.items():
                lora[name + "_a"] = torch.randn(rank, w.shape[1]) / math.sqrt(w.shape[1])
                lora[name + "_b"] = torch.zeros(w.shape[0], rank)
            self.lora.append(lora)
            weights["norm_1"] = layer.input_layernorm.weight.detach().to(dtype)
            weights["norm_2"] = layer.post_attention_layernorm.weight.detach().to(dtype)
            self.frozen.append(weights)
        self.adapted = True

    def _linear(self, x: Tensor, i: int, name: str) -> Tensor:
        y = F.linear(x, self.frozen[i][name])
        if not self.adapted:
            return y
        lora = cast(nn.ParameterDict, self.lora[i])
        a, b = lora[name + "_a"], lora[name + "_b"]
        return torch.addmm(y, F.linear(x, a.to(x.dtype)), (b * LORA_SCALE).to(x.dtype).t())

    def forward(self, x: Tensor, packed: Packed) -> Tensor:
        """Return last hidden states [N, D] for input embeddings [N, D]."""
        cos, sin = self.rotary(x[None].float(), packed.positions[None])
        cos, sin = cos[0, :, None].to(x.dtype), sin[0, :, None].to(x.dtype)
        heads, kv, dim = self.heads, self.kv_heads, self.head_dim
        for i, w in enumerate(self.frozen):
            h = F.rms_norm(x, x.shape[-1:], w["norm_1"], self.eps)
            qkv = self._linear(h, i, "qkv").view(len(x), heads + 2 * kv, dim)
            turned, plain = qkv[:, : heads + kv], qkv[:, heads + kv :]
            left, right = turned.chunk(2, -1)
            turned = turned * cos + torch.cat([-right, left], -1) * sin
            q, k, v = turned[:, :heads], turned[:, heads:], plain
            # A row at a time, written out: on a CPU this is faster than the fused kernel, whose
            # backward pass is slow, and no padding is computed. The query heads of one key are rows
            # of one product.
            out = []
            for start, end, mask in packed.spans:
                n = end - start
                group = q[start:end].transpose(0, 1).reshape(kv, heads // kv * n, dim)
                scores = (group @ k[start:end].permute(1, 2, 0)).view(kv, -1, n, n) * dim**-0.5
                weights = (scores + mask).softmax(-1).view(kv, -1, n)
                mixed = weights @ v[start:end].transpose(0, 1)
                out.append(mixed.view(heads, n, dim).transpose(0, 1).reshape(n, heads * dim))
            x = x + self._linear(torch.cat(out), i, "o")
            h = F.rms_norm(x, x.shape[-1:], w["norm_2"], self.eps)
            gate, up = self._linear(h, i, "gate_up").chunk(2, -1)
            x = x + self._linear(F.silu(gate) * up, i, "down")
        return F.rms_norm(x, x.shape[-1:], self.norm, self.eps)

    def logits(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Return logits [M, V] in float32, of the whole vocabulary or of some tokens."""
        table = self.embedding if tokens is None else self.embedding[tokens]
        return F.linear(hidden, table).float()
