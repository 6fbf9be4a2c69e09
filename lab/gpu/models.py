"""Pairs of real shapes with random weights, as folders that load like any other pair.

Costs depend on shapes, not on the values of weights, so nothing is downloaded. Acceptance is set:
the target's later layers are damped, so that its own first layers, run alone as a drafter, are
often right; noise in a drafter's last norm lowers that to what is wanted. Heads have the published
layout and are never right: they tell what a round costs.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.utils import logging

from specvl_demo.methods.heads.checkpoints import FORMATS, HeadFormat, in_layer
from specvl_demo.pairs import PairSpec
from specvl_demo.serving.custom import custom_pair
from tests.shared import zoo

GAMMA = 5
"""Tokens of the chain whose acceptance length is set."""
BEST = 5.0
"""Acceptance length that damping is set for; noise sets the lower ones."""
EARLY, NORMS = "early", "norms.safetensors"
STRETCHES = 12
"""How often an interval is halved to meet an acceptance length."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a published model: a family of the tests' zoo, the layers of its `early`
    drafter, those of its image processor.
    """

    title: str
    family: str
    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    early: int
    image: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_layers(self) -> int:
        return int(self.text["num_hidden_layers"])


def _text(width: int, inner: int, layers: int, heads: int, kv: int, vocab: int) -> dict[str, int]:
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": width // heads,
        "vocab_size": vocab,
        "max_position_embeddings": 32768,
    }


_SQUARE = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
QWEN = Shape(
    "Qwen2.5-VL 7B",
    "qwen2.5-vl",
    _text(3584, 18944, 28, 28, 4, 152064),
    {
        **{"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16},
        **{"window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31], "out_hidden_size": 3584},
    },
    early=4,
    image={"size": {"shortest_edge": 4 * 28**2, "longest_edge": 1280 * 28**2}},
)
LLAVA = Shape(
    "LLaVA-1.5 7B",
    "llava",
    _text(4096, 11008, 32, 32, 32, 32064),
    {
        **{"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24},
        **{"num_attention_heads": 16, "image_size": 336},
    },
    early=3,
    image=_SQUARE,
)
SHAPES = {"qwen2.5-vl-7b": QWEN, "llava-1.5-7b": LLAVA}
_TINY_TEXT = _text(128, 256, 8, 4, 2, 1000)


def tiny(shape: Shape) -> Shape:
    """Return the same class in a size for any machine; pictures have few tokens."""
    vision = {"out_hidden_size": 128} if "out_hidden_size" in shape.vision else {}
    return replace(shape, text=_TINY_TEXT, vision=vision, early=2, image={})


def chained(rate: float) -> float:
    """Return the acceptance length of a chain whose every token is accepted at this rate."""
    return sum(rate**depth for depth in range(GAMMA + 1))


def make_pair(shape: Shape, folder: Path, device: torch.device, taus: Sequence[float]) -> None:
    """Write `target`, `early`, and its last norm for every acceptance length below `folder`."""
    logging.disable_progress_bar()
    model, processor = _random(shape, device)
    _damped(model, shape.early)
    model.save_pretrained(folder / "target")
    processor.save_pretrained(folder / "target")
    early, truth = _early(model, shape), _states(model, shape.early)
    norm = early.get_decoder().norm
    plain = norm.weight.detach().clone()
    noise = torch.randn(plain.shape, generator=torch.Generator().manual_seed(3)).to(plain)
    norms = {}
    for tau in sorted(taus, reverse=True):

        def met(scale: float) -> float:
            return chained(_rate(truth, model, plain * (1 + scale * noise)))

        scale = _halved(met, tau) if tau < BEST else 0.0
        norms[f"{tau:g}"] = (plain * (1 + scale * noise)).cpu()
    early.save_pretrained(folder / EARLY)
    processor.save_pretrained(folder / EARLY)
    save_file(norms, folder / NORMS)


@torch.inference_mode()
def set_tau(model: Any, folder: Path, tau: float) -> None:
    """Give a loaded `early` the last norm of an acceptance length, in the same memory."""
    model.get_decoder().norm.weight.copy_(load_file(folder / NORMS)[f"{tau:g}"])


def make_heads(shape: Shape, folder: Path, device: torch.device, kinds: Sequence[str]) -> None:
    """Write a head of random weights for each format below `folder`, beside its `target`."""
    text, draw = shape.text, torch.Generator(device).manual_seed(4)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    config = json.loads((folder / "target" / "config.json").read_text(encoding="utf-8"))
    theirs = config["text_config"]
    for kind in kinds:
        form, settings = FORMATS[kind], {**text, "num_hidden_layers": 1, "hidden_act": "silu"}
        settings["rms_norm_eps"] = theirs["rms_norm_eps"]
        settings["rope_theta"] = theirs["rope_parameters"]["rope_theta"]
        if kind == "dflash":
            settings |= {"num_hidden_layers": 5, "mask_token_id": 1, "block_size": 16}
            spread = [1 + i * (shape.n_layers - 4) // 4 for i in range(5)]
            settings["dflash_config"] = {"target_layer_ids": spread}
        tensors = {}
        for name, size in _shapes(form, settings, text).items():
            if name.endswith(("norm.weight", "gate")):
                tensors[name] = torch.ones(size, device=device, dtype=dtype)
            else:
                random = torch.randn(size, device=device, dtype=dtype, generator=draw)
                tensors[name] = 0.02 * random
        place = folder / kind
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps(settings), encoding="utf-8")
        save_file({name: each.cpu() for name, each in tensors.items()}, place / "model.safetensors")


def pair_of(folder: Path, heads: Sequence[str]) -> PairSpec:
    """Return the pair of `target` and `early` below a folder, with these heads."""
    pair = custom_pair(str(folder / "target"), str(folder / EARLY))
    drafters = dict(pair.drafters)
    for kind in heads:
        drafters |= custom_pair(str(folder / "target"), str(folder / kind)).drafters
    return replace(pair, drafters=drafters)


def _random(shape: Shape, device: torch.device) -> tuple[Any, Any]:
    """Return the model with random weights on the device, and its processor."""
    small: Any
    small, processor = zoo.build(shape.family)
    config = small.config
    text, vision = config.get_text_config(), config.vision_config
    for name, value in shape.text.items():
        setattr(text, name, value)
    for name, value in shape.vision.items():
        setattr(vision, name, value)
    if "depth" in shape.vision or shape.family.startswith("qwen"):
        half = shape.text["head_dim"] // 2
        # Time, height and width divide the rotary pairs as in the published models.
        sections = [half - 2 * (half * 3 // 8), half * 3 // 8, half * 3 // 8]
        rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections}
        text.rope_parameters = rope
    # As 0.02 at the published widths: narrow models would choose among near ties otherwise.
    text.initializer_range = config.initializer_range = 1.2 / shape.text["hidden_size"] ** 0.5
    _cut(text, shape.n_layers)
    for name, value in shape.image.items():
        setattr(processor.image_processor, name, value)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(1)
    with torch.device(device):
        model = type(small)._from_config(config, dtype=dtype)
    # Answers have the length that is asked for.
    model.generation_config.eos_token_id = processor.tokenizer.eos_token = None
    model.generation_config.pad_token_id = 0
    return model.eval().requires_grad_(False), processor


def _cut(text: Any, n_layers: int) -> None:
    text.num_hidden_layers = n_layers
    if getattr(text, "layer_types", None):
        text.layer_types = ["full_attention"] * n_layers


def _early(model: Any, shape: Shape) -> Any:
    """Return a model of the target's first layers, which shares its weights but for the norm."""
    config = copy.deepcopy(model.config)
    _cut(config.get_text_config(), shape.early)
    device = next(model.parameters()).device
    with torch.device(device):
        early = type(model)._from_config(config, dtype=model.dtype)
    early.load_state_dict(model.state_dict(), strict=False, assign=True)
    decoder = early.get_decoder()
    decoder.norm.weight = nn.Parameter(decoder.norm.weight.clone(), requires_grad=False)
    early.generation_config = copy.deepcopy(model.generation_config)
    return early.eval().requires_grad_(False)


