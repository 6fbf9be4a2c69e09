"""One tiny random model of every family: the real class, its real processor, its chat format. No
files.

To add a family: one function that returns (model, processor), and one row in FAMILIES. The tests do
the rest.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from PIL import Image

from tests.shared.pocketlike import byte_pairs
from tests.shared.tiny import move_norms

WIDTH, LAYERS = 64, 3
TEXT = """what is in the picture ? a red cube next to the blue ball .
USER: ASSISTANT: describe the image please . what happens in the clip ?
question answer user assistant system 0123456789 image frame seconds"""

Built = tuple[torch.nn.Module, Any]
"""A tiny model and its processor."""


@dataclass(frozen=True)
class Family:
    """One row: how it is built, and what of the views it can do."""

    build: Callable[[], Built]
    pools: bool = False
    """Whether the features before its projector lie, in a grid, under its visual tokens."""


def _template(
    image: str, opens: str, closes: str, answers: str, video: str = "", begins: str = ""
) -> str:
    shown = (
        f"{{{{ '{image}' if part['type'] == 'image' else '{video}' if part['type'] == 'video'"
        " else part['text'] }}"
    )
    return (
        f"{begins}{{% for m in messages %}}"
        f"{{% if m['role'] == 'user' %}}{opens}{{% else %}}{answers}{{% endif %}}"
        f"{{% for part in m['content'] %}}{shown}{{% endfor %}}{closes}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{answers}{{% endif %}}"
    )


_CHATML = {
    "opens": "<|im_start|>user\\n",
    "closes": "<|im_end|>\\n",
    "answers": "<|im_start|>assistant\\n",
}


def _tokenizer(special: list[str], named: Mapping[str, str] | None = None) -> Any:
    bpe = byte_pairs(TEXT, ["<pad>", "<s>", "</s>", *special], 330 + len(special))
    ends = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    more = {"extra_special_tokens": dict(named or {}), "additional_special_tokens": list(special)}
    return hf.PreTrainedTokenizerFast(tokenizer_object=bpe, **ends, **more)


def _text(tokenizer: Any, **changes: Any) -> dict[str, Any]:
    """A text model's size. The vocabulary has padding rows, as published ones have."""
    sizes = {"vocab_size": len(tokenizer) + 4, "hidden_size": WIDTH, "intermediate_size": 96}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    rest = {"max_position_embeddings": 2048, "initializer_range": 0.2}
    return {"num_hidden_layers": LAYERS} | sizes | heads | ends | rest | changes


def _model(kind: str, **parts: Any) -> Any:
    """The library's class of this kind; its tables of embeddings are not shared."""
    config = getattr(hf, f"{kind}Config")(tie_word_embeddings=False, **parts)
    return getattr(hf, f"{kind}ForConditionalGeneration")(config)


_LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2}
_VISION = {"hidden_size": 32, "intermediate_size": 48, **_LAYERS}
_TOWER = _VISION | {"num_hidden_layers": 3, "image_size": 56, "patch_size": 14}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
_PINPOINTS = [[56, 112], [112, 56], [112, 112]]
_SQUARE = {"height": 56, "width": 56}


def llava(decoder: str = "Llama", kind: str = "Llava") -> Built:
    tok = _tokenizer(["<image>"])
    tiles = {"image_grid_pinpoints": _PINPOINTS} if kind == "LlavaNext" else {}
    image = hf.LlavaNextImageProcessor if tiles else hf.CLIPImageProcessor
    processor = getattr(hf, kind + "Processor")(
        image(size={"shortest_edge": 56}, crop_size=_SQUARE, **tiles),
        tok,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=_template("<image>\\n", "USER: ", " ", "ASSISTANT:"),
    )
    model = _model(
        kind,
        vision_config=hf.CLIPVisionConfig(**_TOWER),
        text_config=getattr(hf, decoder + "Config")(**_text(tok)),
        image_token_index=tok.convert_tokens_to_ids("<image>"),
        **tiles,
    )
    return model, processor


