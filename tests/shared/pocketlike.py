"""A pair on disk like the pocket pair, with random weights: for tests that load as users do."""

from pathlib import Path
from typing import Any

import torch

from specvl_demo.methods.heads.blocks import Geometry
from specvl_demo.pairs import ASSETS

WORDS = (
    "what is in the picture describe a small large red green blue circle square star above below"
    " left"
)


GEOMETRY = Geometry(width=64, heads=2, kv_heads=2, head_width=32, eps=1e-6)
"""Of heads for this target."""
TARGET = ASSETS / "pocket" / "target"


def byte_pairs(text: str, special: list[str], vocab_size: int) -> Any:
    """A byte-level BPE trained on a text, with special tokens before all others."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(text.splitlines() * 20, trainer)
    return bpe


def tokenizer() -> Any:
    """With the pocket family's special tokens."""
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<bos>", "<eos>", "<image>", "<user>", "<assistant>"]
    bpe = byte_pairs(f" {WORDS}", special, 400)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


def make_processor(words: Any) -> Any:
    """The pocket pair's processor with another tokenizer."""
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(TARGET, use_fast=False)
    processor.tokenizer = words
    return processor


def make_model(vocab_size: int, layers: int, tower_layers: int = 2) -> Any:
    """A narrow model of the pocket pair's class, randomly initialised."""
    from transformers import AutoConfig, LlavaForConditionalGeneration

    config = AutoConfig.from_pretrained(TARGET)
    text, vision = config.text_config, config.vision_config
    text.update({"vocab_size": vocab_size, "num_hidden_layers": layers})
    text.update({"hidden_size": 64, "intermediate_size": 96})
    text.update({"num_attention_heads": 2, "num_key_value_heads": 2})
    text.layer_types = text.layer_types[:layers]
    vision.update({"hidden_size": 32, "num_hidden_layers": tower_layers})
    vision.update({"num_attention_heads": 1, "intermediate_size": 96})
    model = LlavaForConditionalGeneration(config)
    model.generation_config.update(eos_token_id=2, pad_token_id=0, bos_token_id=1)
    return model


def save(model: Any, processor: Any, folder: Path) -> None:
    """Write a folder that `transformers` loads, with weights in float16."""
    half = {k: v.half() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    model.save_pretrained(folder, state_dict=half)
    processor.save_pretrained(folder)


def save_pair(folder: Path) -> Path:
    """Write target/ and drafter/ below `folder`; the drafter is the target with a little noise."""
    words = tokenizer()
    processor = make_processor(words)
    torch.manual_seed(0)
    model = make_model(len(words), layers=3).eval()
    with torch.no_grad():
        for weight in model.get_decoder().parameters():
            weight += (0.2 if weight.ndim == 2 else 0.1) * torch.randn_like(weight)
    save(model, processor, folder / "target")
    with torch.no_grad():
        for weight in model.get_decoder().layers.parameters():
            weight += 0.03 * weight.std() * torch.randn_like(weight) if weight.ndim == 2 else 0.0
    save(model, processor, folder / "drafter")
    return folder
