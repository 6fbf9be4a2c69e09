"""Joins the base language model and the weights trained on photographs to a standard LLaVA folder.

The delta is a folder: `delta.safetensors` (the tower with its projector, and low-rank updates of
the language model, in float16, the tower's large matrices in eight bits), `classes.json` (the names
of the classifier's classes, in its order) and `config.json` (the tower's shapes). The updates are
merged and the tower's word table is filled with the base's own embeddings of the class names, so
transformers can load the result once the tower is registered. It is made once, in the user's cache
(see `base_weights` for the paths); loading it again takes seconds.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from specvl_demo.pairs import base_weights
from specvl_demo.vlm import eight_bits, loading, outlines
from specvl_demo.vlm.efficientnet_lite import (
    CELL,
    EfficientNetLiteConfig,
    EfficientNetLiteModel,
    register,
)

IMAGE = "<reponame>"  # a special token that SmolLM2 never uses; the vocabulary is unchanged
WEIGHTS = "delta.safetensors"
CLASSES = "classes.json"
CONFIG = "config.json"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}"
    + IMAGE
    + "\n{% endif %}{% endfor %}{% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text']"
    " }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt"
    " %}<|im_start|>assistant\n{% endif %}"
)
# A Llama's matrices that share an input get one low-rank update together.
FUSED = {
    "qkv": ("self_attn", ("q_proj", "k_proj", "v_proj")),
    "o": ("self_attn", ("o_proj",)),
    "gate_up": ("mlp", ("gate_proj", "up_proj")),
    "down": ("mlp", ("down_proj",)),
}
LORA_SCALE = 2.0


@torch.no_grad()
def merge_lora(base: PreTrainedModel, lora: dict[str, Tensor]) -> None:
    """Add low-rank updates (`LAYER.NAME_a` [r, in], `_b` [out, r]) to a Llama, in place.

    Raises:
        ValueError: If an update does not belong to the model.
    """
    layers = base.get_decoder().layers
    if lora and max(int(key.split(".")[0]) for key in lora) != len(layers) - 1:
        raise ValueError(f"the updates are for another model: this one has {len(layers)} layers")
    for i, layer in enumerate(layers):
        for name, (part, projections) in FUSED.items():
            modules = [getattr(getattr(layer, part), p) for p in projections]
            a = lora[f"{i}.{name}_a"].float()
            b = lora[f"{i}.{name}_b"].float()
            shape = (sum(m.out_features for m in modules), modules[0].in_features)
            if (len(b), a.shape[1]) != shape:
                raise ValueError(
                    f"the update of layer {i}, {name}, is for a matrix of {len(b)}×{a.shape[1]},"
                    f" not {shape[0]}×{shape[1]}: it belongs to another language model"
                )
            for m, update in zip(modules, (b @ a).split([m.out_features for m in modules])):
                m.weight += LORA_SCALE * update.to(m.weight.dtype)


@torch.no_grad()
def fill_words(
    tower: EfficientNetLiteModel,
    table: Tensor,
    tokenizer: PreTrainedTokenizerBase,
    classes: Sequence[str],
) -> None:
    """Set the tower's word table to the embeddings [V, D] of the class names' first tokens."""
    rows = tower.config.word_rows
    pad = tokenizer("\n", add_special_tokens=False).input_ids[-1:]
    for i, name in enumerate(classes):
        ids = tokenizer(" " + name, add_special_tokens=False).input_ids
        tower.class_words[i] = table[(ids + pad * rows)[:rows]].to(tower.class_words.dtype)


def processor(tokenizer: PreTrainedTokenizerBase, config: EfficientNetLiteConfig) -> LlavaProcessor:
    """Return a processor that scales a picture's shorter side to the tower's size, crops the middle
    and normalises it for the tower.
    """
    size = config.image_size
    images = CLIPImageProcessorPil(
        size={"shortest_edge": size},
        crop_size={"height": size, "width": size},
        resample=3,
        image_mean=[127 / 255] * 3,
        image_std=[128 / 255] * 3,
    )
    return LlavaProcessor(
        images,
        tokenizer,
        patch_size=CELL,
        num_additional_image_tokens=config.word_rows,
        vision_feature_select_strategy="full",
        chat_template=CHAT_TEMPLATE,
        image_token=IMAGE,
    )


def check_delta(delta: Path) -> None:
    """Raise FileNotFoundError if a delta folder lacks a file."""
    for name in (WEIGHTS, CLASSES, CONFIG):
        if not (delta / name).is_file():
            raise FileNotFoundError(f"{delta} has no {name}: it is not a folder of photo weights")


def read_delta(delta: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return a delta folder's tower weights and low-rank updates in float32; see `check_delta`."""
    check_delta(delta)
    weights = eight_bits.unpack_matrices(load_file(delta / WEIGHTS))
    parts: dict[str, dict[str, Tensor]] = {"tower": {}, "lora": {}}
    for key, value in weights.items():
        part, name = key.split(".", 1)
        parts[part][name] = value.float() if value.is_floating_point() else value
    return parts["tower"], parts["lora"]


