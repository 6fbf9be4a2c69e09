"""Published formats, built to names and shapes on a tiny target, load; what misfits is refused."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specvl_demo.methods.ar import OneNode
from specvl_demo.methods.eagle3 import Eagle3Settings
from specvl_demo.methods.heads import checkpoints
from specvl_demo.methods.heads.blocks import Geometry, Rotary
from specvl_demo.methods.heads.checkpoints import STRETCH, open_head, role_in
from specvl_demo.methods.heads.features import FeatureDrafter
from specvl_demo.methods.policies import BestFirst, BestFirstSettings
from specvl_demo.vlm.encoder import VLM
from tests.shared.heads import DFLASH, D, begun, decode, published, random_tensors, write
from tests.shared.refusals import refuses
from tests.shared.tiny import VOCAB, tiny_llava, tiny_prompt


@pytest.mark.parametrize("form", ["bin", "sharded", "sharded-bin"])
def test_every_form_of_file_holds_the_same_tensors(form: str, deep: object, tmp_path: Path):
    tensors = published("eagle3", deep)
    folders = write(tmp_path / "a", tensors, form), write(tmp_path / "b", tensors)
    one, other = (checkpoints.load_head(folder, deep.decoder).tensors for folder in folders)
    assert one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize("kind", ["eagle2", "dream"])
def test_a_draft_vocabulary_bounds_what_is_drafted(kind: str, deep: object, tmp_path: Path):
    """In whole trees, and the answer stays the target's."""
    tensors = published(kind, deep) | {"draft_ids": torch.arange(20, 50, dtype=torch.int32)}
    drafter = open_head(write(tmp_path, tensors), deep.decoder).new_drafter()
    trees = BestFirst(BestFirstSettings(nodes=8, width=3, loops=2))
    plain, _ = decode(deep, None, OneNode(), tiny_prompt())
    ids, rounds = decode(deep, drafter, trees, tiny_prompt())
    assert ids == plain and len(rounds[0].tree.tokens) == 8
    assert {*rounds[0].tree.tokens[1:]} <= {*range(20, 50)}


@pytest.mark.parametrize("layout", ["block", "row", "one"])
def test_eight_bit_floats_are_read_with_their_scales(layout: str, deep: object, tmp_path: Path):
    """Blocks of 128 as DeepSeek stores them (here whole matrices and parts), rows, or one scale."""
    tensors, stored = published("eagle2", deep), {}
    tensors.pop("embed_tokens.weight")
    for name, tensor in tensors.items():
        if tensor.ndim != 2:
            stored[name] = tensor
            continue
        scale = torch.rand(1, 1) + 0.5
        if layout == "row":
            scale = torch.rand(len(tensor), 1) + 0.5
        elif layout == "block" and tensor.shape[1] > 64:
            scale = torch.rand(1, 2) + 0.5
        spread = (
            scale.repeat_interleave(64, 1)[:, : tensor.shape[1]] if scale.shape[1] > 1 else scale
        )
        stored[name] = (tensor / spread).to(torch.float8_e4m3fn)
        ending = "weight_scale_inv" if layout == "block" else "weight_scale"
        stored[name.removesuffix("weight") + ending] = scale[0, 0] if layout == "one" else scale
    read = checkpoints.load_head(write(tmp_path, stored), deep.decoder).tensors
    plain = checkpoints.load_head(write(tmp_path / "plain", tensors), deep.decoder).tensors
    assert read.keys() == plain.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(read[name], tensor, atol=0.02, rtol=0.07)
    assert role_in(tmp_path) == "eagle2"


def test_the_rotary_base_of_a_head_can_be_set(deep: object, tmp_path: Path):
    """For heads that were trained with another than their config says."""
    tensors = published("eagle3", deep)
    wrong = open_head(write(tmp_path / "a", tensors, rope_theta=1e6), deep.decoder)
    right = open_head(write(tmp_path / "b", tensors, rope_theta=1e4), deep.decoder)
    said = []
    for head in (wrong.with_settings(Eagle3Settings(theta=1e4)), right, wrong):
        drafter = FeatureDrafter(head)
        start = begun(deep, drafter, tiny_prompt())
        with torch.inference_mode():
            said.append(drafter.extend(start.encoded.ids[-1:], (-1,)).clone())
    assert torch.equal(said[0], said[1]) and not torch.equal(said[1], said[2])


