"""What people bring is told before its weights are read: flawed copies of a tiny pair, through the
command line, the check of two models and the loader."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from huggingface_hub.errors import NotASafetensorsRepoError
from safetensors.torch import load_file, save_file

from specvl_demo.__main__ import main
from specvl_demo.compare import peers
from specvl_demo.media import PLACE
from specvl_demo.question import Question
from specvl_demo.serving import custom, loader, session
from specvl_demo.serving.choosing import choose
from specvl_demo.vlm import hub
from tests.contract.families import zoo
from tests.pocketlike import save_pair, tokenizer

FLOAT8 = torch.float8_e4m3fn


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, and a drafter of one layer less with the same words."""
    folder = save_pair(tmp_path_factory.mktemp("pair"))
    edit(folder / "drafter" / "config.json", drop_layer)
    weights = load_file(folder / "drafter" / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "layers.2." not in name}
    vision = {name: tensor for name, tensor in weights.items() if "vision" in name}
    save_file(kept | vision, folder / "drafter" / "model.safetensors", {"format": "pt"})
    return folder


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


def drop_layer(config: dict[str, Any]) -> None:
    text = config["text_config"]
    text["num_hidden_layers"] = 2
    text["layer_types"] = text["layer_types"][:2] if text.get("layer_types") else None


def copied(pair: Path, name: str, to: Path) -> Path:
    shutil.copytree(pair / name, to / name)
    return to / name


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def drop(part: str) -> Callable[[dict[str, torch.Tensor]], object]:
    def change(weights: dict[str, torch.Tensor]) -> None:
        for name in [name for name in weights if part in name]:
            del weights[name]

    return change


def replaced(part: str, made: Callable[[torch.Tensor], torch.Tensor], more: str = "") -> Callable:
    def change(weights: dict[str, torch.Tensor]) -> None:
        name = next(name for name in weights if part in name)
        weights[name] = made(weights[name])
        if more:
            weights[name + more] = torch.ones(1, 1)

    return change


FLAWS: dict[str, tuple[Callable, str]] = {
    "no projector": (drop("projector"), r"its weights lack model\.multi_modal_projector"),
    "no attention": (drop("layers.1.self_attn"), r"its weights lack .*layers\.1\.self_attn.k_proj"),
    "no eyes": (drop("vision_tower"), r"its weights lack .* and \d+ more\."),
    "a stranger": (
        lambda weights: weights.update({"foo.bar": torch.ones(2)}),
        r"its weights also hold foo\.bar\.",
    ),
    "another size": (
        replaced("layers.0.mlp.up_proj", lambda tensor: torch.ones(120, tensor.shape[1])),
        r"have other shapes .*mlp\.up_proj\.weight \(\[120, 64\], not \[96, 64\]\)",
    ),
    "packed in four bits": (
        replaced("layers.0.mlp.up_proj", lambda _: torch.ones(96, 32, dtype=torch.uint8)),
        r"mlp\.up_proj\.weight \(\[96, 32\], not \[96, 64\]\)",
    ),
    "8-bit floats": (
        replaced("q_proj.weight", lambda tensor: tensor.to(FLOAT8), "_scale_inv"),
        r"q_proj\.weight is stored in 8-bit floats, but config.json has no quantization_config",
    ),
}


