"""Every served family, tiny and random: random trees through the engine's target give what `generate` gives.

Hand-made inputs need no processors. Families differ in attribute names, positions (three axes), masks
(sliding windows, both ways inside a picture) and what they feed their decoder (DeepStack); all of it must
come out right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

from specvl_demo.core.tree import DraftTree, shape_of
from specvl_demo.core.types import Prompt
from specvl_demo.core.verify import walk
from specvl_demo.targets.target import VLMTarget
from specvl_demo.targets.vlm import VLM

V, IMAGE, VIDEO, START, STOP = 320, 300, 301, 302, 303
WIDTH, LAYERS = 64, 4
Built = tuple[nn.Module, dict[str, Any]]


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


def words(n: int, seed: int) -> list[int]:
    return torch.randint(3, 290, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def ids_with(n: int, token: int = IMAGE, wrap: tuple[int, ...] = (), before: int = 6, after: int = 9) -> Any:
    visual = [*wrap[:1], *[token] * n, *wrap[1:]]
    return torch.tensor([[1, *words(before, 1), *visual, *words(after, 2)]])


def text(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": V,
        "hidden_size": WIDTH,
        "intermediate_size": 128,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "initializer_range": 0.12,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }


def tower(kind: str = "clip") -> Any:
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    make = hf.CLIPVisionConfig if kind == "clip" else hf.SiglipVisionConfig
    return make(**shape, image_size=56, patch_size=14)


def llava() -> Built:
    config = hf.LlavaConfig(vision_config=tower(), text_config=hf.LlamaConfig(**text()), image_token_id=IMAGE)
    return hf.LlavaForConditionalGeneration(config), {
        "input_ids": ids_with(16),
        "pixel_values": noise(1, 3, 56, 56),
    }


def llava_sliding_mistral() -> Built:
    """A window shorter than the prompt, in every layer."""
    config = hf.LlavaConfig(
        vision_config=tower(),
        text_config=hf.MistralConfig(**text(sliding_window=12)),
        image_token_id=IMAGE,
        tie_word_embeddings=True,
    )
    return hf.LlavaForConditionalGeneration(config), {
        "input_ids": ids_with(16),
        "pixel_values": noise(1, 3, 56, 56),
    }


def llava_next() -> Built:
    points = [[56, 112], [112, 56], [112, 112]]
    config = hf.LlavaNextConfig(
        vision_config=tower(),
        text_config=hf.LlamaConfig(**text()),
        image_token_id=IMAGE,
        image_grid_pinpoints=points,
    )
    model = hf.LlavaNextForConditionalGeneration(config).eval()
    sizes = {"pixel_values": noise(1, 3, 3, 56, 56), "image_sizes": torch.tensor([[56, 100]])}
    return model, {"input_ids": ids_with(rows(model.get_image_features(**sizes))), **sizes}


def onevision(video: bool) -> Built:
    points = [[56, 112], [112, 56], [112, 112]]
    config = hf.LlavaOnevisionConfig(
        vision_config=tower("siglip"),
        text_config=hf.Qwen2Config(**text()),
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        image_grid_pinpoints=points,
    )
    model = hf.LlavaOnevisionForConditionalGeneration(config).eval()
    if video:
        frames = noise(1, 3, 3, 56, 56)
        found = rows(model.get_video_features(frames))
        # Up to 5.17 the newline row is added in the forward.
        found += tuple(map(int, hf.__version__.split(".")[:2])) < (5, 18)
        return model, {"input_ids": ids_with(found, VIDEO), "pixel_values_videos": frames}
    sizes = {"pixel_values": noise(1, 3, 3, 56, 56), "image_sizes": torch.tensor([[56, 100]])}
    return model, {"input_ids": ids_with(rows(model.get_image_features(**sizes))), **sizes}


def qwen(kind: str, video: bool) -> Built:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    common = {
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        "vision_start_token_id": START,
        "vision_end_token_id": STOP,
    }
    if kind == "2.5":
        patch = 14
        vision = {
            "depth": 2,
            "hidden_size": 32,
            "out_hidden_size": WIDTH,
            "intermediate_size": 64,
            "num_heads": 2,
            "patch_size": patch,
            "window_size": 56,
            "fullatt_block_indexes": [1],
        }
        config = hf.Qwen2_5_VLConfig(vision_config=vision, text_config=text(rope_parameters=rope), **common)
        model: nn.Module = hf.Qwen2_5_VLForConditionalGeneration(config)
    else:
        patch = 16
        vision = {
            "depth": 3,
            "hidden_size": 32,
            "out_hidden_size": WIDTH,
            "intermediate_size": 64,
            "num_heads": 2,
            "patch_size": patch,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1, 2],
        }
        rope["mrope_interleaved"] = True
        config = hf.Qwen3VLConfig(vision_config=vision, text_config=text(rope_parameters=rope), **common)
        model = hf.Qwen3VLForConditionalGeneration(config)
    grid = torch.tensor([[8, 4, 6]] if video else [[1, 4, 10]])
    pixels = noise(int(grid.prod()), 3 * 2 * patch * patch)
    token = VIDEO if video else IMAGE
    if video and kind == "3":
        frame = [START, *[VIDEO] * 6, STOP]
        ids = torch.tensor(
            [[1, *words(6, 1), *[i for f in range(8) for i in (*frame, *words(2, f))], *words(9, 2)]]
        )
    else:
        ids = ids_with(int(grid.prod()) // 4, token, (START, STOP))
    name = "video" if video else "image"
    return model, {
        "input_ids": ids,
        "mm_token_type_ids": (ids == token).int() * (2 if video else 1),
        f"{name}_grid_thw": grid,
        "pixel_values_videos" if video else "pixel_values": pixels,
    }


def smolvlm() -> Built:
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 64,
        "patch_size": 16,
    }
    config = hf.SmolVLMConfig(
        vision_config=vision,
        text_config=hf.LlamaConfig(**text()),
        image_token_id=IMAGE,
        scale_factor=2,
        pad_token_id=0,
    )
    pixels = {
        "pixel_values": noise(1, 3, 3, 64, 64),
        "pixel_attention_mask": torch.ones(1, 3, 64, 64, dtype=torch.bool),
    }
    return hf.SmolVLMForConditionalGeneration(config), {"input_ids": ids_with(12), **pixels}


def gemma3() -> Built:
    types = ["sliding_attention", "full_attention"] * 2
    inner = text(query_pre_attn_scalar=16, sliding_window=16, layer_types=types, tie_word_embeddings=True)
    config = hf.Gemma3Config(
        text_config=hf.Gemma3TextConfig(**inner),
        vision_config=tower("siglip"),
        mm_tokens_per_image=4,
        boi_token_index=304,
        eoi_token_index=305,
        image_token_index=IMAGE,
    )
    model = hf.Gemma3ForConditionalGeneration(config)
    nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=0.3)
    ids = ids_with(4, IMAGE, (304, 305), before=14, after=16)
    return model, {
        "input_ids": ids,
        "token_type_ids": (ids == IMAGE).long(),
        "pixel_values": noise(1, 3, 56, 56),
    }


def pixtral() -> Built:
    vision = hf.PixtralVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=128,
        patch_size=16,
    )
    config = hf.LlavaConfig(
        vision_config=vision,
        text_config=hf.MistralConfig(**text(sliding_window=None)),
        image_token_id=IMAGE,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    pixels = {"pixel_values": noise(1, 3, 64, 48), "image_sizes": torch.tensor([[64, 48]])}
    return hf.LlavaForConditionalGeneration(config), {"input_ids": ids_with(12), **pixels}


def rows(features: Any) -> int:
    found = features.pooler_output
    parts = found if isinstance(found, list | tuple) else [found]
    return sum(part.reshape(-1, part.shape[-1]).shape[0] for part in parts)


FAMILIES: dict[str, Callable[[], Built]] = {
    "llava": llava,
    "llava, sliding": llava_sliding_mistral,
    "llava-next": llava_next,
    "onevision": lambda: onevision(False),
    "onevision video": lambda: onevision(True),
    "qwen2.5-vl": lambda: qwen("2.5", False),
    "qwen2.5-vl video": lambda: qwen("2.5", True),
    "qwen3-vl": lambda: qwen("3", False),
    "qwen3-vl video": lambda: qwen("3", True),
    "smolvlm": smolvlm,
    "gemma3": gemma3,
    "pixtral": pixtral,
}
TOKENS = 20


def wandering_tree(truth: list[int], root: int, rng: random.Random) -> DraftTree:
    """A branch that is right for a while, among branches that are not."""
    tokens, parent = [root], [-1]
    for token in truth[: rng.randrange(5)]:
        parent.append(len(tokens) - 1)
        tokens.append(token)
    while len(tokens) < 9:
        parent.append(rng.randrange(len(tokens)))
        tokens.append(rng.randrange(3, 290))
    return DraftTree(torch.tensor(tokens), shape_of(tuple(parent)))


@pytest.mark.parametrize("family", FAMILIES)
def test_trees_decode_what_generate_decodes(family: str) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        model, inputs = FAMILIES[family]()
    model.eval()
    model.generation_config.eos_token_id = None
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    with torch.no_grad():
        out = model.generate(
            **inputs, max_new_tokens=TOKENS, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
    ids = inputs["input_ids"][0]
    truth = out.sequences[0, len(ids) :].tolist()
    target = VLMTarget(VLM(model, family, backend="hf"))
    visual = torch.isin(ids, torch.tensor(target.vlm.placeholders))
    assert visual.any()
    session = target.open(target.prefill(target.encode(Prompt(ids, visual, inputs))), TOKENS, 16)
    rng, emitted, rounds = random.Random(0), [], 0
    while len(emitted) < TOKENS:
        root = emitted[-1] if emitted else int(ids[-1])
        tree = wandering_tree(truth[len(emitted) :], root, rng)
        scores = session.score(tree)
        assert torch.allclose(scores.logits[0], out.logits[len(emitted)][0], atol=1e-4)
        chosen = scores.logits.argmax(-1).tolist()
        path = walk(tree.shape, tree.tokens.tolist(), chosen)
        session.commit(path)
        emitted += [chosen[node] for node in path]
        rounds += 1
        assert session.length == len(ids) + len(emitted) - 1
    assert emitted[:TOKENS] == truth
    assert rounds < TOKENS  # branches were accepted, not only roots


def test_a_stale_position_offset_on_the_model_changes_nothing() -> None:
    """Qwen models keep the last request's offset on the module; a session must not read it."""
    torch.manual_seed(0)
    model, inputs = qwen("2.5", True)
    model.eval()
    target = VLMTarget(VLM(model, "qwen"))
    ids = inputs["input_ids"][0]
    prompt = Prompt(ids, torch.isin(ids, torch.tensor(target.vlm.placeholders)), inputs)
    prefill = target.prefill(target.encode(prompt))
    tree = DraftTree(torch.tensor([int(ids[-1]), 5, 6]), shape_of((-1, 0, 0)))
    before = target.open(prefill, 4, 4).score(tree).logits
    model.model.rope_deltas = torch.tensor([[999]])
    assert torch.equal(target.open(prefill, 4, 4).score(tree).logits, before)


def test_positions_that_would_be_guessed_are_refused() -> None:
    """Without its token types Qwen2.5-VL silently falls back to text positions for a picture."""
    model, inputs = qwen("2.5", False)
    del inputs["mm_token_type_ids"]
    ids = inputs["input_ids"][0]
    vlm = VLM(model.eval(), "qwen")
    with pytest.raises((ValueError, RuntimeError, TypeError, AttributeError)):
        vlm.encode(Prompt(ids, torch.isin(ids, torch.tensor(vlm.placeholders)), inputs))


def test_placeholders_that_were_not_expanded_are_refused() -> None:
    model, inputs = llava()
    vlm = VLM(model.eval(), "llava")
    ids = inputs["input_ids"][0]
    longer = torch.cat((ids, ids[-1:]))
    with pytest.raises(ValueError, match="expanded"):
        vlm.encode(Prompt(longer, torch.isin(longer, torch.tensor(vlm.placeholders)), inputs))
