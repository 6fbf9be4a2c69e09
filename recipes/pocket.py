"""The pocket family's shape: tokenizer, processor, configurations, conversation format.

Everything is a standard Hugging Face class, so that `transformers` loads the saved folders without
extra code. Knows no training.
"""

from __future__ import annotations

import copy
import random
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import (
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2Config,
    SiglipVisionConfig,
)
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

from recipes.world import samples, texts
from recipes.world.scenes import DIGITS, NUMBERS, PLACES

SIDE, PATCH = 96, 16
N_PATCHES = (SIDE // PATCH) ** 2
SPECIAL = ("<pad>", "<bos>", "<eos>", "<image>", "<user>", "<assistant>")
PAD, BOS, EOS, IMAGE, USER, ASSISTANT = range(len(SPECIAL))
ONE_TOKEN = tuple(" " + p for p in PLACES if " " in p) + tuple(f" digit {d}" for d in DIGITS)

# `<image>` is in the turn that shows the picture; a clip is its frames in order. Several pictures
# are numbered, since nothing else distinguishes the visual tokens of one from those of another.
CHAT_TEMPLATE = (
    "{% set numbers = "
    + repr([" " + n for n in NUMBERS[1:]])
    + " %}<bos>{% for m in messages %}{% if m.role == 'user' %}<user>{% if m.content is string %}{{"
    " ' ' + m.content }}{% else %}{% for c in m.content if c.type == 'image' %}{% if loop.length"
    " > 1 %}{{ numbers[loop.index0] }}{% endif %}<image>{% endfor %}{% for c in m.content if"
    " c.type == 'text' %}{{ ' ' + c.text }}{% endfor %}{% endif %}{% else %}<assistant>{{"
    " m.content if m.content is string else m.content[0].text }}<eos>{% endif %}{% endfor %}{% if"
    " add_generation_prompt %}<assistant>{% endif %}"
)


def train_tokenizer(n_samples: int = 6000) -> PreTrainedTokenizerFast:
    """Train byte-level BPE on drawn conversations; every visual concept (place, digit) is one token
    with its leading space.
    """
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()

    def corpus():
        for i in range(n_samples):
            rng = random.Random(10**9 + i)
            if rng.random() < 0.3:
                sample = samples.several_pictures(rng, 4)
            else:
                sample = samples.one_picture(rng, rng.randint(1, 6), 150, 0.1, 0.15)
            for turn in sample.turns:
                yield " " + texts.text_of(turn.question)
                yield texts.text_of(turn.answer)

    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(corpus(), trainer)
    raw.add_tokens([AddedToken(w, normalized=False) for w in ONE_TOKEN])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        additional_special_tokens=["<image>", "<user>", "<assistant>"],
        clean_up_tokenization_spaces=False,
    )
    for group, words in texts.GROUPS.items():
        for word in words:
            ids = tokenizer.encode(" " + word, add_special_tokens=False)
            assert len(ids) == 1, f"the {group} word {word!r} must be one token; got {ids}"
    return tokenizer


def picture_ids(tokenizer: PreTrainedTokenizerFast, n: int) -> list[int]:
    """Return the ids of `n` pictures in a user's turn, as the chat template and the processor write
    them.
    """
    numbers = [tokenizer.encode(" " + word, add_special_tokens=False) for word in NUMBERS[1:]]
    out: list[int] = []
    for i in range(n):
        out += numbers[i] if n > 1 and i < len(numbers) else []
        out += [IMAGE] * N_PATCHES
    return out


def make_processor(tokenizer: PreTrainedTokenizerFast) -> LlavaProcessor:
    """Return a processor that pads pictures to a square with gray, never crops, and resizes; it
    needs no torchvision.
    """
    images = LlavaImageProcessorPil(
        do_pad=True,
        do_resize=True,
        size={"height": SIDE, "width": SIDE},
        resample=2,
        do_center_crop=False,
        do_rescale=True,
        do_normalize=True,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    return LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="full",
        chat_template=CHAT_TEMPLATE,
        image_token="<image>",
        num_additional_image_tokens=0,
    )