Q, FUSED = "layers.0.self_attn.o_proj.weight", "fc.weight"
UNSCALED = torch.zeros(D, 2 * D, dtype=torch.float8_e4m3fn)
STRANGE = {"mystery.weight": torch.ones(2)}
BEYOND = torch.full((40,), VOCAB)
OF_CONFIG = """
eagle2  {"num_attention_heads": 5}  5 attention heads
eagle2  {"rope_scaling": {"type": "yarn"}}  type yarn
eagle2  {"rope_scaling": {"type": "llama3"}}  must have factor
eagle2  {"partial_rotary_factor": 0.5}  partial_rotary_factor 0.5
eagle2  {"rope_parameters": {"partial_rotary_factor": 0.25}}  rotary_factor 0.25
eagle2  {"head_dim": 32}  has head_dim 32, but its tensors have 16
eagle2  {"num_key_value_heads": 2}  num_key_value_heads 2, but its tensors have 4
eagle3  {"eagle_aux_hidden_state_layer_ids": [1, 8]}  layers 1, 8 of its target, which has only 8
eagle3  {"eagle_aux_hidden_state_layer_ids": [1, 7]}  fuses 3 layers, but its config has 2
eagle3  {"eagle_aux_hidden_state_layer_ids": ["two", 4, 5]}  target's layers, not ['two', 4, 5]
eagle3  {"norm_output": true}  not supported: its config has norm_output True
eagle3  {"eagle_config": {"use_aux_hidden_state": false}}  use_aux_hidden_state False
"""
"""The published format, what config.json says otherwise, and the error."""
OF_TENSORS = [
    ("hivis", {Q: None}, {}, f"lacks {Q}"),
    ("eagle2", STRANGE, {}, "also holds mystery.weight"),
    ("dream", {"module.norm.weight": torch.ones(32)}, {}, "must have shape [64], not"),
    ("eagle2", {"embed_tokens.weight": torch.ones(VOCAB, D)}, {}, "for another model"),
    ("eagle2", {FUSED: torch.full((D, 2 * D), torch.nan)}, {}, "not finite in fc.weight"),
    ("eagle3", {"d2t": BEYOND}, {}, f"vocabulary ends at {VOCAB - 1}"),
    ("eagle2", {FUSED: UNSCALED}, {}, "fc.weight in 8-bit floats without fc.weight_scale"),
    ("dflash", {}, DFLASH | {"projector_type": "dflash2"}, "has projector_type 'dflash2'"),
    ("dflash", {}, DFLASH | {"layer_types": ["sliding_attention"] * 2}, "a sliding_window if one"),
    ("nothing", STRANGE, {}, "is not a head in a known format"),
]
"""The published format, what is changed in it (None: left out), its config, and the error."""
REFUSALS = OF_TENSORS + [
    (kind, {}, json.loads(config), sentence)
    for kind, config, sentence in (line.split("  ") for line in OF_CONFIG.strip().splitlines())
]


def test_llama3s_rotary_positions_are_the_librarys():
    """Frequencies of Llama 3.1's stretched positions, from its published config."""
    stretched = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(hidden_size=512, num_attention_heads=4, rope_parameters=stretched)
    wanted, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    stretch = tuple(stretched[name] for name in STRETCH)
    made = Rotary(Geometry(512, 4, 4, 128, theta=500000.0, stretch=stretch), torch.device("cpu"))
    torch.testing.assert_close(made(torch.tensor([1]))[0, 0].angle(), wanted)


@pytest.mark.parametrize(
    ("kind", "changes", "config", "sentence"), REFUSALS, ids=[case[-1] for case in REFUSALS]
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    kind: str, changes: dict, config: dict, sentence: str, deep: object, tmp_path: Path
):
    tensors = {} if kind == "nothing" else published(kind, deep)
    tensors = {name: tensor for name, tensor in (tensors | changes).items() if tensor is not None}
    folder = write(tmp_path / "some-head", tensors, **config)
    assert sentence in refuses("some-head", open_head, folder, deep.decoder)


