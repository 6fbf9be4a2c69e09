"""The vendors' own drafters, random ones under their published names, from folders to a race:
Qwen3.5's MTP layer among its target's weights, and Gemma 4's assistant beside its target.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close
from transformers import DynamicCache

from specvl_demo.core.engine import Lane, SharedPrefill, race
from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Verdict
from specvl_demo.methods.base import build_parts, choose
from specvl_demo.methods.heads import checkpoints
from specvl_demo.methods.heads.features import FeatureDrafter
from specvl_demo.methods.native import AssistantDrafter
from specvl_demo.question import Question
from specvl_demo.records import Begin
from specvl_demo.serving import choosing, loader
from specvl_demo.serving.custom import custom_pair
from specvl_demo.serving.loaded import LoadedPair
from specvl_demo.vlm import outlines
from tests.contract.families.conftest import often
from tests.shared import zoo
from tests.shared.heads import begun
from tests.shared.refusals import refuses
from tests.shared.tiny import ask, ids_of, rounds_of

pytest.importorskip("torchvision", reason="the processors of these families need torchvision")
if not hasattr(hf, "Gemma4AssistantForCausalLM"):
    pytest.skip("this transformers has no Gemma 4 assistants", allow_module_level=True)
outlines.mend_gemma4()

TOKENS = 12
OWN = "model.safetensors"
FC = "mtp.fc.weight"
BEST_FIRST = {"policy": "best-first", "nodes": 9, "width": 3, "loops": 2}


def layer_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """The published names: those of a layer that attends, a projection, three norms."""
    text = model.model.language_model
    layer = next(layer for layer in text.layers if hasattr(layer, "self_attn"))
    width, make = text.config.hidden_size, torch.Generator().manual_seed(3)

    def small(*shape: int) -> Tensor:
        return torch.randn(shape, generator=make) * shape[-1] ** -0.5

    norms = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    return {
        **{f"mtp.layers.0.{n}": small(*p.shape) for n, p in layer.state_dict().items()},
        FC: small(width, 2 * width),
        **{f"mtp.{name}.weight": small(width) for name in norms},
    }


def write_qwen(
    folder: Path, name: str, change: Callable[[dict[str, Tensor]], object] = lambda tensors: None
) -> Path:
    model, processor = zoo.build(name)
    model.config.text_config.mtp_num_hidden_layers = 1
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    tensors = layer_tensors(model)
    change(tensors)
    save_file(load_file(folder / OWN) | tensors, folder / OWN, metadata={"format": "pt"})
    return folder


def assistant(target: torch.nn.Module, width: int) -> hf.Gemma4AssistantForCausalLM:
    like = target.config.text_config.to_dict()
    del like["per_layer_config"]
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2}
    layers = {"layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 2}
    text = hf.Gemma4TextConfig(**like | sizes | layers | {"global_head_dim": 32})
    torch.manual_seed(5)
    config = hf.Gemma4AssistantConfig(text_config=text, backbone_hidden_size=width)
    return hf.Gemma4AssistantForCausalLM(config).eval()


def write_gemma(folder: Path, width: int | None = None) -> tuple[Path, Path]:
    """A target and its assistant, made for a target of another width if one is given."""
    model, processor = zoo.build("gemma4")
    model.save_pretrained(folder / "target")
    processor.save_pretrained(folder / "target")
    made = assistant(model, width or model.config.text_config.hidden_size)
    made.save_pretrained(folder / "drafter")
    processor.tokenizer.save_pretrained(folder / "drafter")
    return folder / "target", folder / "drafter"


@pytest.fixture(scope="module", params=often(zoo.RECURRENT))
def qwen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedPair:
    pair = custom_pair(str(write_qwen(tmp_path_factory.mktemp("target"), request.param)))
    assert list(pair.drafters) == ["mtp"] and "mtp" in choosing.supported_methods(pair)
    return loader.load_pair(pair)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> LoadedPair:
    pair = custom_pair(*map(str, write_gemma(tmp_path_factory.mktemp("gemma4"))))
    assert list(pair.drafters) == ["assistant"] and "native" in choosing.supported_methods(pair)
    return loader.load_pair(pair)


PICTURES = pytest.mark.parametrize("pictures", [(), (zoo.picture(0),)], ids=["text", "a picture"])


def check_answer(
    loaded: LoadedPair, pictures: tuple, method: str, settings: dict, nodes: int
) -> None:
    """The answer is the target's; some tree has this many nodes."""
    prompt = loaded.prompter.prompt(Question("what is this ?", pictures))
    shared = SharedPrefill(ask(loaded.models.target, prompt, max_new_tokens=TOKENS))
    lanes = [
        Lane(name, build_parts(choose(name, values), loaded.models), shared)
        for name, values in (("ar", {}), (method, settings))
    ]
    records = list(race(lanes))
    assert all(begin.lossless for begin in records if isinstance(begin, Begin))
    rounds = rounds_of(records)
    plain, drafted = (ids_of(r for r in rounds if r.lane == lane) for lane in ("ar", method))
    assert drafted == plain and len(plain) == TOKENS
    assert any(len(round_.tree.tokens) == nodes for round_ in rounds if round_.lane == method)


@PICTURES
def test_a_layer_gives_the_targets_answer(qwen: LoadedPair, pictures: tuple):
    check_answer(qwen, pictures, "mtp", {"gamma": 3}, 4)


@PICTURES
@pytest.mark.parametrize("settings", [{"gamma": 3}, BEST_FIRST])
def test_an_assistant_gives_the_targets_answer(gemma: LoadedPair, pictures: tuple, settings: dict):
    check_answer(gemma, pictures, "native", settings, settings.get("nodes", 4))