def llava_onevision() -> Built:
    tok = _tokenizer(["<image>", "<video>", "<|im_start|>", "<|im_end|>"])
    processor = hf.LlavaOnevisionProcessor(
        hf.LlavaOnevisionImageProcessor(size=_SQUARE, image_grid_pinpoints=_PINPOINTS),
        tok,
        hf.LlavaOnevisionVideoProcessor(size=_SQUARE),
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        chat_template=_template("<image>\\n", video="<video>\\n", **_CHATML),
    )
    model = _model(
        "LlavaOnevision",
        vision_config=hf.SiglipVisionConfig(**_TOWER),
        text_config=hf.Qwen2Config(**_text(tok)),
        image_grid_pinpoints=_PINPOINTS,
        image_token_index=tok.convert_tokens_to_ids("<image>"),
        video_token_index=tok.convert_tokens_to_ids("<video>"),
    )
    return model, processor


def _qwen(kind: str) -> Built:
    visual = ("vision_start", "vision_end", "image_pad", "video_pad")
    tok = _tokenizer([f"<|{name}|>" for name in ("im_start", "im_end", *visual)])
    moe, kind = kind, kind.removesuffix("Moe")
    newest = kind in ("Qwen3VL", "Qwen3_5")
    patch = 16 if newest else 14
    cell = (2 * patch) ** 2
    size = {"shortest_edge": 4 * cell, "longest_edge": 12 * cell}
    video = hf.Qwen3VLVideoProcessor if newest else hf.Qwen2VLVideoProcessor
    video_size = {"shortest_edge": 16 * cell, "longest_edge": 64 * cell} if newest else size
    processor = getattr(hf, "Qwen3VLProcessor" if newest else kind + "Processor")(
        hf.Qwen2VLImageProcessor(patch_size=patch, size=size),
        tok,
        video(patch_size=patch, size=video_size),
        chat_template=_template(
            "<|vision_start|><|image_pad|><|vision_end|>",
            video="<|vision_start|><|video_pad|><|vision_end|>",
            **_CHATML,
        ),
    )
    rope = dict(_ROPE)
    vision = {"depth": 2, "num_heads": 2, "patch_size": patch}
    if kind == "Qwen2VL":
        vision |= {"embed_dim": 32, "hidden_size": WIDTH, "mlp_ratio": 2}
    else:
        vision |= {"hidden_size": 32, "out_hidden_size": WIDTH, "intermediate_size": 48}
    if kind == "Qwen2_5_VL":
        vision |= {"window_size": 56, "fullatt_block_indexes": [1]}
    if kind == "Qwen3VL":
        rope["mrope_interleaved"] = True
        vision |= {"depth": 3, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1, 2]}
    if kind == "Qwen3_5":
        rope |= {"mrope_interleaved": True, "partial_rotary_factor": 1.0}
        vision |= {"num_position_embeddings": 64}
    ids = {
        f"{name.removesuffix('_pad')}_token_id": tok.convert_tokens_to_ids(f"<|{name}|>")
        for name in visual
    }
    text = _text(tok, rope_parameters=rope)
    if kind == "Qwen3_5":
        # Two layers with a running state around one that attends.
        text |= {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
        text |= {f"linear_{name}_head_dim": 16 for name in ("key", "value")}
        text |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    if moe != kind:
        text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
    return _model(moe, vision_config=vision, text_config=text, **ids), processor


def glm4v() -> Built:
    named = {"image": "<|image|>", "video": "<|video|>"}
    named |= {"image_start": "<|begin_of_image|>", "image_end": "<|end_of_image|>"}
    named |= {"video_start": "<|begin_of_video|>", "video_end": "<|end_of_video|>"}
    tok = _tokenizer([*named.values(), "<|im_start|>", "<|im_end|>"])
    size = {"shortest_edge": 8 * 28**2, "longest_edge": 24 * 28**2}
    processor = hf.Glm4vProcessor(
        hf.Glm4vImageProcessor(size=size),
        tok,
        hf.Glm4vVideoProcessor(size=size, max_image_size={"longest_edge": 24 * 28**2}),
        chat_template=_template(
            "<|begin_of_image|><|image|><|end_of_image|>",
            video="<|begin_of_video|><|video|><|end_of_video|>",
            **_CHATML,
        ),
    )
    vision = {"depth": 2, "hidden_size": 32, "num_heads": 2, "image_size": 56}
    model = _model(
        "Glm4v",
        vision_config=vision | {"out_hidden_size": WIDTH, "intermediate_size": 48},
        text_config=_text(tok, rope_parameters=_ROPE),
        **{f"{name}_token_id": tok.convert_tokens_to_ids(token) for name, token in named.items()},
    )
    return model, processor


def _idefics(kind: str, scale: int = 2) -> Built:
    """scale: patches along a side that make one token, of 4 in a tile."""
    rows = [f"<row_{r}_col_{c}>" for r in range(1, 7) for c in range(1, 7)]
    tok = _tokenizer(
        ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", *rows]
    )
    image = getattr(hf, kind + "ImageProcessor")(
        size={"longest_edge": 128}, max_image_size={"longest_edge": 64}
    )
    more = {}
    if kind == "SmolVLM":
        more["video_processor"] = hf.SmolVLMVideoProcessor(
            size={"longest_edge": 64}, max_image_size={"longest_edge": 64}
        )
    turns = "User:", "<end_of_utterance>\\n", "Assistant:"
    processor = getattr(hf, kind + "Processor")(
        image,
        tok,
        image_seq_len=(4 // scale) ** 2,
        chat_template=_template("<image>", *turns, video="<video>" if more else ""),
        **more,
    )
    model = _model(
        kind,
        vision_config=_VISION | {"image_size": 64, "patch_size": 16},
        text_config=hf.LlamaConfig(**_text(tok)),
        image_token_id=tok.convert_tokens_to_ids("<image>"),
        scale_factor=scale,
        pad_token_id=0,
    )
    return model, processor


def gemma3() -> Built:
    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    named["image_token"] = "<image_soft_token>"
    tok = _tokenizer([*named.values(), "<start_of_turn>", "<end_of_turn>"], named)
    ids = tok.convert_tokens_to_ids
    turns = "<start_of_turn>user\\n", "<end_of_turn>\\n", "<start_of_turn>model\\n"
    processor = hf.Gemma3Processor(
        hf.Gemma3ImageProcessor(size=_SQUARE, do_pan_and_scan=False),
        tok,
        image_seq_length=4,
        chat_template=_template("<start_of_image>", *turns, begins="{{ bos_token }}"),
    )
    # A window much shorter than any prompt, and layers of both kinds.
    text = _text(
        tok,
        query_pre_attn_scalar=16,
        sliding_window=12,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )
    config = hf.Gemma3Config(
        text_config=hf.Gemma3TextConfig(**text),
        vision_config=hf.SiglipVisionConfig(**_TOWER),
        mm_tokens_per_image=4,
        boi_token_index=ids(named["boi_token"]),
        eoi_token_index=ids(named["eoi_token"]),
        image_token_index=ids(named["image_token"]),
    )
    model = hf.Gemma3ForConditionalGeneration(config)
    # The library leaves this one at zero, and every picture would look alike.
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=0.3)
    return model, processor


def gemma4() -> Built:
    named = {"boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>"}
    named |= {"boa_token": "<|audio>", "eoa_token": "<audio|>", "audio_token": "<|audio|>"}
    tok = _tokenizer([*named.values(), "<|video|>", "<|turn>", "<turn|>"], named)
    turns = "<|turn>user\\n", "<turn|>\\n", "<|turn>model\\n"
    processor = hf.Gemma4Processor(
        hf.Gemma4AudioFeatureExtractor(),
        hf.Gemma4ImageProcessor(max_soft_tokens=70),
        tok,
        hf.Gemma4VideoProcessor(max_soft_tokens=70),
        chat_template=_template("<|image|>", *turns, "<|video|>", "{{ bos_token }}"),
    )
    # Keys of two widths, no embeddings for every layer, and pictures larger than the window.
    text = _text(
        tok,
        sliding_window=12,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        global_head_dim=32,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        use_bidirectional_attention="vision",
    )
    ids = {f"{name}_id": tok.convert_tokens_to_ids(token) for name, token in named.items()}
    config = hf.Gemma4Config(
        text_config=text,
        vision_config=_VISION | {"num_key_value_heads": 2, "head_dim": 16},
        video_token_id=tok.convert_tokens_to_ids("<|video|>"),
        **{name: i for name, i in ids.items() if name != "eoa_token_id"},
    )
    return hf.Gemma4ForConditionalGeneration(config), processor


def _pixtral(merge: int) -> Built:
    tok = _tokenizer(["[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"])
    patch = {"height": 16 * merge, "width": 16 * merge}
    processor = hf.PixtralProcessor(
        hf.PixtralImageProcessor(size={"longest_edge": 64 * merge}, patch_size=patch),
        tok,
        patch_size=16,
        spatial_merge_size=merge,
        chat_template=_template("[IMG]", "[INST]", "[/INST]", "", begins="{{ bos_token }}"),
    )
    # The Mistral decoder of Pixtral looks through a window in every layer.
    window = None if merge > 1 else 20
    parts = {
        "vision_config": hf.PixtralVisionConfig(**_VISION, image_size=64 * merge, patch_size=16),
        "text_config": hf.MistralConfig(**_text(tok, sliding_window=window)),
        "image_token_index": tok.convert_tokens_to_ids("[IMG]"),
    }
    if merge > 1:
        return _model("Mistral3", **parts), processor
    parts |= {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    return _model("Llava", **parts), processor


def internvl() -> Built:
    named = {"start_image_token": "<img>", "end_image_token": "</img>"}
    named |= {"context_image_token": "<IMG_CONTEXT>", "video_token": "<video>"}
    tok = _tokenizer(["<|im_start|>", "<|im_end|>", *named.values()], named)
    processor = hf.InternVLProcessor(
        hf.GotOcr2ImageProcessor(size=_SQUARE, crop_to_patches=True, min_patches=1, max_patches=4),
        tok,
        hf.InternVLVideoProcessor(size=_SQUARE),
        image_seq_length=4,
        chat_template=_template("<IMG_CONTEXT>\\n", video="<video>\\n", **_CHATML),
    )
    model = _model(
        "InternVL",
        vision_config=_VISION | {"image_size": [56, 56], "patch_size": [14, 14]},
        text_config=hf.Qwen2Config(**_text(tok)),
        image_token_id=tok.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
    )
    return model, processor


FAMILIES = {
    "llava": Family(llava, pools=True),
    "llava-qwen2": Family(lambda: llava("Qwen2"), pools=True),
    "llava-next": Family(lambda: llava(kind="LlavaNext")),
    "llava-onevision": Family(llava_onevision),
    "qwen2-vl": Family(lambda: _qwen("Qwen2VL")),
    "qwen2.5-vl": Family(lambda: _qwen("Qwen2_5_VL")),
    "qwen3-vl": Family(lambda: _qwen("Qwen3VL")),
    "qwen3-vl-moe": Family(lambda: _qwen("Qwen3VLMoe")),
    "glm4v": Family(glm4v),
    "idefics3": Family(lambda: _idefics("Idefics3")),
    "smolvlm": Family(lambda: _idefics("SmolVLM")),
    "gemma3": Family(gemma3),
    "gemma4": Family(gemma4),
    "pixtral": Family(lambda: _pixtral(1)),
    "mistral3": Family(lambda: _pixtral(2)),
    "internvl": Family(internvl, pools=True),
}
RECURRENT = {"qwen3.5": lambda: _qwen("Qwen3_5"), "qwen3.5-moe": lambda: _qwen("Qwen3_5Moe")}
"""Families with layers that keep one running state: chains only."""
OTHER_CUT = {"smolvlm-other-cut": lambda: _idefics("SmolVLM", scale=4)}
"""Relatives that cut pictures into other tokens, to draft for the family that the name begins with.
"""


def build(name: str) -> Built:
    """The family's model and processor; it never ends by itself, and norms and biases matter."""
    torch.manual_seed(0)
    model: Any
    model, processor = ((RECURRENT | OTHER_CUT).get(name) or FAMILIES[name].build)()
    move_norms(model, 0.1, 0)
    if name in ("gemma3", "gemma4"):
        # Tied and scaled up, a token's own row would outvote all layers: every answer one word
        # repeated.
        model.get_input_embeddings().weight.data *= 0.05
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.eval().requires_grad_(False), processor


def picture(seed: int, width: int = 90, height: int = 60) -> Image.Image:
    """Coloured noise, coarse enough to survive resizing."""
    noise = torch.randint(0, 256, (6, 9, 3), generator=torch.Generator().manual_seed(seed)).to(
        torch.uint8
    )
    return Image.fromarray(noise.numpy()).resize((width, height), Image.Resampling.NEAREST)
