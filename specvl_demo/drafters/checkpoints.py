"""Trained heads on disk: published formats recognised by their tensors, every key accounted for.

Given a folder with config.json and weights (safetensors or .bin, whole or sharded), gives one head's tensors
under canonical names, its geometry and its settings; refuses in one sentence what does not fit the target.
Pickled code is never executed. Knows formats; how heads draft is theirs to know.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from specvl_demo.core.types import Decoder
from specvl_demo.drafters.blocks import Geometry

Kind = Literal["eagle2", "hivis", "dream", "vispec", "eagle3"]

TITLES: dict[str, str] = {
    "eagle2": "an EAGLE-2 head",
    "hivis": "a HiViS head",
    "dream": "a DREAM head",
    "vispec": "a ViSpec head",
    "eagle3": "an EAGLE-3 head",
}

OWN = "specvl"
"""Key of config.json under which this repository's recipes keep what published files do not say."""

_PREFIXES = ("module.", "ea_layer.", "draft_model.", "model.")
_RENAMED = {"adaptive_embedding": "residual"}
_WHOLE = ("model.safetensors", "pytorch_model.bin")
_BLOCK = tuple(
    [f"self_attn.{name}_proj.weight" for name in "qkvo"]
    + [f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
    + ["post_attention_layernorm.weight"]
)
_BIASES = tuple(f"self_attn.{name}_proj.bias" for name in "qkv")


@dataclass(frozen=True)
class Head:
    """One trained head, ready to be built. settings: config.json as it stands; own: its section of ours."""

    kind: Kind
    tensors: Mapping[str, Tensor]
    geometry: Geometry
    settings: Mapping[str, Any]
    source: str
    own: Mapping[str, Any] = field(default_factory=dict)


def load(folder: Path, decoder: Decoder, wanted: Iterable[Kind] = ()) -> Head:
    """Read the head in `folder` for this target, on its device and in its type.

    wanted: kinds that will do (empty: any). Raises ValueError with one sentence where the files do not fit.
    """
    tensors, settings = read(folder)
    kind = recognise(tensors, folder.name)
    wanted = tuple(wanted)
    if wanted and kind not in wanted:
        names = " or ".join(TITLES[w] for w in wanted)
        raise ValueError(f"{folder.name}: {names} was needed, the tensors are those of {TITLES[kind]}")
    _same_embeddings(tensors, decoder, folder.name)
    expected = _expected(kind, tensors)
    _every_key(kind, tensors, expected, folder.name)
    tensors = {k: v for k, v in tensors.items() if k in expected.required or k in expected.optional}
    width = _width(tensors)
    if width != decoder.width:
        raise ValueError(
            f"{folder.name} is {TITLES[kind]} for a target of width {width}; this one has {decoder.width}"
        )
    geometry = _geometry(kind, tensors, settings, folder.name)
    _every_shape(kind, tensors, geometry, decoder, folder.name)
    moved = {
        name: tensor.to(decoder.device, decoder.dtype if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in tensors.items()
    }
    return Head(kind, moved, geometry, settings, folder.name, settings.get(OWN, {}))


# ---------------------------------------------------------------- files


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """All tensors of a folder under canonical names, on the host, and its config.json."""
    config = folder / "config.json"
    if not config.is_file():
        raise ValueError(f"{folder.name} has no config.json; a head needs one beside its weights")
    settings = _json(config)
    tensors: dict[str, Tensor] = {}
    for file in _files(folder):
        for name, tensor in _open(file).items():
            if canonical(name) in tensors:
                raise ValueError(f"{folder.name} holds {canonical(name)} twice; it is unclear which counts")
            tensors[canonical(name)] = tensor
    return tensors, settings


def canonical(name: str) -> str:
    """A tensor's published name without wrappers' prefixes and older spellings."""
    stripped = True
    while stripped:
        stripped = False
        for prefix in _PREFIXES:
            if name.startswith(prefix):
                name, stripped = name[len(prefix) :], True
    name = name.replace("midlayer.", "layers.0.", 1) if name.startswith("midlayer.") else name
    return _RENAMED.get(name, name)


def _files(folder: Path) -> list[Path]:
    for whole in _WHOLE:
        if (folder / whole).is_file():
            return [folder / whole]
        index = folder / f"{whole}.index.json"
        if index.is_file():
            named = _json(index).get("weight_map")
            if not isinstance(named, dict):
                raise ValueError(f"{index.name} of {folder.name} has no weight_map, which names the shards")
            shards = sorted(set(map(str, named.values())))
            missing = [shard for shard in shards if not (folder / Path(shard).name).is_file()]
            if missing:
                raise ValueError(f"{folder.name} names shards that are not there: {', '.join(missing)}")
            return [folder / Path(shard).name for shard in shards]
    raise ValueError(f"{folder.name} has no weights; needed is {' or '.join(_WHOLE)}, whole or with an index")


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as fault:
        raise ValueError(f"{file.name} of {file.parent.name} is not JSON: {fault}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file.name} of {file.parent.name} holds no table of names")
    return found


def _open(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        try:
            return load_file(file)
        except SafetensorError as fault:
            raise ValueError(
                f"{file.name} of {file.parent.name} is damaged or cut short: {str(fault).splitlines()[0]}"
            ) from None
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError) as reason:
        raise ValueError(
            f"{file.name} is not a plain file of weights, and other files are not opened: "
            f"{str(reason).splitlines()[0]}"
        ) from None
    loaded = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else loaded
    if not isinstance(loaded, dict) or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise ValueError(f"{file.name} holds something other than named tensors")
    return loaded


# ---------------------------------------------------------------- what it is


def recognise(tensors: Mapping[str, Tensor], source: str) -> Kind:
    """Which format these tensors are in; ValueError with a sentence for formats that are not served."""
    if "layers.1.cross_attn.q_proj.weight" in tensors:
        return "dream"
    if "img_fc.weight" in tensors or "imadpt.q" in tensors:
        return "vispec"
    if "layers.0.hidden_norm.weight" in tensors or "d2t" in tensors:
        return "eagle3"
    if "fc.weight" in tensors and "layers.0.self_attn.q_proj.weight" in tensors:
        if "layers.0.input_layernorm.weight" in tensors:
            raise ValueError(
                f"{source} looks like an MSD head (its block has an input norm), which is not served"
            )
        rows, columns = tensors["fc.weight"].shape
        if columns == 2 * rows:
            return "eagle2"
        if columns == 3 * rows and "residual" in tensors:
            return "hivis"
        if columns == 3 * rows:
            raise ValueError(
                f"{source} has the projection of a HiViS head, but its step embeddings are missing"
            )
    known = ", ".join(sorted(tensors)[:4])
    raise ValueError(
        f"{source} is no head this software knows (EAGLE-2, HiViS, DREAM, ViSpec, EAGLE-3); it holds "
        f"{len(tensors)} tensors: {known}{', ...' if len(tensors) > 4 else ''}"
    )


@dataclass(frozen=True)
class _Expected:
    """Names a format must have, may have, and may have for no use of ours."""

    required: frozenset[str]
    optional: frozenset[str]
    unused: frozenset[str] = frozenset({"embed_tokens.weight", "lm_head.weight", "head.weight"})


def _expected(kind: Kind, tensors: Mapping[str, Tensor]) -> _Expected:
    block = {f"layers.0.{name}" for name in _BLOCK}
    biases = {f"layers.0.{name}" for name in _BIASES}
    if kind == "eagle2":
        return _Expected(frozenset(block | {"fc.weight"}), frozenset(biases | {"fc.bias"}))
    if kind == "hivis":
        return _Expected(frozenset(block | {"fc.weight", "residual"}), frozenset(biases | {"fc.bias"}))
    if kind == "dream":
        cross = {f"cross_attn.{n}_proj.weight" for n in "qkvo"} | {
            f"cross_attn.{n}_norm.weight" for n in "qk"
        }
        cross |= {"input_layernorm.weight", "cross_attn_attn_gate", "cross_attn_mlp_gate"}
        cross |= {name for name in _BLOCK if not name.startswith("self_attn")}
        last = {*_BLOCK, "input_layernorm.weight"}
        names = block | {f"layers.1.{n}" for n in cross} | {f"layers.2.{n}" for n in last} | {"norm.weight"}
        return _Expected(frozenset(names), frozenset())
    if kind == "vispec":
        adaptor = {"imadpt.q", *(f"imadpt.{n}_proj.weight" for n in "kvo")}
        optional = biases | {"fc.bias", "img_fc.bias", "imadpt.k_proj.bias", "imadpt.v_proj.bias"}
        return _Expected(frozenset(block | adaptor | {"fc.weight", "img_fc.weight"}), frozenset(optional))
    norms = {"layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight", "norm.weight"}
    maps = {"d2t", "lm_head.weight"} if "d2t" in tensors else set()
    return _Expected(
        frozenset(block | norms | maps | {"fc.weight"}),
        frozenset(biases | {"lm_head.weight"}),
        frozenset({"embed_tokens.weight", "t2d"}),
    )


def _every_key(kind: Kind, tensors: Mapping[str, Tensor], expected: _Expected, source: str) -> None:
    missing = sorted(expected.required - tensors.keys())
    if missing:
        raise ValueError(f"{source} is {TITLES[kind]} but lacks {', '.join(missing)}")
    known = expected.required | expected.optional | expected.unused
    strange = sorted(name for name in tensors.keys() - known if not name.endswith("rotary_emb.inv_freq"))
    if strange:
        raise ValueError(
            f"{source} is {TITLES[kind]} but also holds {', '.join(strange)}, whose use is unknown"
        )


# ---------------------------------------------------------------- shapes


def _width(tensors: Mapping[str, Tensor]) -> int:
    return tensors["layers.0.mlp.down_proj.weight"].shape[0]


def _geometry(
    kind: Kind, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], source: str
) -> Geometry:
    width, heads = _width(tensors), settings.get("num_attention_heads")
    if not isinstance(heads, int):
        raise ValueError(
            f"the config.json of {source} does not say num_attention_heads, which shapes cannot tell"
        )
    if settings.get("hidden_act", "silu") != "silu":
        raise ValueError(f"{source} has the activation {settings['hidden_act']}; served is silu")
    q_rows = tensors["layers.0.self_attn.q_proj.weight"].shape[0]
    head_width, rest = divmod(q_rows, heads)
    kv_heads, kv_rest = divmod(tensors["layers.0.self_attn.k_proj.weight"].shape[0], max(1, head_width))
    if rest or kv_rest or not kv_heads or heads % kv_heads:
        k_rows = tensors["layers.0.self_attn.k_proj.weight"].shape[0]
        raise ValueError(
            f"{source} says {heads} attention heads, which does not divide its {q_rows} query rows and "
            f"{k_rows} key rows into heads of one width"
        )
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    sections = tuple(rope.get("mrope_section", ()))
    if rope_type not in ("default", "mrope"):
        raise ValueError(
            f"{source} has rotary positions of type {rope_type}; served are plain and three-axis ones"
        )
    if sections and sum(sections) != head_width // 2:
        raise ValueError(
            f"{source} has rotary sections {list(sections)} for heads of {head_width // 2} pairs"
        )
    theta = settings.get("rope_theta", rope.get("rope_theta", 10000.0))
    return Geometry(
        width,
        heads,
        kv_heads,
        head_width,
        float(settings.get("rms_norm_eps", 1e-6)),
        float(theta),
        sections,
        bool(rope.get("mrope_interleaved", False)),
    )


def _every_shape(
    kind: Kind, tensors: Mapping[str, Tensor], geometry: Geometry, decoder: Decoder, source: str
) -> None:
    d, q = geometry.width, geometry.heads * geometry.head_width
    kv = geometry.kv_heads * geometry.head_width
    wide = 2 * d if kind == "eagle3" else d
    for name, tensor in sorted(tensors.items()):
        layer = ".".join(name.split(".")[:2])
        ffn = tensors[f"{layer}.mlp.gate_proj.weight"].shape[0] if name.startswith("layers.") else 0
        rules: dict[str, tuple[int, ...]] = {
            "q_proj.weight": (q, wide),
            "k_proj.weight": (kv, wide),
            "v_proj.weight": (kv, wide),
            "o_proj.weight": (d, q),
            "q_proj.bias": (q,),
            "k_proj.bias": (kv,),
            "v_proj.bias": (kv,),
            "q_norm.weight": (geometry.head_width,),
            "k_norm.weight": (geometry.head_width,),
            "gate_proj.weight": (ffn, d),
            "up_proj.weight": (ffn, d),
            "down_proj.weight": (d, ffn),
            "input_layernorm.weight": (d,),
            "post_attention_layernorm.weight": (d,),
            "hidden_norm.weight": (d,),
            "cross_attn_attn_gate": (1,),
            "cross_attn_mlp_gate": (1,),
        }
        whole: dict[str, tuple[int, ...]] = {
            "fc.weight": (d, {"eagle2": 2, "vispec": 2}.get(kind, 3) * d),
            "fc.bias": (d,),
            "img_fc.weight": (d, 2 * d),
            "img_fc.bias": (d,),
            "norm.weight": (d,),
            "residual": (tensor.shape[0], d),
            "lm_head.weight": (tensors["d2t"].shape[0] if "d2t" in tensors else decoder.vocab, d),
            "d2t": (tensor.shape[0],),
        }
        last = ".".join(name.split(".")[-2:]) if name.endswith((".weight", ".bias")) else name.split(".")[-1]
        needed = whole.get(name) or (rules.get(last) if name.startswith("layers.") else None)
        if needed is not None and tuple(tensor.shape) != needed:
            raise ValueError(f"{source}: {name} should be {list(needed)}, it is {list(tensor.shape)}")


def _same_embeddings(tensors: Mapping[str, Tensor], decoder: Decoder, source: str) -> None:
    """A head's own copy of the embeddings must be the target's, which is used in its place."""
    table = tensors.get("embed_tokens.weight")
    if table is None or table.shape[-1] != decoder.width:
        return
    rows = torch.linspace(0, min(table.shape[0], decoder.vocab) - 1, 64).round().long().unique()
    theirs, ours = table[rows].float(), decoder.embed(rows.to(decoder.device)).float().cpu()
    # Some families scale what the table holds, so directions are compared; rows of unused ids may be zero.
    alike = torch.nn.functional.cosine_similarity(theirs, ours, dim=-1).median().item()
    if alike < 0.99:
        raise ValueError(
            f"{source} was trained for another model: its embeddings and the target's agree to {alike:.2f}"
        )
