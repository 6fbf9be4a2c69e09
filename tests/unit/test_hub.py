"""What people bring is refused before its weights are read: flawed copies of a tiny pair."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from specvl_demo.compare import peers
from specvl_demo.question import Question
from specvl_demo.serving import custom, loader, session
from specvl_demo.serving.choosing import choose
from specvl_demo.serving.loaded import LoadedPair
from specvl_demo.vlm import hub, outlines
from specvl_demo.vlm.prompts import PromptBuilder
from tests.contract.families.conftest import often
from tests.shared import zoo
from tests.shared.commands import refusal, run_json
from tests.shared.pocketlike import make_model, make_processor, save_pair, tokenizer
from tests.shared.refusals import refuses

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


FLAWS = {
    "no projector": (drop("projector"), r"its weights lack model\.multi_modal_projector"),
    "no attention": (drop("layers.1.self_attn"), r"its weights lack .*layers\.1\.self_attn.k_proj"),
    "no eyes": (drop("encoder.layers.0"), r"its weights lack .* and \d+ more\."),
    "a stranger": (
        lambda weights: weights.update({"foo.bar": torch.ones(2)}),
        r"its weights also hold foo\.bar\.",
    ),
    "another size": (
        replaced("layers.0.mlp.up_proj", lambda tensor: torch.ones(120, tensor.shape[1])),
        r"have other shapes .*mlp\.up_proj\.weight \(\[120, 64\], not \[96, 64\]\)",
    ),
    "an unmerged adapter": (
        lambda weights: weights.update({"a.q_proj.base_layer.weight": torch.ones(2)}),
        r"saved with its adapter unmerged \(base_layer, lora_A\): load it with peft",
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


@pytest.mark.parametrize(
    ("flaw", "name"), [*((flaw, "target") for flaw in FLAWS), ("no attention", "drafter")]
)
def test_weights_that_are_not_the_configurations_are_refused_by_name(
    flaw: str, name: str, pair: Path, tmp_path: Path, capsys
):
    change, said = FLAWS[flaw]
    flawed = copied(pair, name, tmp_path)
    rewrite(flawed, change)
    folders = {"target": pair / "target", "drafter": pair / "drafter"} | {name: flawed}
    named = ["--target", str(folders["target"]), "--drafter", str(folders["drafter"])]
    refused = refusal(capsys, "models", *named)
    assert re.search(said, refused) and refused.count("\n") == 1 and str(flawed) in refused


def of_config(**changes: object) -> Callable[[Path], object]:
    return lambda folder: edit(folder / "config.json", lambda c: c.update(changes))


ODD = {
    r"holds an adapter .* merge it into its base": lambda f: (f / hub.ADAPTER[0]).write_text("{}"),
    r"holds an adapter \(adapter_model.bin\)": lambda f: (f / hub.ADAPTER[2]).write_bytes(b"x"),
    r"model\.safetensors of .* is an empty file": lambda f: (f / "model.safetensors").write_bytes(
        b""
    ),
    r"own layout.* such as OpenGVLab/": of_config(model_type="internvl_chat"),
    r"own layout.* such as llava-hf/": of_config(mm_vision_tower="openai/clip"),
}


@pytest.mark.parametrize("said", ODD)
def test_folders_of_other_kinds_name_the_way_out(said: str, pair: Path, tmp_path: Path):
    folder = copied(pair, "target", tmp_path)
    ODD[said](folder)
    refuses(said, custom.custom_pair, str(folder))
    assert hub.text_section({"text_config": None, "vocab_size": 5})["vocab_size"] == 5


@pytest.mark.parametrize("family", often([*zoo.FAMILIES, *zoo.RECURRENT]))
def test_every_family_is_whole_as_the_library_writes_it(family: str, tmp_path: Path):
    model, _ = zoo.build(family)
    model.save_pretrained(tmp_path)
    outline = outlines.outline_model(tmp_path, family, sees=True)
    assert outline.state_dict().keys() == model.state_dict().keys()
    assert outlines.memory_sizes(outline)["kv"] > 0


@pytest.mark.parametrize("kind", ["Mamba", "Qwen3"])
def test_only_language_models_that_are_known_here_draft(kind: str, pair: Path, tmp_path: Path):
    words = tokenizer()
    sizes = zoo._text(words, num_hidden_layers=1, vocab_size=len(words), hidden_size=32, head_dim=8)
    more = {"state_size": 4} if kind == "Mamba" else {}
    config = getattr(hf, f"{kind}Config")(**(sizes | more))
    getattr(hf, f"{kind}ForCausalLM")(config).save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    if kind == "Qwen3":
        assert list(custom.custom_pair(str(pair / "target"), str(tmp_path)).drafters) == ["small"]
        return
    refuses(
        f"is of type '{kind.lower()}'; supported are .*qwen3",
        custom.custom_pair,
        str(pair / "target"),
        str(tmp_path),
    )


def test_a_drafter_of_fewer_positions_says_so_and_refuses_more(pair: Path, tmp_path: Path, capsys):
    short = copied(pair, "drafter", tmp_path)
    edit(short / "config.json", lambda c: c["text_config"].update(max_position_embeddings=30))
    named = ["--target", str(pair / "target"), "--drafter", str(short)]
    assert "takes 30 positions, the target " in str(run_json(capsys, "models", *named))
    line = "generate --method chain --max-new-tokens 40 --prompt"
    refused = refusal(capsys, line, "what is this", *named)
    assert "drafter takes 30 positions; this prompt and its answer may need" in refused


def brought(folder: Path) -> LoadedPair:
    return loader.load_pair(custom.custom_pair(str(folder)), [])


def test_an_answer_ends_where_the_tokenizer_says_too(pair: Path, tmp_path: Path):
    target = copied(pair, "target", tmp_path)
    edit(target / "generation_config.json", lambda c: c.update(eos_token_id=7))
    eos = tokenizer().eos_token_id
    assert brought(target).models.target.vocabulary.eos == {7, eos} != {7}


def test_penalties_become_a_remark_and_the_library_runs_without_them(pair: Path, tmp_path: Path):
    target = copied(pair, "target", tmp_path)
    wishes = {"no_repeat_ngram_size": 1, "num_beams": 3, "bad_words_ids": [[5]], "gate": 2}
    more = {"repetition_penalty": 3.0, "top_k": 20, "forced_eos_token_id": 0, "suppress_tokens": []}
    edit(target / "generation_config.json", lambda c: c.update(wishes | more))
    asks = "The target's generation_config asks for"
    loaded = brought(target)
    assert loaded.remarks == [
        f"{asks} num_beams 3, no_repeat_ngram_size 1, bad_words_ids [[5]], forced_eos_token_id 0;"
        " not applied here.",
        f"{asks} repetition_penalty 3; ask for it by option.",
        f"{asks} gate 2; unknown here.",
    ]
    asked = session.make_request(loaded, Question("what is this", max_new_tokens=16))
    (lane,) = session.run_lanes(loaded, asked, [choose(loaded.pair, "ar")])
    ids = [token.id for round_ in lane.rounds for token in round_.tokens]
    library = peers.LibraryPeers(loaded.models, [peers.HF_GENERATE], [])
    answer = library.decode_answer(peers.HF_GENERATE, asked)
    assert answer is not None and answer.token_ids == ids


TEMPLATES = {
    "raises for a system message": (
        "{% if messages[0].role == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
        "{% for m in messages %}{% for c in m.content %}"
        "{{ '<image>' if c.type == 'image' else c.text }}{% endfor %}{% endfor %}",
        (True, False),
    ),
    "has a word for it that it never uses": (
        "{# system #}{% for m in messages if m.role == 'user' %}{% for c in m.content %}"
        "{{ '<image>' if c.type == 'image' else c.text }}{% endfor %}{% endfor %}",
        (True, False),
    ),
    "joins texts": (
        "{% for m in messages %}{{ m.role + ': ' + m.content + ' ' }}{% endfor %}answer:",
        (False, True),
    ),
    "takes the last text": (
        "{% for m in messages %}<image>{{ m.content[-1].text }}{% endfor %}",
        (True, False),
    ),
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_what_a_chat_template_takes_is_found_by_trying(case: str):
    template, takes = TEMPLATES[case]
    words = tokenizer()
    processor = make_processor(words)
    processor.chat_template = template
    prompter = PromptBuilder(processor, make_model(len(words), layers=1, tower_layers=1))
    assert prompter._format[:2] == takes
    asked = Question("what is this", (zoo.picture(1),), max_new_tokens=4)
    assert bool(prompter.prompt(asked).visual.any())
    if not takes[1]:
        refuses("takes no system prompt", prompter.prompt, replace(asked, system="Be brief."))


def test_templates_that_cannot_be_used_are_a_sentence(pair: Path, tmp_path: Path):
    target = copied(pair, "target", tmp_path)
    for template, said in (
        ("{% for m in messages %}{{ m.content }", "cannot be used: unexpected '}'"),
        (
            "{% for m in messages %}{{ m.name.first }}{% endfor %}",
            "cannot be used: .* has no attribute",
        ),
        ("hello", "leaves out the question or media"),
    ):
        (target / "chat_template.jinja").write_text(template)
        refuses(said, custom.custom_pair, str(target))