def test_a_heads_config_that_differs_from_its_targets_gives_a_remark(deep: object, tmp_path: Path):
    """What its config leaves out or sets otherwise: a sentence each, no refusal."""
    target = {"rope_theta": 5e6, "rms_norm_eps": 1e-5}
    config = {"rope_theta": 1e4, "rms_norm_eps": None}
    folder = write(tmp_path / "head", published("eagle2", deep), **config)
    assert checkpoints.load_head(folder, deep.decoder, target=target).remarks == (
        "head has rope_theta 10000, but its target has 5e+06.",
        "The config of head does not set rms_norm_eps; 1e-06 is assumed.",
    )
    # Its table of rotary positions counts before what stands beside it.
    inside = {"rms_norm_eps": 1e-5, "rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e6}}
    write(folder, published("eagle2", deep), **inside)
    head = checkpoints.load_head(folder, deep.decoder, target=target)
    assert head.remarks == () and head.geometry.theta == 5e6


def test_a_wrong_width_or_kind_names_both_sides(target: object, deep: object, tmp_path: Path):
    narrow = Geometry(32, 4, 4, 8)
    folder = write(tmp_path / "narrow", random_tensors("eagle2", narrow))
    refuses("targets of width 32, not 64", open_head, folder, target.decoder)
    folder = write(tmp_path / "other", published("eagle2", target))
    refuses(
        "a DREAM head was needed, the tensors are those of an EAGLE-2 head",
        open_head,
        folder,
        target.decoder,
        "dream",
    )
    folder = write(tmp_path / "three", published("eagle3", target))
    shallow = VLM(tiny_llava(layers=2), "shallow").decoder
    refuses("2 layers are too few", open_head, folder, shallow)


def cut_short(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def one_shard_gone(folder: Path) -> None:
    next(folder.glob("model-00002*")).unlink()


def in_two_shards(folder: Path) -> None:
    save_file({"module.fc.weight": torch.ones(2)}, folder / "model-00002-of-00002.safetensors")
    save_file({"fc.weight": torch.ones(2)}, folder / "model-00001-of-00002.safetensors")


def writes(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def removes(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


INDEX = "model.safetensors.index.json"
DAMAGES = [
    ("safetensors", cut_short, "model.safetensors of head is damaged or cut short"),
    ("sharded", one_shard_gone, "lacks 1 of its 2 weight files (model-00002-of-00002"),
    ("sharded", in_two_shards, "head holds fc.weight twice"),
    ("sharded", writes(INDEX, "{}"), "index.json of head has no weight_map"),
    ("safetensors", removes("model.safetensors"), "has no weights"),
    ("safetensors", removes("config.json"), "has no config.json"),
    ("safetensors", writes("config.json", "<html>"), "config.json of head cannot be read"),
    ("safetensors", writes("config.json", "[]"), "config.json of head is not a JSON object"),
]


@pytest.mark.parametrize(
    ("form", "damage", "sentence"), DAMAGES, ids=[sentence for *_, sentence in DAMAGES]
)
def test_missing_and_damaged_files_are_named(
    form: str, damage: Callable[[Path], object], sentence: str, target: object, tmp_path: Path
):
    folder = write(tmp_path / "head", published("eagle2", target), form)
    damage(folder)
    assert sentence in refuses("head", open_head, folder, target.decoder)


class Trap:
    """Pickled, it would leave a mark when unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("form", ["bin", "sharded-bin"])
def test_pickled_code_is_not_executed(form: str, target: object, tmp_path: Path):
    folder = write(tmp_path / "trap", published("eagle2", target), form)
    mark = tmp_path / "executed"
    for file in sorted(folder.glob("*.bin"))[-1:]:
        torch.save({"fc.weight": Trap(mark)}, file)
    refuses("not a plain file of weights", open_head, folder, target.decoder)
    assert not mark.exists()
