"""A pair on disk in the shape of the pocket pair, with random weights: for tests that load as users
do.
"""

from __future__ import annotations

from pathlib import Path

import torch

WORDS = (
    "what is in the picture describe a small large red green blue circle square star above below"
    " left"
)


def tokenizer() -> object:
    """Byte-level BPE with the pocket family's special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from recipes import pocket

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(pocket.SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([f" {WORDS}"] * 20, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


def save_pair(folder: Path) -> Path:
    """Write target/ and drafter/ below `folder`; the drafter is the target with a little noise."""
    from recipes import pocket

    words = tokenizer()
    processor = pocket.make_processor(words)
    torch.manual_seed(0)
    model = pocket.make_model(len(words), layers=3, hidden=64, ffn=96, tower=(32, 2)).eval()
    with torch.no_grad():
        for weight in model.get_decoder().parameters():
            weight += (0.2 if weight.ndim == 2 else 0.1) * torch.randn_like(weight)
    pocket.save(model, processor, folder / "target")
    with torch.no_grad():
        for weight in model.get_decoder().layers.parameters():
            weight += 0.03 * weight.std() * torch.randn_like(weight) if weight.ndim == 2 else 0.0
    pocket.save(model, processor, folder / "drafter")
    return folder