@pytest.mark.parametrize("name", ["target", "drafter"])
@pytest.mark.parametrize("flaw", FLAWS)
def test_weights_that_are_not_the_configurations_are_refused_by_name(
    flaw: str, name: str, pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, said = FLAWS[flaw]
    flawed = copied(pair, name, tmp_path)
    rewrite(flawed, change)
    folders = {"target": pair / "target", "drafter": pair / "drafter"} | {name: flawed}
    named = ["--target", str(folders["target"]), "--drafter", str(folders["drafter"])]
    assert main(["generate", "--method", "chain", "--prompt", "what", *named]) == 2
    refused = capsys.readouterr().err
    with pytest.raises(ValueError, match=said):
        raise ValueError(refused)
    assert refused.count("\n") == 1 and str(flawed) in refused
    found = custom.check(str(folders["target"]), str(folders["drafter"]))
    assert found.fits is False and found.findings[-1].text == refused.strip()


def test_the_loader_asks_the_same_of_pickled_weights(pair: Path, tmp_path: Path) -> None:
    flawed = copied(pair, "target", tmp_path)
    weights = load_file(flawed / "model.safetensors")
    drop("projector")(weights)
    torch.save(weights, flawed / "pytorch_model.bin")
    (flawed / "model.safetensors").unlink()
    plan = loader.loading.LoadPlan(pickles=True)
    with pytest.raises(ValueError, match="its weights lack .*projector"):
        loader.loading.model(flawed, plan, "flawed")


@pytest.mark.parametrize("family", [*zoo.FAMILIES, *zoo.RECURRENT])
def test_every_family_is_whole_as_the_library_writes_it(family: str, tmp_path: Path) -> None:
    make = zoo.RECURRENT.get(family) or zoo.FAMILIES[family].build
    model, _ = make()
    model.save_pretrained(tmp_path)
    outline = hub.outline(tmp_path, family, sees=True)
    hub.try_out(outline, family)
    assert hub.sizes(outline).params == sum(p.numel() for p in outline.parameters()) > 0


OTHERS: dict[str, dict[str, Any]] = {
    "Bloom": {"n_layer": 1, "n_head": 4},
    "GPTNeoX": {},
    "OPT": {"max_position_embeddings": 48, "ffn_dim": 96},
    "Mamba": {"state_size": 4},
    "Gemma2": {"query_pre_attn_scalar": 16},  # its attention is capped
    "Phi": {},
    "Qwen3": {},
}


@pytest.mark.parametrize("kind", OTHERS)
def test_drafters_whose_attention_cannot_run_are_refused(
    kind: str, pair: Path, tmp_path: Path
) -> None:
    """By what one forward shows; others fit."""
    words = tokenizer()
    sizes = zoo._text(words, num_hidden_layers=1, vocab_size=len(words), hidden_size=32, head_dim=8)
    config = getattr(hf, f"{kind}Config")(**(sizes | OTHERS[kind]))
    getattr(hf, f"{kind}ForCausalLM")(config).save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    found = custom.check(str(pair / "target"), str(tmp_path))
    said = " ".join(finding.text for finding in found.findings)
    assert found.fits is (kind in ("Phi", "Qwen3")), said
    refused = f"cannot run here: {kind}ForCausalLM computes its attention in a way" in said
    assert refused is not found.fits


def test_a_drafter_with_fewer_positions_is_told_and_refuses_what_is_longer(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = copied(pair, "drafter", tmp_path)
    edit(short / "config.json", lambda c: c["text_config"].update(max_position_embeddings=30))
    named = ["--target", str(pair / "target"), "--drafter", str(short)]
    assert main(["models", *named]) == 0
    assert "It takes 30 positions, the target " in capsys.readouterr().out
    asked = ["generate", "--method", "chain", "--prompt", "what is this", *named]
    assert main([*asked, "--max-new-tokens", "12", "--json"]) == 0
    capsys.readouterr()
    assert main([*asked, "--max-new-tokens", "40"]) == 2
    assert "drafter takes 30 positions; this prompt and its answer may need" in (
        capsys.readouterr().err
    )


def brought(folder: Path) -> loader.Loaded:
    return loader.load(custom.custom_pair(str(folder)), [])


def test_an_answer_ends_where_the_tokenizer_says_too(pair: Path, tmp_path: Path) -> None:
    target = copied(pair, "target", tmp_path)
    edit(target / "generation_config.json", lambda c: c.update(eos_token_id=7))
    eos = tokenizer().eos_token_id
    assert brought(target).models.target.vocabulary.eos == {7, eos} != {7}


def test_penalties_are_told_and_the_library_s_rows_run_without_them(
    pair: Path, tmp_path: Path
) -> None:
    target = copied(pair, "target", tmp_path)
    penalties = {"repetition_penalty": 3.0, "no_repeat_ngram_size": 1}
    edit(target / "generation_config.json", lambda c: c.update(penalties))
    told = (
        "The target's generation_config asks for repetition_penalty 3, no_repeat_ngram_size 1; not"
        " applied here."
    )
    loaded = brought(target)
    assert loaded.remarks == [told]
    found = custom.check(str(target), str(pair / "drafter"))
    assert found.fits and told in [finding.text for finding in found.findings]
    asked = session.request(loaded, Question("what is this", max_new_tokens=16))
    (lane,) = session.answers(loaded, asked, [choose(loaded.pair, "ar")])
    ids = [token.id for round_ in lane.rounds for token in round_.tokens]
    library = peers.Library(loaded.models, [peers.HF_GENERATE], [])
    answer = library.answer(peers.HF_GENERATE, asked)
    assert answer is not None and answer.token_ids == ids


TEMPLATES = {
    "raises for a system message": (
        "{% if messages[0].role == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
        "{% for m in messages %}{% for c in m.content %}"
        "{{ '<image>' if c.type == 'image' else c.text }}{% endfor %}{% endfor %}",
        (True, False, True),
    ),
    "has a word for it that it never uses": (
        "{# system #}{% for m in messages if m.role == 'user' %}{% for c in m.content %}"
        "{{ '<image>' if c.type == 'image' else c.text }}{% endfor %}{% endfor %}",
        (True, False, True),
    ),
    "joins texts": (
        "{% for m in messages %}{{ m.role + ': ' + m.content + ' ' }}{% endfor %}answer:",
        (False, True, True),
    ),
    "prints lists": (
        "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}answer:",
        (False, True, True),
    ),
    "takes the last text": (
        "{% for m in messages %}<image>{{ m.content[-1].text }}{% endfor %}",
        (True, False, False),
    ),
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_what_a_chat_template_takes_is_found_by_trying(
    case: str, pair: Path, tmp_path: Path
) -> None:
    template, takes = TEMPLATES[case]
    target = copied(pair, "target", tmp_path)
    (target / "chat_template.jinja").write_text(template)
    loaded = brought(target)
    assert loaded.prompter._format[:2] == takes[:2]
    asked = Question("what is this", (zoo.picture(1),), max_new_tokens=4)
    assert bool(loaded.prompter.prompt(asked).visual.any())
    if not takes[1]:
        with pytest.raises(ValueError, match="does not support a system prompt"):
            session.request(loaded, replace(asked, system="Be brief."))


def test_templates_that_cannot_be_used_are_a_sentence(pair: Path, tmp_path: Path) -> None:
    target = copied(pair, "target", tmp_path)
    for template, said in (
        ("{% for m in messages %}{{ m.content }", "cannot be used: unexpected '}'"),
        (
            "{% for m in messages %}{{ m.name.first }}{% endfor %}",
            "cannot be used: .* has no attribute",
        ),
        ("hello", "leaves out the question or its pictures"),
    ):
        (target / "chat_template.jinja").write_text(template)
        with pytest.raises(ValueError, match=said):
            custom.custom_pair(str(target))


def test_a_format_with_pictures_first_refuses_one_between_texts(pair: Path) -> None:
    loaded = brought(pair / "target")
    picture = zoo.picture(1)
    asked = Question(f"before{PLACE}after{PLACE}", (picture, picture))
    with pytest.raises(ValueError, match="pictures before the text"):
        session.request(loaded, asked)


def test_weights_on_the_hub_are_compared_by_their_headers(
    pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a repository whose file lacks a layer, and of one with other files than safetensors."""
    info = SimpleNamespace(siblings=(), safetensors=None, card_data=None)
    monkeypatch.setattr(hub, "HfApi", lambda **_: SimpleNamespace(model_info=lambda *a, **k: info))

    def folder(repo: str) -> Path:
        return pair / repo.split("/")[1]

    monkeypatch.setattr(hub, "hf_hub_download", lambda repo, name, **_: str(folder(repo) / name))

    flaws: list[str | None] = ["nothing like it", None, "layers.0.mlp"]

    def metadata(repo: str, **_: object) -> SimpleNamespace:
        if flaws[0] is None:
            raise NotASafetensorsRepoError("none")
        weights = load_file(folder(repo) / "model.safetensors")
        drop(flaws[0])(weights)
        tensors = {k: SimpleNamespace(shape=[*v.shape], dtype="F32") for k, v in weights.items()}
        return SimpleNamespace(files_metadata={"model": SimpleNamespace(tensors=tensors)})

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(hub, "get_safetensors_metadata", metadata)
    for fits in (True, True, False):
        found = custom.check("me/target", "me/drafter")
        said = found.findings[-1].text
        assert found.fits is fits and ("its weights lack" in said) is not fits, said
        flaws.pop(0)


def test_heads_of_the_hub_are_known_by_their_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = {
        "dflash": {"architectures": ["DFlashDraftModel"], "dflash_config": {}},
        "dflash of speculators": {"speculators_model_type": "dflash", "draft_vocab_size": 9},
        "eagle3": {"architectures": ["LlamaForCausalLMEagle3"]},
        "a model": {"architectures": ["LlamaForCausalLM"]},
    }
    info = SimpleNamespace(siblings=(), safetensors=None, card_data=None)
    monkeypatch.setattr(hub, "HfApi", lambda: SimpleNamespace(model_info=lambda *a, **k: info))
    file = tmp_path / "config.json"
    monkeypatch.setattr(hub, "hf_hub_download", lambda *a, **k: str(file))
    for name, config in configs.items():
        file.write_text(json.dumps(config))
        card = hub.hub_head("owner/head")
        assert (card and card.family) == (None if name == "a model" else name.split()[0])