def make_model(
    vocab_size: int,
    layers: int,
    hidden: int = 192,
    ffn: int = 512,
    tower: tuple[int, int] = (128, 4),
) -> LlavaForConditionalGeneration:
    """Return a LLaVA with a Qwen2 language model, randomly initialised; outputs of every block
    start at zero.
    """
    text = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        intermediate_size=ffn,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    vision = SiglipVisionConfig(
        hidden_size=tower[0],
        num_hidden_layers=tower[1],
        num_attention_heads=tower[0] // 32,
        intermediate_size=3 * tower[0],
        image_size=SIDE,
        patch_size=PATCH,
        vision_use_head=False,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=IMAGE,
        projector_hidden_act="gelu",
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        image_seq_length=N_PATCHES,
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    for layer in model.get_decoder().layers:
        start_layer(layer)
    for p in model.model.multi_modal_projector.parameters():
        if p.ndim == 2:
            p.data.normal_(std=p.shape[1] ** -0.5)
    model.generation_config.update(eos_token_id=EOS, pad_token_id=PAD, bos_token_id=BOS)
    return model


def start_layer(layer: Qwen2DecoderLayer) -> None:
    """Initialise a block that at first adds nothing: the residual stream starts clean, and depth
    does not reduce stability.
    """
    a, mlp = layer.self_attn, layer.mlp
    for p in (a.v_proj.weight, mlp.gate_proj.weight, mlp.up_proj.weight):
        p.data.normal_(std=0.05)
    for p in (a.q_proj.weight, a.k_proj.weight):
        p.data.normal_(std=0.04)
    for p in (a.o_proj.weight, mlp.down_proj.weight, a.q_proj.bias, a.k_proj.bias, a.v_proj.bias):
        p.data.zero_()


def see(model: LlavaForConditionalGeneration, pixels: Tensor) -> Tensor:
    """Return projected visual tokens [P, N, D] of pictures [P, 3, 96, 96]."""
    out = model.model.get_image_features(pixel_values=pixels).pooler_output
    return torch.stack(list(out))


@torch.no_grad()
def rescale(model: LlavaForConditionalGeneration, pixels: Tensor) -> None:
    """Rescale word rows and visual tokens to lengths from which a language model trains well;
    alignment fixes only directions.
    """
    table = model.get_input_embeddings().weight
    table.mul_(0.02 * table.shape[1] ** 0.5 / table.norm(dim=1, keepdim=True).clamp_min(1e-3))
    factor = 0.04 / see(model, pixels).pow(2).mean().sqrt()
    last = model.model.multi_modal_projector.linear_2
    last.weight.mul_(factor)
    last.bias.mul_(factor)


def split_layers(model: LlavaForConditionalGeneration) -> dict[nn.Parameter, nn.Parameter]:
    """Split every block of the language model into two, each adding half of what the block added
    (two half steps of the same residual stream). Return each new parameter's origin.
    """
    decoder = model.get_decoder()
    origin: dict[nn.Parameter, nn.Parameter] = {}
    layers: list[Qwen2DecoderLayer] = []
    for layer in decoder.layers:
        layer.self_attn.o_proj.weight.data.mul_(0.5)
        layer.mlp.down_proj.weight.data.mul_(0.5)
        twin = copy.deepcopy(layer)
        origin |= dict(zip(twin.parameters(), layer.parameters(), strict=True))
        layers += [layer, twin]
    for i, layer in enumerate(layers):
        layer.self_attn.layer_idx = i
    decoder.layers = nn.ModuleList(layers)
    text = model.config.text_config
    text.num_hidden_layers, text.layer_types = len(layers), list(text.layer_types) * 2
    return origin


def save(model: LlavaForConditionalGeneration, processor: LlavaProcessor, folder: Path) -> None:
    """Write a folder that `transformers` loads, with weights in float16 (the model itself is
    unchanged).
    """
    folder.mkdir(parents=True, exist_ok=True)
    half = {k: v.half() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    model.save_pretrained(folder, state_dict=half)
    processor.save_pretrained(folder)
