"""Models known before their weights, brought up from folders; drafters with a cut of their own."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    NotASafetensorsRepoError,
)
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from specvl_demo import records
from specvl_demo.core.types import AuxRequest
from specvl_demo.decoders.forward import AuxStates, ForwardInput
from specvl_demo.decoders.huggingface import HFDecoder
from specvl_demo.decoders.sequence import prefill
from specvl_demo.methods.views import FullView, PrunedSettings, PrunedView
from specvl_demo.pairs import placing
from specvl_demo.pairs.machine import detect_machine
from specvl_demo.serving.custom import custom_pair
from specvl_demo.vlm import hub, loading
from specvl_demo.vlm.encoder import VLM
from tests.shared import pocketlike
from tests.shared.commands import refusal, run_json
from tests.shared.heads import random_tensors, write
from tests.shared.pocketlike import tokenizer
from tests.shared.refusals import refuses
from tests.shared.tiny import tiny_llava, tiny_prompt


def test_a_folder_is_known_without_its_weights(saved_pair: Path):
    card = hub.read_card(str(saved_pair / "target"))
    model = loading.load_model(saved_pair / "target", loading.LoadPlan(), "target")
    assert card.family == "llava"
    stored = {p.data_ptr(): p.numel() for p in model.parameters()}
    assert card.params == sum(stored.values())
    assert card.tokens["<pad>"] == 0


def test_pickled_weights_are_not_read(saved_pair: Path, tmp_path: Path):
    for path in (saved_pair / "target").iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    model = loading.load_model(saved_pair / "target", loading.LoadPlan(), "target")
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    refuses(
        "Only safetensors are read", loading.load_model, tmp_path, loading.LoadPlan(), "pickled"
    )
    refuses("no weights in safetensors", hub.read_card, str(tmp_path))


def test_a_folder_or_name_without_a_model_is_refused_in_a_sentence(tmp_path: Path):
    refuses("no config.json", hub.read_card, str(tmp_path))
    refuses("empty could not be loaded", loading.load_model, tmp_path, loading.LoadPlan(), "empty")
    refuses("not in the local cache", hub.read_card, "nobody/nothing")


def test_a_download_says_how_much_of_it_is_here(monkeypatch, tmp_path: Path):
    def snapshot(repo: str, tqdm_class: type, **_: object) -> str:
        bar = tqdm_class(total=4_000_000_000, unit="B")
        for _ in range(4):
            bar.update(1_000_000_000)
        bar.close()
        return str(tmp_path)

    said = []
    monkeypatch.setattr(loading, "snapshot_download", snapshot)
    assert loading.fetch_repo("owner/name", said.append) == tmp_path
    assert said[0] == "Fetching owner/name: 1.0 of 4.0 GB" and len(said) == 4


def test_a_cache_over_several_devices_is_the_same_cache(monkeypatch):
    """Two names of the CPU stand for two cards."""
    decoder = HFDecoder(tiny_llava(kv_heads=2))
    vlm = VLM(tiny_llava(kv_heads=2), "tiny", backend="hf")
    encoded = vlm.encode(tiny_prompt())

    @torch.inference_mode()
    def decode() -> torch.Tensor:
        sequence, hidden, _ = prefill(decoder, [encoded.context("target")], 0)
        sequence = sequence.fork(60)
        said = [decoder.logits(hidden)[0, -1:]]
        for token in (7, 8):
            sequence.run_root(decoder.embed(torch.tensor([[token]])))
            hidden = sequence.extend(decoder.embed(torch.tensor([[9, 10, 11]])), [0, 0, 1])
            said.append(decoder.logits(hidden[0]))
            sequence.commit_nodes([0, 2])
        return torch.cat(said)

    whole = decode()
    names = [torch.device("cpu"), torch.device("cpu", 0), torch.device("cpu", 0)]
    split = [one._replace(device=name) for one, name in zip(decoder.layouts(), names)]
    monkeypatch.setattr(decoder, "layouts", lambda: split)
    assert decoder.is_split and [len(part) for part in decoder.new_cache(1, 4).blocks] == [1, 2]
    assert torch.equal(decode(), whole)


def test_what_is_kept_of_a_split_model_meets_on_one_device(monkeypatch):
    """Layers compute on the CPU here, and the model's device has another name."""
    decoder = HFDecoder(tiny_llava(kv_heads=2))
    x, cache = decoder.embed(torch.arange(9))[None], decoder.new_cache(1, 9)
    kept = AuxStates(AuxRequest(layers=(0, 2, 3), attention=(1,), rows=(-1,)))
    monkeypatch.setattr(HFDecoder, "device", torch.device("meta"))
    hidden = decoder.forward(ForwardInput(x, torch.arange(9)[None], cache, aux=kept))
    found = [hidden, *kept.layers.values(), *kept.attention.values()]
    assert len(found) == 5 and {one.device.type for one in found} == {"meta"}