@torch.inference_mode()
def test_an_assistants_drafts_are_those_of_the_librarys_forward(gemma: LoadedPair):
    """Over keys and values of the library itself, for three drafts in a row after two rounds."""
    target, drafts = gemma.models.target, gemma.models.drafters["assistant"]
    prompt = gemma.prompter.prompt(Question("what is this ? what is this ? what is this ?"))
    drafter = AssistantDrafter(drafts, target.decoder)
    session = begun(target, drafter, prompt, 8).session
    tokens = prompt.ids.tolist()
    model = target.vlm.model.model.language_model
    for _ in range(2):
        log_probs = [drafter.extend(torch.tensor(tokens[-1:]), (-1,))]
        drafted = [int(log_probs[0].argmax())]
        for depth in range(2):
            log_probs.append(drafter.extend(torch.tensor(drafted[-1:]), (depth,)))
            drafted.append(int(log_probs[-1].argmax()))
        cache = DynamicCache()
        states = model(input_ids=torch.tensor([tokens[:-1]]), past_key_values=cache, use_cache=True)
        shared = {
            kind: (cache.layers[layer].keys, cache.layers[layer].values)
            for kind, layer in {"sliding_attention": 1, "full_attention": 2}.items()
        }
        state, fed = states.last_hidden_state[:, -1:], tokens[-1]
        for step, token in enumerate(drafted):
            embedded = model.embed_tokens(torch.tensor([[fed]]))
            made = drafts.model(
                inputs_embeds=torch.cat((embedded, state), -1),
                position_ids=torch.tensor([[len(tokens) - 1]]),
                shared_kv_states=shared,
                use_cache=False,
            )
            allowed = log_probs[step][0].isfinite()
            truth = made.logits[0, 0, : len(allowed)].float().masked_fill(~allowed, -torch.inf)
            assert_close(log_probs[step][0], truth.log_softmax(-1), atol=1e-4, rtol=1e-4)
            state, fed = made.last_hidden_state, token
        tree = DraftTree(torch.tensor(tokens[-1:]), chain(0))
        scores = session.score(tree)
        chosen = int(scores.logits[0].argmax())
        session.commit([0])
        drafter.commit(tree, Verdict([0], [chosen], []), scores)
        tokens.append(chosen)


def test_an_assistant_drafts_only_for_its_own_target(tmp_path: Path):
    target, drafter = write_gemma(tmp_path / "gemma4")
    model, processor = zoo.build("gemma3")
    model.save_pretrained(tmp_path / "other")
    processor.save_pretrained(tmp_path / "other")
    refuses(
        "reads keys and values of a Gemma 4", custom_pair, str(tmp_path / "other"), str(drafter)
    )
    wide = write_gemma(tmp_path / "wide", 96)[1]
    refuses("made for a target 96 wide", loader.load_pair, custom_pair(str(target), str(wide)))
    refuses("is of type 'gemma4_assistant'", custom_pair, str(drafter))


@torch.inference_mode()
def test_a_layers_drafts_are_those_of_a_plain_forward(qwen: LoadedPair):
    """All rows at once through the library's layer: x_i = fc [norm e_i, norm f_(i-1)], at the
    position of f_(i-1), then the norm; the second draft reads the first one's output.
    """
    target, models = qwen.models.target, qwen.models
    text = target.vlm.model.model.language_model
    t = layer_tensors(target.vlm.model)
    at = next(i for i, layer in enumerate(text.layers) if hasattr(layer, "self_attn"))
    layer = type(text.layers[at])(text.config, at).eval()
    layer.load_state_dict({n.removeprefix("mtp.layers.0."): v for n, v in t.items() if "s.0." in n})

    def norm(name: str, x: Tensor) -> Tensor:
        x = x * (x.pow(2).mean(-1, keepdim=True) + text.config.rms_norm_eps).rsqrt()
        return x * (1 + t[f"mtp.{name}.weight"])

    drafter = FeatureDrafter(models.drafters["mtp"])
    start = begun(target, drafter, qwen.prompter.prompt(Question("what is this ? it is")), 8)
    ids = start.encoded.ids
    log_probs = [drafter.extend(ids[-1:], (-1,))]
    drafted = log_probs[0].argmax(-1)
    log_probs.append(drafter.extend(drafted, (0,)))
    embeds, features = text.embed_tokens(torch.cat((ids[1:], drafted))), start.prefill.hidden
    for row in log_probs:
        embedded = norm("pre_fc_norm_embedding", embeds[: len(features)])
        x = torch.cat((embedded, norm("pre_fc_norm_hidden", features)), -1) @ t[FC].t()
        turns = text.rotary_emb(x[None], torch.arange(len(x)).expand(3, 1, -1))
        out = norm("norm", layer(x[None], position_embeddings=turns, attention_mask=None)[0])
        logits = target.decoder.logits(out[-1]).index_fill(
            -1, torch.tensor(start.vocabulary.banned), -torch.inf
        )
        assert_close(row[0], logits.log_softmax(-1), atol=2e-4, rtol=2e-4)
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
):
    pair = custom_pair(str(write_qwen(tmp_path, "qwen3.5", change)))
    refuses(sentence, loader.load_pair, pair)


def test_a_target_whose_files_lack_the_layer_drafts_without_it(tmp_path: Path):
    folder = write_qwen(tmp_path, "qwen3.5", lambda tensors: tensors.clear())
    assert custom_pair(str(folder)).drafters == {}
    assert checkpoints.role_in(folder) is None
