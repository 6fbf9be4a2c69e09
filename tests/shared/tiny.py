"""Tiny random models in the shape of the pocket pair, prompts for them, requests and answers."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from specvl_demo.core.detokenizer import TokenTexts
from specvl_demo.core.engine import Lane, Parts, Request, SharedPrefill, race
from specvl_demo.core.types import Drafter, Policy, Prompt
from specvl_demo.core.verification import LosslessVerifier
from specvl_demo.methods.ar import OneNode
from specvl_demo.records import Record, Round, Span

VOCAB, EOS, IMAGE = 160, 2, 3
PER_IMAGE = 9


def tiny_llava(
    layers: int = 3,
    seed: int = 0,
    kv_heads: int = 4,
    vocab: int = VOCAB,
    **more: object,
) -> torch.nn.Module:
    """A random LLaVA like the pocket target: SigLIP tower, Qwen2 decoder, tied head."""
    import transformers as hf

    torch.manual_seed(seed)
    text = {"vocab_size": vocab, "hidden_size": 64, "intermediate_size": 96}
    text |= {"num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": kv_heads}
    text |= {"bos_token_id": 1, "eos_token_id": EOS, "pad_token_id": 0, "initializer_range": 0.2}
    text |= {"max_position_embeddings": 512, "tie_word_embeddings": True, **more}
    tower = {"hidden_size": 32, "intermediate_size": 48, "image_size": 48, "patch_size": 16}
    vision = hf.SiglipVisionConfig(**tower, num_hidden_layers=2, num_attention_heads=2)
    config = hf.LlavaConfig(
        vision_config=vision,
        text_config=hf.Qwen2Config(**text),
        image_token_id=IMAGE,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    model = hf.LlavaForConditionalGeneration(config).eval()
    move_norms(model, 0.2, seed)
    with torch.no_grad():
        # A placeholder in an answer would be one more picture in the next prompt, which no
        # processor allows.
        model.get_input_embeddings().weight[IMAGE] = 0
    model.generation_config.eos_token_id = EOS
    return model


@torch.no_grad()
def move_norms(model: torch.nn.Module, amount: float, seed: int) -> None:
    """Make norms and biases matter, which random weights leave at one and at zero."""
    generator = torch.Generator().manual_seed(seed + 1)
    for name, weight in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            weight += amount * torch.randn(weight.shape, generator=generator)


def noisy(model: torch.nn.Module, amount: float) -> torch.nn.Module:
    """Return a copy whose decoder's matrices differ by `amount` of their own size."""
    twin = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for layer in twin.get_decoder().layers:
            for weight in layer.parameters():
                if weight.ndim == 2:
                    weight += amount * weight.std() * torch.randn(weight.shape, generator=generator)
    return twin


def tiny_prompt(pictures: int = 1, words: int = 7, seed: int = 0, vocab: int = VOCAB) -> Prompt:
    """Some text, pictures one after the other, more text."""
    generator = torch.Generator().manual_seed(seed)

    def text(n: int) -> list[int]:
        return torch.randint(4, vocab, (n,), generator=generator).tolist()

    ids = [1, *text(3), *[IMAGE] * (PER_IMAGE * pictures), *text(words)]
    spans = tuple(
        Span("image", i, 0, 4 + i * PER_IMAGE, 4 + (i + 1) * PER_IMAGE, 3, 3)
        for i in range(pictures)
    )
    tensor = torch.tensor(ids)
    inputs = {
        "input_ids": tensor[None],
        "attention_mask": torch.ones(1, len(ids)),
    }
    if pictures:
        inputs["pixel_values"] = torch.randn(pictures, 3, 48, 48, generator=generator)
    return Prompt(tensor, tensor == IMAGE, inputs, spans, "what is this?")


def spell(ids: Sequence[int], keep_special: bool = False) -> str:
    """A decoder of ids for tests: every id is its number and a space."""
    return "".join(f"{i} " for i in ids if keep_special or i > EOS)


def ask(target: object, prompt: Prompt, **changes: object) -> Request:
    """A request with plain settings."""
    request = Request("test", prompt, target, TokenTexts(spell), max_new_tokens=24)
    return replace(request, **changes)


def parts(drafter: Drafter | None = None, policy: Policy | None = None) -> Parts:
    """A strict lane's parts."""
    return Parts(
        "fake", "fake", True, {}, drafter or Drafter(), policy or OneNode(), LosslessVerifier()
    )


def run_lane(parts: Parts, request: Request) -> list[Record]:
    """All records of one lane that races alone."""
    return list(race([Lane(parts.method, parts, SharedPrefill(request))]))


def rounds_of(records: Iterable[object]) -> list[Round]:
    return [record for record in records if isinstance(record, Round)]


def ids_of(records: Iterable[object]) -> list[int]:
    """The tokens of an answer."""
    return [token.id for round_ in rounds_of(records) for token in round_.tokens]
