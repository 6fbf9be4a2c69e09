"""What a head leaves out or has otherwise than its target, in sentences for whoever uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specvl_demo.core.types import Decoder
from specvl_demo.vlm.shared_drafter import SECTION

if TYPE_CHECKING:
    from specvl_demo.methods.heads.checkpoints import Format

_READ = {
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "hidden_act", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "eagle_config",
    "draft_vocab_size",
    "eagle_aux_hidden_state_layer_ids", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output",
    "transformer_layer_config", SECTION,
}  # fmt: skip
_HARMLESS = {
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "num_hidden_layers",
    "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "use_cache",
    "initializer_range", "max_position_embeddings", "attention_bias", "attention_dropout", "mlp_bias", "bias",
    "pretraining_tp", "auto_map", "_name_or_path", "speculators_config", "speculators_model_type",
    "speculators_version", "target_hidden_size", "qkv_bias", "layer_types", "sliding_window",
    "use_sliding_window", "max_window_layers", "has_no_defaults_at_init",
}  # fmt: skip


def compare(settings: Mapping[str, Any], target: Mapping[str, Any], source: str) -> list[str]:
    """What a head's config leaves out, says otherwise than its target's, or says that nobody here reads."""
    remarks = []
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    theirs = target.get("rope_parameters") or {}
    for name, default in (("rope_theta", 10000.0), ("rms_norm_eps", 1e-6)):
        found, wanted = settings.get(name, rope.get(name)), target.get(name, theirs.get(name))
        if found is None:
            remarks.append(f"The config of {source} does not say {name}; {default:g} is taken.")
        elif wanted is not None and float(found) != float(wanted):
            remarks.append(f"{source} has {name} {found:g}, its target {wanted:g}.")
    unread = sorted(settings.keys() - _READ - _HARMLESS)
    if unread:
        remarks.append(f"Nothing here reads {', '.join(unread)} in the config of {source}.")
    return remarks


def own_embeddings(form: Format, tensors: dict[str, Tensor], decoder: Decoder, source: str) -> list[str]:
    """A head's own copy of the embeddings is dropped where it is the target's, whose table is used.

    One that differs belongs to a head that was trained with it, where the format allows that, or to another
    target.
    """
    table = tensors.get("embed_tokens.weight")
    if table is None or table.shape[-1] != decoder.width:
        return []
    rows = torch.linspace(0, min(table.shape[0], decoder.vocab) - 1, 64).round().long().unique()
    theirs, ours = table[rows].float(), decoder.embed(rows.to(decoder.device)).float().cpu()
    # Some families scale what the table holds, so directions are compared; rows of unused ids may be zero.
    alike = torch.nn.functional.cosine_similarity(theirs, ours, dim=-1).median().item()
    if alike >= 0.99:
        del tensors["embed_tokens.weight"]
        return []
    if form.own_embeddings:
        return [f"{source} drafts with embeddings of its own, which agree with the target's to {alike:.2f}."]
    raise ValueError(
        f"{source} was trained for another model: its embeddings and the target's agree to {alike:.2f}"
    )


def own_output_head(tensors: Mapping[str, Tensor], decoder: Decoder, source: str) -> list[str]:
    """A copy of the output head is not used; one that differs from the target's is told."""
    head = tensors.get("lm_head.weight", tensors.get("head.weight"))
    if head is None or head.shape[-1] != decoder.width:
        return []
    probe = torch.randn(4, decoder.width, generator=torch.Generator().manual_seed(0))
    ours = decoder.logits(probe.to(decoder.device, decoder.dtype)).float().cpu()
    n = min(ours.shape[-1], head.shape[0])
    alike = torch.nn.functional.cosine_similarity(probe @ head[:n].float().t(), ours[:, :n], dim=-1).min()
    if alike >= 0.99:
        return []
    return [f"{source} holds an output head that differs from the target's ({alike:.2f}) and is not used."]