def test_a_drafter_with_its_own_cut_says_where_its_tokens_belong():
    """Its picture has four times the tokens; views speak of the target's positions."""
    model = tiny_llava()
    mine, theirs = tiny_prompt(), tiny_prompt(pictures=2)
    eyes = VLM(model, "tiny", again=lambda prompt: theirs)
    encoded = eyes.encode(mine)
    assert len(encoded.ids) == len(theirs)
    context = FullView().build_context(encoded, eyes, None)
    assert context.index.max() < len(mine) and (context.index.diff() >= 0).all()
    assert torch.equal(mine.visual[context.index], theirs.visual[:-1])
    guided = PrunedView(PrunedSettings(0.5, 0.5), layers=(0,))
    refuses("guided=false", guided.build_context, encoded, eyes, None)
    pruned = PrunedView(PrunedSettings(0.5, 0.5)).build_context(encoded, eyes, None)
    assert pruned.index.max() < len(mine)


def test_the_command_line_takes_any_two_that_fit(saved_pair: Path, monkeypatch, capsys):
    """Two folders are listed and asked as a pair that ships."""
    target, small = str(saved_pair / "target"), str(saved_pair / "drafter")
    monkeypatch.setattr(hub, "_count_params", lambda folder: 10 if str(folder) == small else 20)
    named = ["--target", target, "--drafter", small]
    question = "generate --method chain --max-new-tokens 5 --prompt", "what is this", *named
    answer = run_json(capsys, *question)
    assert answer["n_tokens"] <= 5 and answer["pair"] == "custom"
    (row,) = run_json(capsys, "models", *named)["pairs"]
    assert row["available"] and {"ar", "chain", "sage"} <= set(row["methods"])
    assert "GPU" in refusal(capsys, *question, "--quantised", "4bit")


def test_a_language_model_without_eyes_drafts_for_one_that_sees(
    saved_pair: Path, tmp_path: Path, capsys, monkeypatch
):
    """The prompt without its visual positions; its table of embeddings has padding rows."""
    eyes = loading.load_model(saved_pair / "drafter", loading.LoadPlan(), "drafter")
    words = AutoModelForCausalLM.from_config(eyes.config.text_config)
    words.model.load_state_dict(eyes.get_decoder().state_dict())
    words.tie_weights()
    words.resize_token_embeddings(len(tokenizer()) + 5)
    words.save_pretrained(tmp_path / "words")
    tokenizer().save_pretrained(tmp_path / "words")
    Image.new("RGB", (40, 40), (200, 30, 30)).save(tmp_path / "red.png")
    monkeypatch.setattr(hub, "_count_params", lambda folder: 10 if folder.name == "words" else 20)
    question = ["--prompt", "what is", "--target", str(saved_pair / "target")]
    question += ["--drafter", str(tmp_path / "words"), "--max-new-tokens", "12"]
    assert run_json(capsys, "generate --method chain", *question)["tau"] > 1
    question += ["--image", str(tmp_path / "red.png"), "--trace", str(tmp_path / "race.jsonl")]
    strict = "--set tabed.views=text-only --set lvspec.loose=0 --set lvspec.shift=false"
    line = f"race --methods chain,tree,sage,tabed,lvspec {strict}"
    lanes = run_json(capsys, line, *question)["lanes"]
    assert len(lanes) == 6 and all(lane["token_ids"] == lanes[0]["token_ids"] for lane in lanes)
    told = [records.loads(line) for line in (tmp_path / "race.jsonl").open(encoding="utf-8")]
    begins = {begin.method: begin for begin in told if isinstance(begin, records.Begin)}
    for method in ("chain", "tree", "sage", "tabed"):
        (seen,), (span,) = begins[method].seen, begins[method].spans
        assert set(seen.index).isdisjoint(range(span.start, span.stop)), method


def test_a_folder_with_a_trained_head_drafts_for_its_target(
    saved_pair: Path, tmp_path: Path, capsys
):
    """Whoever trains a head for a target of their own can use it at once."""
    head = write(
        tmp_path / "head",
        random_tensors("hivis", pocketlike.GEOMETRY),
        "bin",
        num_attention_heads=pocketlike.GEOMETRY.heads,
    )
    question = [
        "--prompt",
        "what is this",
        "--target",
        str(saved_pair / "target"),
        "--drafter",
        str(head),
    ]
    line = "generate --max-new-tokens 8 --method"
    plain, drafted = (run_json(capsys, f"{line} {method}", *question) for method in ("ar", "hivis"))
    assert plain["token_ids"] == drafted["token_ids"]
    refused = refusal(capsys, f"{line} chain", *question)
    assert "chain needs a small model" in refused and "custom" not in refused
    assert f"target with {head.name} has the " in refused
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    refuses("'bert'; supported are", custom_pair, str(saved_pair / "target"), str(tmp_path))