@torch.inference_mode()
def _states(model: Any, early: int, n: int = 192) -> tuple[Tensor, Tensor]:
    """Return the states after the first layers [n, D], and the model's own tokens [n]."""
    decoder = model.get_decoder()
    device = next(model.parameters()).device
    draw = torch.Generator().manual_seed(5)
    ids = torch.randint(decoder.config.vocab_size, (1, n), generator=draw).to(device)
    out = decoder(inputs_embeds=decoder.embed_tokens(ids), output_hidden_states=True)
    chosen = model.get_output_embeddings()(out.last_hidden_state[0]).argmax(-1)
    return out.hidden_states[early][0], chosen


@torch.inference_mode()
def _rate(truth: tuple[Tensor, Tensor], model: Any, norm: Tensor) -> float:
    """Return how often the first layers, with this weight in the last norm, are right."""
    states, chosen = truth
    own = model.get_decoder().norm
    unit = states.float() * torch.rsqrt(
        states.float().square().mean(-1, keepdim=True) + own.variance_epsilon
    )
    logits = model.get_output_embeddings()(unit.to(norm.dtype) * norm)
    return float((logits.argmax(-1) == chosen).float().mean())


@torch.no_grad()
def _damped(model: Any, early: int) -> None:
    """Scale what the later layers add until a chain of the first layers reaches BEST."""
    norm, later = model.get_decoder().norm.weight, model.get_decoder().layers[early:]
    weights = [w for one in later for w in (one.self_attn.o_proj.weight, one.mlp.down_proj.weight)]
    current = 1.0

    def met(scale: float) -> float:
        nonlocal current
        for weight in weights:
            weight.mul_(scale / current)
        current = scale
        return chained(_rate(_states(model, early), model, norm))

    met(_halved(met, BEST, high=1.0))


def _halved(met: Callable[[float], float], wanted: float, high: float = 4.0) -> float:
    """Return a scale in (0, high] at which `met`, which falls with it, is about `wanted`."""
    low = high / 2**STRETCHES
    for _ in range(STRETCHES):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if met(middle) > wanted else (low, middle)
    return low


def _shapes(
    form: HeadFormat, settings: Mapping[str, Any], text: Mapping[str, Any]
) -> dict[str, list[int]]:
    """Return the shape of every tensor that a format needs, for a target of these sizes."""
    shapes = dict(form.required)
    for number in range(settings["num_hidden_layers"] if form.every_layer else 0):
        shapes |= in_layer(number, form.every_layer)
    head, width = text["head_dim"], text["hidden_size"]
    layers_read = settings["num_hidden_layers"] if form.kind == "dflash" else 3
    sizes = {
        **{"1": 1, "D": width, "H": head, "F": text["intermediate_size"]},
        **{"Q": text["num_attention_heads"] * head, "K": text["num_key_value_heads"] * head},
        **{"V": text["vocab_size"], "N": 3, "S": layers_read * width},
    }
    return {
        name: [int(word[:-1] or 1) * sizes[word[-1]] for word in shape.split()]
        for name, shape in shapes.items()
    }
