"""Qwen3.5's own MTP layer: random tensors under their published names among a random target's
weights, from a folder to a race.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specvl_demo.core.engine import Lane, SharedPrefill, race
from specvl_demo.methods.base import assemble, choose
from specvl_demo.methods.heads import checkpoints
from specvl_demo.methods.heads.features import FeatureDrafter
from specvl_demo.question import Question
from specvl_demo.records import Round
from specvl_demo.serving import choosing, loader
from specvl_demo.serving.custom import custom_pair
from specvl_demo.serving.loader import Loaded
from tests.conftest import ask
from tests.contract.families import zoo
from tests.heads import begun

pytest.importorskip("torchvision", reason="the processor of this family needs torchvision")

TOKENS = 12
OWN = "model.safetensors"
FC = "mtp.fc.weight"


def tensors_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """The published names: those of a layer that attends, a projection, three norms."""
    text = model.model.language_model
    layer = next(one for one in text.layers if hasattr(one, "self_attn"))
    width, make = text.config.hidden_size, torch.Generator().manual_seed(3)

    def small(*shape: int) -> Tensor:
        return torch.randn(shape, generator=make) * shape[-1] ** -0.5

    norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    return {
        **{f"mtp.layers.0.{n}": small(*p.shape) for n, p in layer.state_dict().items()},
        "mtp.fc.weight": small(width, 2 * width),
        **{f"mtp.{name}.weight": small(width) for name in norms},
    }


def write(
    folder: Path, name: str, change: Callable[[dict[str, Tensor]], object] = lambda tensors: None
) -> Path:
    model, processor = zoo.build(name, make=zoo.RECURRENT[name])
    model.config.text_config.mtp_num_hidden_layers = 1
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    tensors = tensors_of(model)
    change(tensors)
    save_file(load_file(folder / OWN) | tensors, folder / OWN, metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module", params=list(zoo.RECURRENT))
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    pair = custom_pair(str(write(tmp_path_factory.mktemp("target"), request.param)))
    assert list(pair.drafters) == ["mtp"] and "mtp" in choosing.served(pair)
    return loader.load(pair)


@pytest.mark.parametrize("shown", [(), (zoo.picture(0),)], ids=["text", "a picture"])
def test_it_says_what_the_target_says(loaded: Loaded, shown: tuple[object, ...]) -> None:
    prompt = loaded.prompter.prompt(Question("what is this ?", shown))
    shared = SharedPrefill(ask(loaded.models.target, prompt, max_new_tokens=TOKENS))
    lanes = [
        Lane(name, assemble(choose(name, more), loaded.models), shared)
        for name, more in (("ar", {}), ("mtp", {"gamma": 3}))
    ]
    rounds = [one for one in race(lanes) if isinstance(one, Round)]
    said = {
        lane: [token.id for one in rounds if one.lane == lane for token in one.tokens]
        for lane in ("ar", "mtp")
    }
    assert said["mtp"] == said["ar"] and len(said["ar"]) == TOKENS
    assert any(len(one.tree.tokens) == 4 for one in rounds if one.lane == "mtp")


@torch.inference_mode()
def test_its_drafts_are_those_of_a_plain_forward(loaded: Loaded) -> None:
    """All rows at once through the library's layer: x_i = fc [norm e_i, norm f_(i-1)], at the
    position of f_(i-1), then the norm; the second draft reads the first one's output.
    """
    target, models = loaded.models.target, loaded.models
    text = target.vlm.model.model.language_model
    t = tensors_of(target.vlm.model)
    at = next(i for i, one in enumerate(text.layers) if hasattr(one, "self_attn"))
    layer = type(text.layers[at])(text.config, at).eval()
    layer.load_state_dict({n.removeprefix("mtp.layers.0."): v for n, v in t.items() if "s.0." in n})

    def norm(name: str, x: Tensor) -> Tensor:
        x = x * (x.pow(2).mean(-1, keepdim=True) + text.config.rms_norm_eps).rsqrt()
        return x * (1 + t[f"mtp.{name}.weight"])

    drafter = FeatureDrafter(models.drafters["mtp"])
    start = begun(target, drafter, loaded.prompter.prompt(Question("what is this ? it is")), 8)
    ids = start.encoded.ids
    said = [drafter.extend(ids[-1:], (-1,))]
    drafted = said[0].argmax(-1)
    said.append(drafter.extend(drafted, (0,)))
    embeds, features = text.embed_tokens(torch.cat((ids[1:], drafted))), start.prefill.hidden
    for row in said:
        x = (
            torch.cat(
                (
                    norm("pre_fc_norm_embedding", embeds[: len(features)]),
                    norm("pre_fc_norm_hidden", features),
                ),
                -1,
            )
            @ t["mtp.fc.weight"].t()
        )
        turns = text.rotary_emb(x[None], torch.arange(len(x)).expand(3, 1, -1))
        out = norm("norm", layer(x[None], position_embeddings=turns, attention_mask=None)[0])
        logits = target.decoder.logits(out[-1]).index_fill(
            -1, torch.tensor(start.vocabulary.banned), -torch.inf
        )
        torch.testing.assert_close(row[0], logits.log_softmax(-1), atol=2e-4, rtol=2e-4)
        features = torch.cat((features, out[-1:]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.pop("mtp.layers.0.self_attn.q_norm.weight"), "not like its target's layers"),
        (lambda t: t.update({"mtp.layers.1.a": torch.ones(2)}), "also layers.1.a, whose use"),
        (lambda t: t.update({"mtp.fc.weight": torch.ones(4, 8)}), "projects 8 numbers to 4"),
        (
            lambda t: t.update({FC: t[FC].to(torch.float8_e4m3fn)}),
            "fc.weight in 8-bit floats without fc.weight_scale",
        ),
    ],
)
def test_a_layer_of_another_form_is_refused_in_a_sentence(
    change: Callable[[dict[str, Tensor]], object], sentence: str, tmp_path: Path
) -> None:
    pair = custom_pair(str(write(tmp_path, "qwen3.5", change)))
    with pytest.raises(ValueError, match=sentence):
        loader.load(pair)


def test_a_layer_in_eight_bit_floats_is_read_with_its_scales(tmp_path: Path) -> None:
    """In blocks of 128, as Qwen publishes it."""

    def pack(tensors: dict[str, Tensor]) -> None:
        for name in [name for name, tensor in tensors.items() if tensor.ndim == 2]:
            scale = torch.tensor([[tensors[name].abs().max().item() / 448]])
            tensors[name + "_scale_inv"] = scale
            tensors[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)

    packed = loader.load(custom_pair(str(write(tmp_path / "packed", "qwen3.5", pack))))
    plain = loader.load(custom_pair(str(write(tmp_path / "plain", "qwen3.5"))))
    ours, theirs = (one.models.drafters["mtp"]._fc for one in (packed, plain))
    torch.testing.assert_close(ours, theirs, atol=0.01, rtol=0.07)


def test_a_target_whose_files_lack_the_layer_drafts_without_it(tmp_path: Path) -> None:
    folder = write(tmp_path, "qwen3.5", lambda tensors: tensors.clear())
    assert custom_pair(str(folder)).drafters == {}
    assert checkpoints.role_in(folder) is None
