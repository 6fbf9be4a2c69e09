"""Trained heads on disk: published formats recognised by their tensors, every key accounted for.

Given a folder with config.json and weights (safetensors or .bin, whole or sharded), returns one
head's tensors under canonical names, its geometry and its settings; raises ValueError with one
sentence for what does not fit the target. Pickled code is never executed. Knows formats only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.methods.base import Opening
from specvl_demo.methods.heads.blocks import Geometry, Tensors
from specvl_demo.methods.heads.files import (
    differences,
    drop_target_embeddings,
    read_head,
    refuse_unserved,
    rotary_settings,
)
from specvl_demo.records import JsonObject
from specvl_demo.vlm.eight_bits import refuse_unscaled
from specvl_demo.vlm.shared_drafter import DRAFT_IDS, SECTION

STRETCH = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
"""What a config says of llama3's rotary positions, in the order of `Geometry.stretch`."""
Shapes = Mapping[str, str]
"""Shapes by name, a word for each dimension: D the target's width; Q and K all heads of queries and
of keys, H one head; F the MLP's width; S all states that are fused; V the head's vocabulary; N any
number; 2D is twice D. A * stands for any shape.
"""

_ROWS = (("q", "Q"), ("k", "K"), ("v", "K"))


def attention_shapes(name: str, inputs: str = "D") -> Shapes:
    """Return the projections of an attention."""
    projections = {f"{name}.{letter}_proj.weight": f"{rows} {inputs}" for letter, rows in _ROWS}
    return {**projections, f"{name}.o_proj.weight": "D Q"}


def in_layer(number: int | str, shapes: Shapes) -> Shapes:
    return {f"layers.{number}.{name}": shape for name, shape in shapes.items()}


MLP: Shapes = {
    "mlp.gate_proj.weight": "F D",
    "mlp.up_proj.weight": "F D",
    "mlp.down_proj.weight": "D F",
    "post_attention_layernorm.weight": "D",
}
BLOCK: Shapes = {**attention_shapes("self_attn"), **MLP}
"""A Llama-type block without a norm before it."""
FIRST = in_layer(0, BLOCK)
COPIES: Shapes = {"embed_tokens.weight": "N D", "lm_head.weight": "V D", "head.weight": "*"}
"""Of the target's own tables."""
BIASES = in_layer(0, {f"self_attn.{name}_proj.bias": rows for name, rows in _ROWS})


@dataclass(frozen=True, eq=False)
class HeadFormat:
    """A published format of trained heads, registered by the method that drafts with it.

    Attributes:
        kind: Its name in cards and messages, and the role in a pair that its heads have.
        title: With an article.
        build: build(head, decoder): the class that drafts.
        recognised: Whether tensors are in this format.
        required: Tensors that it must have.
        every_layer: Tensors that each layer must have after `layers.N.`, if their number is free.
        optional: Tensors that it may have.
        unused: Tensors that it may have and that are not used here.
        own_embeddings: Whether it may draft with its own.
        windows: Whether it applies sliding windows.
        of_target: of_target(tensors, config, source, width): the geometry of a head whose block is
            one of the target's own layers, whose class checks names and shapes.
    """

    kind: str
    title: str
    build: Callable[[Head, LanguageBackend], Any]
    recognised: Callable[[Tensors], bool]
    required: Shapes
    optional: Shapes = field(default_factory=lambda: {**BIASES, "fc.bias": "D"})
    every_layer: Shapes = field(default_factory=dict)
    unused: Shapes = field(default_factory=lambda: COPIES)
    own_embeddings: bool = False
    windows: bool = False
    of_target: Callable[[Tensors, JsonObject, str, int], Geometry] | None = None

    def needed_shapes(self, tensors: Tensors) -> dict[str, str]:
        """Return what must be among these tensors."""
        needed = dict(self.required)
        for number in {name.split(".")[1] for name in tensors if name.startswith("layers.")}:
            needed |= in_layer(number, self.every_layer)
        return needed


FORMATS: dict[str, HeadFormat] = {}
"""By kind; `features.head_part` adds a method's format."""


def open_pair_head(kind: str, opening: Opening) -> Any:
    """Return what drafts with a pair's head of this kind, which is its role too."""
    # .bin files of heads are read as plain weights, in which nothing can run.
    text = opening.target.vlm.model.config.get_text_config().to_dict()
    return open_head(opening.fetch(True), opening.target.decoder, kind, text)


