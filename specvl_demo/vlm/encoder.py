"""A loaded Hugging Face vision-language model: its vision encoder, its decoder, its special tokens.

Given a model as the library loads it, turns prompts into decoder inputs by running everything but
the decoder. The model may be shared by many requests and is never changed.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.feature_extraction_utils import BatchFeature

from specvl_demo.core.types import Encoded, Prompt, Vocabulary
from specvl_demo.decoders import calibration
from specvl_demo.decoders.attention import limit_kernels
from specvl_demo.decoders.selection import select_decoder
from specvl_demo.decoders.timing import synchronize
from specvl_demo.vlm import shared_drafter, towers
from specvl_demo.vlm.layouts import token_runs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PLACEHOLDERS = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")
_HARMLESS = {
    "input_ids",
    "past_key_values",
    "use_cache",
    "return_dict",
    "logits_to_keep",
    "cache_position",
}
_SERVED = {
    "inputs_embeds",
    "position_ids",
    "attention_mask",
    "visual_pos_masks",
    "deepstack_visual_embeds",
}


class VLM:
    """A `core.types.VisionEncoder` with everything a target or a small drafter needs of a model.

    Args:
        name: As shown to the user.
        special: Ids that no relaxed verifier may relax, besides end and placeholders.
        backend: "auto" uses a lean forward if one can run, else Hugging Face's, and on one CUDA
            device steps of fixed shapes, replayed as graphs. "graphs" has these steps on any
            device, "8bit" is lean with weights rounded to 8 bits, and "hf" is Hugging Face's
            without graphs.
        again: For a drafter that splits pictures into other tokens than its target: makes its own
            prompt from a target's.
        shares: The target, which encodes, of a drafter with its tower and embeddings.
        drafts: Whether it only drafts, so that its weights may be rounded.
        ends: Ids that end an answer, in addition to those of its generation_config.
    """

    sees = True
    """Whether it reads visual positions."""

    def __init__(
        self,
        model: PreTrainedModel,
        name: str,
        special: frozenset[int] = frozenset(),
        backend: str = "auto",
        again: Callable[[Prompt], Prompt] | None = None,
        shares: VLM | None = None,
        drafts: bool = False,
        ends: frozenset[int] = frozenset(),
    ) -> None:
        self.model = model
        self.name = name
        self._again = again
        self.placeholders = placeholder_ids(model.config)
        towers.make_lean(model)
        self.decoder = select_decoder(model, backend, drafts)
        limit_kernels(self.decoder.device)
        if (ids := getattr(model, shared_drafter.DRAFT_IDS, None)) is not None:
            vocab = model.get_input_embeddings().weight.shape[0]
            ids = ids.to(self.decoder.device)
            self.decoder.output = self.decoder.output.mapped_to_vocab(ids, vocab)
        self._shares = shares
        self.encodes_like = self.decoder if shares is None else shares.decoder
        named = model.generation_config.eos_token_id
        eos = ends.union(named if isinstance(named, list | tuple) else {named} - {None})
        self.context = context_length(model.config)
        self.vocabulary = Vocabulary(
            size=self.decoder.vocab,
            banned=self.placeholders,
            eos=eos,
            special=frozenset(special) | eos | frozenset(self.placeholders),
        )
        inner = getattr(model, "base_model", model)
        self._projector: nn.Module | None = getattr(inner, "multi_modal_projector", None)

    def calibrate(self, steps: int | None = None) -> str | None:
        """Choose eager steps or graphs; return a sentence if graphs were possible but slower.

        steps: As for `calibration.pick_faster`.
        """
        return calibration.calibrate(self.decoder, steps) if self.decoder.fixed else None

    def release_caches(self) -> None:
        self.decoder.release_caches()

    @torch.inference_mode()
    def encode(self, prompt: Prompt) -> Encoded:
        """Run the model up to its decoder: vision tower, projector, merge, positions.

        The only cost is the vision tower's.
        """
        if self._shares is not None:
            return self._shares.encode(prompt)
        started = time.perf_counter()
        index = None
        if self._again is not None:
            original = prompt
            prompt = self._again(prompt)
            index = match_positions(prompt.visual, original.visual).to(self.decoder.device)
        encoded = self._encode(prompt)
        return replace(encoded, index=index, seconds=time.perf_counter() - started)

    def _encode(self, prompt: Prompt) -> Encoded:
        inputs = dict(BatchFeature(dict(prompt.inputs)).to(self.decoder.device, self.decoder.dtype))
        arguments, features = self._run_until_decoder(inputs)
        unknown = {k for k, v in arguments.items() if isinstance(v, Tensor)} - _SERVED - _HARMLESS
        if unknown:
            raise ValueError(
                f"{type(self.model).__name__} passes {', '.join(sorted(unknown))} to its decoder,"
                f" which this engine does not support; supported are {', '.join(sorted(_SERVED))}"
            )
        embeds = arguments["inputs_embeds"][0]
        visual = prompt.visual.to(embeds.device)
        if embeds.shape[0] != len(prompt):
            raise ValueError(
                f"the prompt has {len(prompt)} tokens, but {self.name} expects {embeds.shape[0]};"
                " its placeholders must be expanded by the processor of this model"
            )
        if features is not None and features.shape[0] != int(visual.sum()):
            features = None
        deepstack = arguments.get("deepstack_visual_embeds")
        synchronize(self.decoder.device)
        return Encoded(
            ids=prompt.ids.to(embeds.device),
            visual=visual,
            embeds=embeds,
            positions=self._position_ids(arguments.get("position_ids"), embeds, bool(visual.any())),
            prompt=prompt,
            features=features,
            blocks=_block_ids(arguments.get("attention_mask")),
            deepstack=None if deepstack is None else torch.stack(tuple(deepstack)),
        )

    @torch.inference_mode()
    def project(self, features: Tensor) -> Tensor:
        """Project vision features [r, C] -> decoder embeddings [r, D]."""
        if self._projector is None:
            raise ValueError(f"{self.name} has no projector separate from its vision tower")
        wanted = inspect.signature(self._projector.forward).parameters
        if len(wanted) != 1:
            raise ValueError(
                f"the projector of {self.name} needs {', '.join(wanted)}, not only vision features"
            )
        return self._projector(features[None])[0]

    def _run_until_decoder(self, inputs: dict[str, Any]) -> tuple[dict[str, Any], Tensor | None]:
        """Return the keyword arguments of the decoder's call, and the projector's input."""
        arguments: dict[str, Any] = {}
        features = []

        def at_decoder(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            arguments.update(kwargs)
            raise _DecoderReached

        def at_projector(_: nn.Module, args: tuple[Any, ...]) -> None:
            if args and isinstance(args[0], Tensor):
                features.append(args[0].reshape(-1, args[0].shape[-1]))

        hooks = [self.model.get_decoder().register_forward_pre_hook(at_decoder, with_kwargs=True)]
        if self._projector is not None:
            hooks.append(self._projector.register_forward_pre_hook(at_projector))
        try:
            self.model(**inputs, use_cache=True)
        except _DecoderReached:
            pass
        finally:
            for hook in hooks:
                hook.remove()
        return arguments, torch.cat(features) if features else None

    def _position_ids(self, positions: Tensor | None, embeds: Tensor, sees: bool) -> Tensor:
        rope = getattr(self.model.get_decoder().config, "rope_parameters", None) or {}
        if positions is None:
            at = torch.arange(embeds.shape[0], device=embeds.device)
            if "mrope_section" in rope and sees:
                raise ValueError(
                    f"{self.name} has three-axis positions but computed none for this prompt; the"
                    " inputs must include its processor's mm_token_type_ids"
                )
            return at.expand(3, -1) if "mrope_section" in rope else at
        return positions[-3:, 0] if positions.ndim == 3 else positions[0]


class LanguageModel(VLM):
    """A text-only language model as drafter of a target that sees.

    Views may put words in place of pictures; visual positions themselves are left out
    (`SmallVLM.begin`).
    """

    sees = False

    @torch.inference_mode()
    def encode(self, prompt: Prompt) -> Encoded:
        """Return the prompt's tokens; the embeddings at visual positions are never read.

        The target may have picture markers that this table lacks; any row will do.
        """
        ids = prompt.ids.to(self.decoder.device)
        return Encoded(
            ids=ids,
            visual=prompt.visual.to(ids.device),
            embeds=self.decoder.embed(ids.clamp_max(self.decoder.vocab - 1)),
            positions=torch.arange(len(ids), device=ids.device),
            prompt=prompt,
        )


def match_positions(mine: Tensor, theirs: Tensor) -> Tensor:
    """Map every position of one prompt to the one it corresponds to in another, or -1.

    mine [m] and theirs [n] bool: visual positions. If both have the same runs of text, a visual
    token maps to the one as far along its run, else to none.
    """
    found = torch.full((len(mine),), -1, dtype=torch.long)
    here, others = (token_runs(visual) for visual in (mine, theirs))
    texts, other_texts = (
        [(kind, 0 if kind else stop - start) for kind, start, stop in runs]
        for runs in (here, others)
    )
    if texts != other_texts:
        return found
    for (_, start, stop), (_, first, end) in zip(here, others, strict=True):
        found[start:stop] = first + torch.arange(stop - start) * (end - first) // (stop - start)
    return found


class _DecoderReached(Exception):
    """Raised when the decoder is about to run."""


def placeholder_ids(config: Any) -> tuple[int, ...]:
    """Return the ids that mark visual tokens in a prompt, from the model's configuration."""
    found = {getattr(config, name, None) for name in _PLACEHOLDERS}
    return tuple(sorted(i for i in found if isinstance(i, int)))


def context_length(config: Any) -> int:
    """Return the most tokens that prompt and answer may have together."""
    return getattr(config.get_text_config(), "max_position_embeddings", None) or 2**20


def _block_ids(mask: Tensor | dict[str, Tensor | None] | None) -> Tensor | None:
    """Return each position's block [n] that a mask lets it see ahead, or -1; None without any."""
    if isinstance(mask, dict):
        # Gemma 3 passes masks for both kinds of layers, Gemma 4 only for those with a window.
        both = (_block_ids(mask.get(kind)) for kind in ("full_attention", "sliding_attention"))
        return next((blocks for blocks in both if blocks is not None), None)
    if mask is None or mask.ndim != 4:
        return None
    seen = mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] == 0
    at = torch.arange(seen.shape[0], device=seen.device)
    # The last position each one attends to: itself, or the end of its block.
    last = torch.where(seen, at, -1).amax(-1)
    ends = torch.zeros_like(at, dtype=torch.bool)
    ends[last[last > at]] = True
    member = (last > at) | ends
    return torch.where(member, last, -1) if bool(member.any()) else None