@pytest.mark.parametrize("kind", ["eagle2", "dream"])
def test_a_head_is_checked_against_a_target_without_weights(
    saved_pair: Path, tmp_path: Path, kind: str
):
    """By names and shapes: format, missing tensors, widths; damaged numbers are not looked at."""
    tensors = random_tensors(kind, pocketlike.GEOMETRY)
    heads = {"num_attention_heads": pocketlike.GEOMETRY.heads}

    def drafters(name: str, changed: dict[str, torch.Tensor], ending: str) -> list[str]:
        folder = write(tmp_path / name, changed, ending, **heads)
        return list(custom_pair(str(saved_pair / "target"), str(folder)).drafters)

    damaged = {name: torch.full_like(one, float("nan")) for name, one in tensors.items()}
    for ending in ("bin", "safetensors"):
        assert drafters(ending, damaged, ending) == [kind]
    some = {name: one for name, one in tensors.items() if name != "layers.0.mlp.up_proj.weight"}
    refuses("but lacks layers.0.mlp.up_proj.weight", drafters, "less", some, "safetensors")
    wide = dict(tensors, **{"layers.0.mlp.down_proj.weight": torch.ones(128, 96)})
    refuses("for targets of width 128, not", drafters, "wide", wide, "safetensors")


class _Hub:
    """A hub that knows two small models and refuses to hand weights over, but for their headers.

    lacking: Of weights with this in their names not even a header is there.
    """

    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders, self.fetched, self.lacking = folders, [], "nothing like it"

    def headers(self, repo: str, **_: object) -> SimpleNamespace:
        file = self.folders[repo] / "model.safetensors"
        if not file.exists():
            raise NotASafetensorsRepoError("none")
        tensors = {
            name: SimpleNamespace(shape=[*tensor.shape], dtype="F32")
            for name, tensor in load_file(file).items()
            if self.lacking not in name
        }
        return SimpleNamespace(files_metadata={"model": SimpleNamespace(tensors=tensors)})

    def model_info(self, repo: str, files_metadata: bool) -> SimpleNamespace:
        if repo not in self.folders:
            raise OSError(f"{repo} is not there")
        files = [
            SimpleNamespace(rfilename=path.name, size=path.stat().st_size)
            for path in self.folders[repo].iterdir()
        ]
        total = 20 if repo.endswith("target") else 10
        return SimpleNamespace(
            siblings=files, safetensors=SimpleNamespace(total=total), card_data={"license": "mit"}
        )

    def download(self, repo: str, name: str, local_files_only: bool) -> str:
        self.fetched.append(name)
        assert name in ("config.json", "tokenizer.json"), f"{name} is more than a look"
        if not (self.folders[repo] / name).exists():
            raise EntryNotFoundError(f"{repo} has no {name}")
        return str(self.folders[repo] / name)


def test_two_of_the_hub_are_compared_before_weights_come(
    saved_pair: Path, tmp_path: Path, monkeypatch
):
    other = tmp_path / "other"
    shutil.copytree(saved_pair / "drafter", other)
    table = json.loads((other / "tokenizer.json").read_text())
    vocabulary = table["model"]["vocab"]
    a, b = list(vocabulary)[50:52]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    (other / "tokenizer.json").write_text(json.dumps(table))
    heads = {
        "eagle3": {"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"]},
        "dflash": {"architectures": ["DFlashDraftModel"], "dflash_config": {}},
        "dflash-of-speculators": {"speculators_model_type": "dflash", "draft_vocab_size": 9},
    }
    for name, config in heads.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    folders = {
        "me/target": saved_pair / "target",
        "me/small": saved_pair / "drafter",
        "me/other": other,
        **{f"me/{name}": tmp_path / name for name in heads},
    }
    remote = _Hub(folders)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(hub, "HfApi", lambda **_: remote)
    monkeypatch.setattr(hub, "hf_hub_download", remote.download)
    monkeypatch.setattr(hub, "get_safetensors_metadata", remote.headers)
    made = custom_pair("me/target", "me/small")
    assert (made.target.params, made.target.licence, made.target.local) == (20, "mit", False)
    assert set(remote.fetched) == {"config.json", "tokenizer.json"}
    verdict = placing.place(made, detect_machine())
    assert verdict.ok and verdict.must_fetch
    for name in heads:  # known by their configuration
        kind = name.split("-")[0]
        drafts = custom_pair("me/target", f"me/{name}").drafters
        assert list(drafts) == [kind]
        assert (drafts[kind].id, drafts[kind].params) == (f"me/{name}", 10)
    remote.lacking = "layers.0.mlp"
    refuses("its weights lack", custom_pair, "me/target", "me/small")
    remote.lacking = "nothing like it"
    refuses("vocabulary from me/target: .*2 ids differ", custom_pair, "me/target", "me/other")
    refuses(
        "me/none could not be looked up: me/none is not there", custom_pair, "me/target", "me/none"
    )
    # As its HTTP library says it, which is no HfHubHTTPError.
    lost = HfHubHTTPError.__bases__[0]("no route")
    monkeypatch.setattr(remote, "model_info", Mock(side_effect=[lost, HFValidationError("a name")]))
    refuses("me/target could not be looked up: no route", custom_pair, "me/target", "me/small")
    refuses("no folder /no/such/folder, and hub names", custom_pair, "/no/such/folder", "me/small")