@dataclass(frozen=True)
class Head:
    """One trained head, ready to be built.

    Attributes:
        settings: config.json, with the layer's nested section lifted to the top.
        specvl: This project's section of it.
        remarks: What a user should know before relying on it, in sentences.
    """

    kind: str
    tensors: Tensors
    geometry: Geometry
    settings: JsonObject
    source: str
    specvl: JsonObject
    remarks: tuple[str, ...] = ()


def load_head(
    folder: Path,
    decoder: LanguageBackend,
    kind: str | None = None,
    target: JsonObject | None = None,
) -> Head:
    """Read the head in `folder` for this target, on its device and in its type.

    Args:
        kind: What it must have; None for any.
        target: The text config of the target, to compare with.

    Raises:
        ValueError: With one sentence if the files do not fit.
    """
    tensors, settings = read_head(folder)
    source = folder.name
    form = recognise(tensors, source, kind)
    remarks = [] if form.of_target else differences(settings, target or {}, source, form.windows)
    remarks += drop_target_embeddings(tensors, decoder, form.own_embeddings, source)
    geometry = check_fit(form, tensors, settings, source, decoder.width, decoder.vocab)
    used = {*form.needed_shapes(tensors), *form.optional, DRAFT_IDS}
    tensors = {k: v for k, v in tensors.items() if k in used or form.of_target}
    damaged = [name for name, tensor in sorted(tensors.items()) if not tensor.isfinite().all()]
    if damaged:
        raise ValueError(
            f"{source} has numbers that are not finite in {', '.join(damaged)}: its weights are"
            " damaged; fetch or train it again"
        )
    # Some files hold them as floats, which half precision would round.
    whole = {name: tensors[name].long() for name in ("d2t", DRAFT_IDS) if name in tensors}
    moved = {
        name: tensor.to(
            decoder.device, decoder.dtype if tensor.is_floating_point() else tensor.dtype
        )
        for name, tensor in (tensors | whole).items()
    }
    specvl = settings.get(SECTION, {})
    return Head(form.kind, moved, geometry, settings, source, specvl, tuple(remarks))


def check_fit(
    form: HeadFormat,
    tensors: Tensors,
    settings: JsonObject,
    source: str,
    width: int,
    vocab: int,
) -> Geometry:
    """Return the geometry of a head for a target of this width and vocabulary; ValueError with a
    sentence if its names or shapes are not those of its format. The tensors' data is not read.
    """
    refuse_unscaled(tensors, source)
    if form.of_target is not None:
        return form.of_target(tensors, settings, source, width)
    refuse_unserved(settings, source, form.title)
    shapes = _check_names(form, tensors, source)
    trained_width = tensors["layers.0.mlp.down_proj.weight"].shape[0]
    if trained_width != width:
        raise ValueError(
            f"{source} is {form.title} for targets of width {trained_width}, not {width}"
        )
    geometry = _geometry(tensors, settings, source, width)
    _check_shapes(shapes, tensors, geometry, vocab, source)
    return geometry


def open_head(
    folder: Path,
    decoder: LanguageBackend,
    kind: str | None = None,
    target: JsonObject | None = None,
) -> Any:
    """Return what drafts with the head in `folder`, shared by lanes; otherwise as `load_head`."""
    head = load_head(folder, decoder, kind, target)
    return FORMATS[head.kind].build(head, decoder)


def role_in(folder: Path) -> str | None:
    """Return which role the head in a folder serves; None if it holds no head in a known format."""
    try:
        tensors, _ = read_head(folder, outline=True)
        return recognise(tensors, folder.name).kind
    except ValueError:
        return None


def recognise(tensors: Tensors, source: str, kind: str | None = None) -> HeadFormat:
    """Return the format of these tensors; ValueError if none is known, or it is not `kind`."""
    form = next((form for form in FORMATS.values() if form.recognised(tensors)), None)
    if form is None:
        held = ", ".join(sorted(tensors)[:4])
        formats = ", ".join(FORMATS)
        raise ValueError(
            f"{source} is not a head in a known format ({formats}); it has {len(tensors)} tensors:"
            f" {held}{', ...' if len(tensors) > 4 else ''}"
        )
    if kind is not None and kind != form.kind:
        raise ValueError(
            f"{source}: {FORMATS[kind].title} was needed, the tensors are those of {form.title}"
        )
    return form


