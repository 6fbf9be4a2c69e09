"""Selects the decoder that runs a loaded model's steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specvl_demo.decoders import lean, packed_decoder, recurrent
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.decoders.graphs import has_graphs
from specvl_demo.decoders.huggingface import HFDecoder
from specvl_demo.decoders.packed_linear import Bits, has_kernels

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def select_decoder(model: PreTrainedModel, backend: str, drafts: bool) -> LanguageBackend:
    """Return the decoder that runs a model fastest here; see `VLM` for the backends.

    drafts: Whether it only drafts, so that its weights may be rounded.
    """
    if backend not in ("auto", "8bit", "hf", "graphs"):
        raise ValueError(f"backend must be auto, 8bit, hf or graphs, got {backend!r}")
    decoder = model.get_decoder()
    head = model.get_output_embeddings()
    if recurrent.is_recurrent(decoder):
        return recurrent.RecurrentDecoder(model)
    if backend == "8bit":
        return packed_decoder.RotatedDecoder(decoder, head)
    packs = backend == "auto" and packed_decoder.packs_for_cpu(decoder)
    if packs and has_kernels():
        return packed_decoder.PackedDecoder(decoder, head, drafts)
    plain: HFDecoder | lean.LeanDecoder
    if backend != "hf" and lean.runs_lean(decoder):
        bits: Bits = 8 if drafts else 32
        plain = lean.LeanDecoder(decoder, head, bits if packs else None)
    else:
        plain = HFDecoder(model)
    graphs = backend == "graphs" or (backend == "auto" and has_graphs(plain.device))
    plain.fixed = graphs and not plain.is_split
    return plain
