"""What runs forwards on this machine: a model's decoder, or the block of a trained head.

Embeddings, positions, masks and the cache are arguments, so that models are shared and never
changed. Knows nothing of trees, prompts or vision towers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specvl_demo.core.types import Vocabulary
from specvl_demo.decoders.forward import ForwardInput
from specvl_demo.decoders.graph_runner import GraphRunner
from specvl_demo.decoders.graphs import StepShape
from specvl_demo.decoders.kv_cache import KVCache, Layout
from specvl_demo.decoders.output_head import LogProbabilities, OutputHead
from specvl_demo.decoders.packed_linear import PackedLinear

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specvl_demo.decoders.layer_stack import LevelWeights


class Backend(ABC):
    """Layers over a cache. Subclasses compute one forward in `decode`.

    Attributes:
        width: D of its results.
        input_width: Of the rows of `ForwardInput.x`.
        output: The output head that it drafts with.
        n_bytes: Of the weights that every step reads.
        n_steps: Step embeddings of rows below the root; 1 means none.
        window: Width of the sliding window, None if no layer has one. If set, layers read a second
            mask (`ForwardInput.second_mask`).
        near_blocks: Whether a block's positions attend to each other in both directions only in
            layers with a sliding window, and only inside the window.
        has_holes: Whether some layers leave the first rows of a cache empty (`KVCache.holes`).
        axes: 3 if positions have three axes.
        batch_invariant: Whether every row of any step has the bits of a plain step, without padding
            or ordering, on any number of threads.
        fixed: Whether small steps have fixed shapes, which a CUDA device replays as graphs
            (`graphs`); see `calibration`.
    """

    width: int
    input_width: int
    n_layers: int
    n_bytes: int
    output: OutputHead
    n_steps = 1
    window: int | None = None
    near_blocks = False
    has_holes = False
    axes = 1
    batch_invariant = False
    fixed = False

    def __init__(self) -> None:
        self.runner = GraphRunner()

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype: ...

    @property
    def is_split(self) -> bool:
        """Whether layers lie on several devices."""
        return len({layer.device for layer in self.layouts()}) > 1

    @abstractmethod
    def embed(self, ids: Tensor) -> Tensor:
        """ids [...] -> embeddings [..., D]."""

    def draft_rows(self, tokens: Tensor, features: Tensor, step: Tensor | int) -> Tensor:
        """Return what layers are given for tokens [k] to draft after: [1, k, input width].

        Args:
            features: Those before the tokens [k, D], for a head that reads features.
            step: Which step embedding, [k] or one for all, for a head that has several.
        """
        return self.embed(tokens)[None]

    def log_probabilities(self, vocabulary: Vocabulary) -> LogProbabilities:
        """Return the log-probabilities that it drafts by, of hidden states."""
        return LogProbabilities(self.output, vocabulary, self.device)

    def level_weights(self, log_probs: LogProbabilities) -> LevelWeights | None:
        """Return what drafts a level of a tree by one call; None where torch takes over."""
        return None

    @abstractmethod
    def layouts(self) -> list[Layout]:
        """Return how and where every layer stores its rows."""

    @abstractmethod
    def decode(self, call: ForwardInput) -> Tensor:
        """Return hidden states [B, T, D]; the cache is written, but its length is unchanged.

        A captured step runs this once to warm up and once more while it is captured, and never
        again: a replay repeats its kernels, not its Python code. It may therefore depend on shapes
        but not on numbers, may not wait for the device or copy from the host, and must read all
        that differs from step to step from tensors of the call: x, positions and masks, and
        `call.cache.at`, the rows to write. The mask spans the whole cache then.
        """

    def new_cache(self, batch: int, room: int, shapes: Sequence[StepShape] = ()) -> KVCache:
        """Return an empty cache that `forward` writes into. shapes: As for `KVCache.prepare`."""
        if self.fixed:
            return self.runner.acquire(self, batch, room, shapes)
        return self.eager_cache(batch, room)

    def eager_cache(self, batch: int, room: int) -> KVCache:
        """Return an empty cache for steps of any shape."""
        return KVCache(self.layouts(), batch, room, self.dtype)

    def forward(self, call: ForwardInput) -> Tensor:
        """Return hidden states after the final norm [B, T, D]; the cache grows by T rows."""
        hidden = self.runner.forward(self, call) if self.fixed else self.forward_eager(call)
        if self.n_layers in call.aux.request.layers:
            call.aux.layers[self.n_layers] = hidden
        return hidden

    def forward_eager(self, call: ForwardInput) -> Tensor:
        """The same without fixed shapes."""
        hidden = self.decode(call)
        call.cache.advance(call.x.shape[1])
        return hidden

    def release_caches(self) -> None:
        """Give up caches and graphs that are kept for the next question."""
        self.runner.destroy_idle_caches()


class LanguageBackend(Backend):
    """The decoder of a language model, with its embeddings and its output head.

    Attributes:
        n_weights: Numbers that every step reads, of the layers and the head.
        n_cached: Numbers cached per row.
    """

    n_cached: int

    def __init__(self, decoder: PreTrainedModel, embeddings: Any, head: Any) -> None:
        """embeddings, head: The model's own modules, of whatever class."""
        super().__init__()
        self._decoder = decoder
        self._embeddings = embeddings
        self._head = head
        self.width = self.input_width = decoder.config.hidden_size
        self.n_layers = decoder.config.num_hidden_layers
        read = [*decoder.layers.parameters(), self._head.weight]
        self.n_weights = sum(weight.numel() for weight in read)
        self.n_bytes = sum(weight.nbytes for weight in read)

    @property
    def device(self) -> torch.device:
        """Where ids, masks and logits are; layers may lie elsewhere."""
        return self._embeddings.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the output head; the precision that drafts and masks are made in."""
        return self._head.weight.dtype

    def embed(self, ids: Tensor) -> Tensor:
        # By the module: some families scale the table's rows.
        return self._embeddings(ids)

    @property
    def vocab(self) -> int:
        """How many ids it knows."""
        return self.output.vocab

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., D] after the final norm -> logits [..., V]."""
        return self.output(hidden)

    def output_head_rows(self, rows: Tensor) -> PackedLinear:
        """Return the product with only these rows [R] of the output head, for a drafter."""
        weight = self._head.weight.detach()
        return PackedLinear(weight[rows.to(weight.device)].to(self.device), bits=8)