def n_rows_joined(tensors: Tensors) -> int:
    """Return how many rows of its width a head's projection reads; 0 without a plain block."""
    plain = (
        "layers.0.self_attn.q_proj.weight" in tensors
        and "layers.0.input_layernorm.weight" not in tensors
    )
    if "fc.weight" not in tensors or not plain:
        return 0
    rows, wide = tensors["fc.weight"].shape
    return wide // rows if wide % rows == 0 else 0


def _check_names(form: HeadFormat, tensors: Tensors, source: str) -> Shapes:
    """Return the shapes of a format's tensors; ValueError if one is missing or unknown."""
    needed = form.needed_shapes(tensors)
    missing = sorted(needed - tensors.keys())
    if missing:
        raise ValueError(f"{source} is {form.title} but lacks {', '.join(missing)}")
    shapes = {**needed, **form.optional, **form.unused, DRAFT_IDS: "*"}
    strange = sorted(
        name for name in tensors if name not in shapes and not name.endswith("rotary_emb.inv_freq")
    )
    if strange:
        raise ValueError(
            f"{source} is {form.title} but also holds {', '.join(strange)}, whose use is unknown"
        )
    return shapes


def _geometry(tensors: Tensors, settings: JsonObject, source: str, width: int) -> Geometry:
    heads = settings.get("num_attention_heads")
    if not isinstance(heads, int):
        raise ValueError(
            f"the config.json of {source} lacks num_attention_heads, which shapes do not determine"
        )
    if settings.get("hidden_act", "silu") != "silu":
        raise ValueError(f"{source} has the activation {settings['hidden_act']}; it must be silu")
    q_rows, k_rows = (len(tensors[f"layers.0.self_attn.{name}_proj.weight"]) for name in "qk")
    head_width, rest = divmod(q_rows, heads)
    kv_heads, kv_rest = divmod(k_rows, max(1, head_width))
    if rest or kv_rest or not kv_heads or heads % kv_heads:
        raise ValueError(
            f"{source} has {heads} attention heads, which do not divide its {q_rows} query rows"
            f" and {k_rows} key rows into heads of one width"
        )
    stated = {
        "hidden_size": width,
        "intermediate_size": len(tensors["layers.0.mlp.gate_proj.weight"]),
        "head_dim": head_width,
        "num_key_value_heads": kv_heads,
    }
    for name, size in stated.items():
        if settings.get(name, size) != size:
            raise ValueError(
                f"the config.json of {source} has {name} {settings[name]!r}, but its tensors have"
                f" {size}"
            )
    rope = rotary_settings(settings)
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    sections = tuple(rope.get("mrope_section", ()))
    if rope_type not in ("default", "mrope", "llama3"):
        raise ValueError(
            f"{source} has rotary positions of type {rope_type}; supported are plain, three-axis"
            " and llama3 ones"
        )
    stretch = tuple(float(rope.get(name, 0)) for name in STRETCH) if rope_type == "llama3" else ()
    if not all(stretch):
        raise ValueError(
            f"{source} has rotary positions of type llama3; its config must have"
            f" {', '.join(STRETCH)}"
        )
    if sections and sum(sections) != head_width // 2:
        raise ValueError(
            f"{source} has rotary sections {list(sections)}, which do not fit heads of"
            f" {head_width // 2} rotary pairs"
        )
    return Geometry(
        width,
        heads,
        kv_heads,
        head_width,
        float(settings.get("rms_norm_eps", 1e-6)),
        float(rope.get("rope_theta", 10000.0)),
        sections,
        bool(rope.get("mrope_interleaved", False)),
        stretch,
    )


def _check_shapes(shapes: Shapes, tensors: Tensors, g: Geometry, vocab: int, source: str) -> None:
    sizes = {
        "1": 1,
        "D": g.width,
        "H": g.head_width,
        "Q": g.heads * g.head_width,
        "K": g.kv_heads * g.head_width,
        "F": tensors["layers.0.mlp.gate_proj.weight"].shape[0],
        "V": tensors["d2t"].shape[0] if "d2t" in tensors else vocab,
    }
    if "fc.weight" in tensors:
        sizes["S"] = tensors["fc.weight"].shape[1] // g.width * g.width
    for name, tensor in sorted(tensors.items()):
        if (shape := shapes.get(name, "*")) == "*":
            continue
        sizes["N"] = tensor.shape[0]
        needed = [int(word[:-1] or 1) * sizes[word[-1]] for word in shape.split()]
        if list(tensor.shape) != needed:
            raise ValueError(f"{source}: {name} must have shape {needed}, not {[*tensor.shape]}")