def assemble(base: Path, delta: Path, out: Path) -> None:
    """Write the whole target to `out`, in float16: a standard LLaVA folder with its processor.

    A CPU's step over float16 numbers reads half as much (`decoders.packed_linear`), and no part has
    more precision: the base is in four bits, the updates in float16.

    Args:
        base: A Llama and its tokenizer in transformers' format.
        delta: See above.

    Raises:
        ValueError: If the two do not belong together.
        FileNotFoundError: If a file is missing.
    """
    tokenizer = AutoTokenizer.from_pretrained(base)
    language = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    join_tower(language, tokenizer, delta).half().save_pretrained(out)
    processor(tokenizer, EfficientNetLiteConfig.from_pretrained(delta)).save_pretrained(out)


@torch.no_grad()
def join_tower(
    language: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, delta: Path
) -> LlavaForConditionalGeneration:
    """Return the target of a base in memory (changed in place) and a delta folder."""
    register()
    tower_weights, lora = read_delta(delta)
    tower = EfficientNetLiteModel(EfficientNetLiteConfig.from_pretrained(delta))
    if tower.config.hidden_size != language.config.hidden_size:
        raise ValueError(
            f"the tower fits language models of width {tower.config.hidden_size}, but this one has"
            f" {language.config.hidden_size}"
        )
    tower.load_state_dict(tower_weights | {"class_words": tower.class_words})
    fill_words(
        tower,
        language.get_input_embeddings().weight,
        tokenizer,
        json.loads((delta / CLASSES).read_text()),
    )
    merge_lora(language, lora)
    config = LlavaConfig(
        vision_config=tower.config,
        text_config=language.config,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=tower.config.grid**2 + tower.config.word_rows,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        # The tower has its own projector and its word rows must not change, so LLaVA's projector is
        # the identity.
        projector_hidden_act="linear",
        multimodal_projector_bias=False,
        tie_word_embeddings=language.config.tie_word_embeddings,
    )
    with torch.device("meta"):
        model = LlavaForConditionalGeneration(config)
    model.model.vision_tower = tower
    model.model.language_model = language.model
    model.lm_head = language.lm_head
    projector = model.model.multi_modal_projector.to_empty(device="cpu")
    for linear in (projector.linear_1, projector.linear_2):
        linear.weight.copy_(torch.eye(tower.config.hidden_size))
    eos = tokenizer.eos_token_id
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=eos, bos_token_id=eos)
    return model.eval()


def convert_gguf(gguf: Path, out: Path) -> Path:
    """Write the language model and tokenizer of a GGUF file as a float32 folder of transformers."""
    # Its progress bar cannot be turned off, and would flood a log.
    silent = nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO())
    with outlines.load_errors(gguf.name), outlines.quiet(), silent:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
        )
        # The weights are unpacked by now; saving would fail while the model is marked as packed.
        model.hf_quantizer = None
        model.is_quantized = False
        model.config.__dict__.pop("quantization_config", None)
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
    return out


def fetch(delta: Path, tell: loading.Tell) -> Path:
    """Return the assembled target of these shipped weights, fetching its base if it is missing;
    ValueError if that cannot be fetched.
    """
    if (place := _target_folder(delta)) is not None:
        return place
    try:
        base_weights.fetch_gguf(tell)
    except ValueError as no_index:
        try:
            base = loading.fetch_repo(base_weights.HUB_ID, tell)
        except ValueError as no_hub:
            raise ValueError(f"{no_index} Nor the hub's copy: {no_hub}") from None
        return _make_target(base, delta, tell)
    return local_target(delta, tell)


def local_target(delta: Path, tell: loading.Tell) -> Path:
    """Return the assembled target, made now if its base is here; ValueError if it is not."""
    if (place := _target_folder(delta)) is not None:
        return place
    if reason := base_weights.problem(delta):
        raise ValueError(reason)
    tell("Unpacking the language model, once")
    with base_weights.fresh_folder() as folder:
        base = convert_gguf(base_weights.checked_gguf(), folder / "base")
        return _make_target(base, delta, tell)


def _target_folder(delta: Path) -> Path | None:
    place = base_weights.assembled_folder(delta)
    return place if os.path.isdir(place) else None  # noqa: PTH112 - where it may not be looked for


def _make_target(base: Path, delta: Path, tell: loading.Tell) -> Path:
    tell("Merging the language model with the weights trained on photographs, once")
    with base_weights.fresh_folder() as folder, outlines.load_errors(str(delta)), outlines.quiet():
        assemble(base, delta, folder / "target")
        return base_weights.publish_folder(folder / "target", base_weights.assembled_folder(delta))
