"""Random heads for tiny targets, in memory and as their authors publish them; and one lane on its
way, by hand or to its end.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from specvl_demo.core.engine import SharedPrefill
from specvl_demo.core.types import Drafter, LaneStart, Prompt
from specvl_demo.methods.heads.blocks import Geometry
from specvl_demo.methods.heads.checkpoints import FORMATS, Head
from specvl_demo.methods.heads.files import canonical_tensor_name
from specvl_demo.records import Round
from tests.shared.tiny import VOCAB, ask, ids_of, parts, rounds_of, run_lane

D, FFN, N_DRAFT = 64, 96, 40
"""Widths of heads, and the words of an EAGLE-3 head's vocabulary."""
SIZES = {"hidden_size": D, "intermediate_size": FFN, "vocab_size": VOCAB}
LAYER = {"num_attention_heads": 4, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
CONFIG = {"num_hidden_layers": 1, **SIZES, **LAYER}
DFLASH = {"block_size": 4, "dflash_config": {"mask_token_id": 0, "target_layer_ids": [1, 3, 4]}}
LAYERS = "eagle_aux_hidden_state_layer_ids"
SHALLOW = {
    "eagle3": {LAYERS: [0, 1, 2]},
    "dflash": DFLASH | {"dflash_config": {"mask_token_id": 0, "target_layer_ids": [0, 1]}},
}
"""What the configs say of heads for a target of three layers."""
GEOMETRY = Geometry(width=64, heads=4, kv_heads=4, head_width=16, eps=1e-5, theta=10000.0)


def random_tensors(
    kind: str, geometry: Geometry = GEOMETRY, seed: int = 0, n_read: int = 3
) -> dict[str, torch.Tensor]:
    """A head's tensors by the names of its authors' files, each of which matters. n_read: the
    target's layers that it reads.
    """
    g, w = geometry, geometry.width
    inner, kv = g.heads * g.head_width, g.kv_heads * g.head_width

    def block(at: str, *norms: str, attention: str = "self_attn", n: int = 1) -> dict[str, Any]:
        """Shapes of a layer whose attention reads n rows side by side."""
        rows = {"q": (inner, n * w), "k": (kv, n * w), "v": (kv, n * w), "o": (w, inner)}
        return {
            **{f"{at}.{attention}.{name}_proj.weight": shape for name, shape in rows.items()},
            **{f"{at}.mlp.{name}_proj.weight": (FFN, w) for name in ("gate", "up")},
            f"{at}.mlp.down_proj.weight": (w, FFN),
            **{f"{at}.{name}.weight": (w,) for name in (*norms, "post_attention_layernorm")},
        }

    def normed(at: str) -> dict[str, Any]:
        return {f"{at}.{name}_norm.weight": (g.head_width,) for name in "qk"}

    shapes = {
        "eagle2": {"fc.weight": (w, 2 * w), "fc.bias": (w,), **block("layers.0")},
        "hivis": {
            "fc.weight": (w, 3 * w),
            "fc.bias": (w,),
            "residual": (3, w),
            **block("layers.0"),
        },
        "dream": {
            **block("layers.0"),
            **block("layers.1", "input_layernorm", attention="cross_attn"),
            **normed("layers.1.cross_attn"),
            **{f"layers.1.cross_attn_{name}_gate": (1,) for name in ("attn", "mlp")},
            **block("layers.2", "input_layernorm"),
            "norm.weight": (w,),
        },
        "eagle3": {
            "fc.weight": (w, n_read * w),
            "norm.weight": (w,),
            "lm_head.weight": (N_DRAFT, w),
            **block("midlayer", "input_layernorm", "hidden_norm", n=2),
        },
        "dflash": {
            "fc.weight": (w, n_read * w),
            "hidden_norm.weight": (w,),
            "norm.weight": (w,),
            **block("layers.0", "input_layernorm"),
            **normed("layers.0.self_attn"),
            **block("layers.1", "input_layernorm"),
            **normed("layers.1.self_attn"),
        },
    }
    torch.manual_seed(seed)
    tensors = {name: 0.16 * torch.randn(shape) for name, shape in shapes[kind].items()}
    for name, tensor in tensors.items():
        if "norm" in name:
            tensor += 1
        if name.endswith("_gate"):
            tensor.fill_(0.7)
    return tensors | draft_ids() if kind == "eagle3" else tensors


def draft_ids() -> dict[str, torch.Tensor]:
    """Random words of a draft vocabulary, as authors store them."""
    ids = torch.randperm(VOCAB)[:N_DRAFT].sort().values
    words = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    return {"d2t": ids - torch.arange(N_DRAFT), "t2d": words}


def published(kind: str, target: object) -> dict[str, torch.Tensor]:
    """All tensors of the authors' file of a head for a target."""
    tensors = random_tensors(kind)
    if kind in ("eagle2", "hivis"):
        tensors["embed_tokens.weight"] = target.decoder.embed(torch.arange(VOCAB)).clone()
    if kind == "dream":
        return {f"module.{name}": tensor for name, tensor in tensors.items()}
    return tensors


def write(
    folder: Path, tensors: dict[str, torch.Tensor], form: str = "safetensors", **config: object
) -> Path:
    """Save as the hub would hold it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    tensors = {k: v.contiguous() for k, v in tensors.items()}
    names = sorted(tensors)
    if form == "safetensors":
        save_file(tensors, folder / "model.safetensors")
    elif form == "bin":
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        whole = {"sharded": "model.safetensors", "sharded-bin": "pytorch_model.bin"}[form]
        stem, suffix = whole.rsplit(".", 1)
        halves = {f"{stem}-0000{i + 1}-of-00002.{suffix}": names[i::2] for i in range(2)}
        save = save_file if suffix == "safetensors" else torch.save
        for file, part in halves.items():
            save({k: tensors[k] for k in part}, folder / file)
        index = {"weight_map": {k: file for file, part in halves.items() for k in part}}
        (folder / f"{whole}.index.json").write_text(json.dumps(index))
    return folder


def built(
    kind: str, decoder: Any, geometry: Geometry = GEOMETRY, settings: Any = None, **card: object
) -> Any:
    """A random head on a decoder. settings: its config.json, by default one for a target of three
    layers; card: what stands on its card.
    """
    settings = SHALLOW.get(kind, {}) if settings is None else settings
    read = settings.get("dflash_config", {}).get("target_layer_ids", range(3))
    tensors = random_tensors(kind, geometry, n_read=len(read))
    place = decoder.device
    tensors = {canonical_tensor_name(name): tensor.to(place) for name, tensor in tensors.items()}
    card = {"method": kind, **card}
    head = Head(kind, tensors, geometry, settings, f"tiny {kind}", card)
    return FORMATS[kind].build(head, decoder)


def begun(target: Any, drafter: Any, prompt: Prompt, max_nodes: int = 40) -> LaneStart:
    """Return a drafter that has begun after a prompt, with its own session on the target."""
    request = ask(target, prompt)
    shared = SharedPrefill(request)
    prefill = shared.prefill(drafter.aux_request)
    start = LaneStart(
        prompt=prompt,
        encoded=prefill.encoded,
        prefill=prefill,
        encode=shared.encoded_prompt,
        vocabulary=target.vocabulary,
        sampling=request.sampling,
        max_new_tokens=40,
        max_nodes=max_nodes,
        session=target.open(prefill, 40, max_nodes, drafter.aux_request),
    )
    with torch.inference_mode():
        drafter.begin(start)
    return start


def decode(
    target: object, drafter: Drafter | None, policy: object, prompt: Prompt, **changes: object
) -> tuple[list[int], list[Round]]:
    """A whole answer, and its rounds."""
    rounds = rounds_of(run_lane(parts(drafter, policy), ask(target, prompt, **changes)))
    return ids_of(rounds), rounds
