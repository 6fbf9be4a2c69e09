"""Models known before their weights, brought up from folders; drafters that cut pictures in their
own way.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError
from PIL import Image
from transformers import AutoModelForCausalLM

from recipes.drafters.base import Shared
from specvl_demo import pairs
from specvl_demo.__main__ import main
from specvl_demo.core.types import Capture
from specvl_demo.decoders.forward import Captured, ForwardInput
from specvl_demo.decoders.huggingface import HFDecoder
from specvl_demo.decoders.sequence import prefill
from specvl_demo.methods.views import FullView, PrunedSettings, PrunedView
from specvl_demo.pairs.machine import detect
from specvl_demo.places import ASSETS
from specvl_demo.serving import availability, loader
from specvl_demo.serving.custom import custom_pair
from specvl_demo.vlm import hub, loading
from specvl_demo.vlm.encoder import VLM, aligned
from tests.conftest import tiny_llava, tiny_prompt
from tests.contract.test_checkpoints import write
from tests.heads import random_module
from tests.pocketlike import save_pair, tokenizer


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pair(tmp_path_factory.mktemp("pair"))


def test_a_folder_is_known_without_its_weights(pair: Path) -> None:
    card = hub.read(str(pair / "target"))
    model = loading.model(pair / "target", loading.LoadPlan(), "target")
    assert card.family == "llava"
    stored = {p.data_ptr(): p.numel() for p in model.parameters()}
    assert card.params == sum(stored.values())
    assert card.tokens["<pad>"] == 0


def test_what_does_not_fit_is_said_in_a_sentence(pair: Path, tmp_path: Path) -> None:
    card = hub.read(str(pair / "target"))
    same = hub.misfit(card, card)
    assert same and "both target and drafter" in same
    tokens = dict(card.tokens)
    a, b = list(tokens)[10:12]
    tokens[a], tokens[b] = tokens[b], tokens[a]
    other = hub.Card("owner/other", "llava", 1, 4, "", tokens)
    reason = hub.misfit(card, other)
    assert reason and "a different vocabulary" in reason and "2 ids differ" in reason
    larger = hub.Card("owner/large", "llava", card.params + 1, 4, "", card.tokens)
    assert "must be smaller" in (hub.misfit(card, larger) or "")
    # Padded rows of a vocabulary are no misfit.
    fewer = {token: i for token, i in card.tokens.items() if i < len(card.tokens) - 3}
    small = hub.Card("owner/small", "llava", 1, 4, "", fewer)
    assert hub.misfit(card, small) is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ValueError, match="'bert'; supported are LLaVA, .*InternVL and Pixtral"):
        hub.read(str(tmp_path))


def test_pickled_weights_are_read_only_when_asked(pair: Path, tmp_path: Path) -> None:
    for path in (pair / "target").iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    model = loading.model(pair / "target", loading.LoadPlan(), "target")
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="allow-pickle"):
        loading.model(tmp_path, loading.LoadPlan(), "pickled")
    again = loading.model(tmp_path, loading.LoadPlan(pickles=True), "pickled")
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )


def test_nothing_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no config.json"):
        hub.read(str(tmp_path))
    with pytest.raises(ValueError, match="empty could not be loaded"):
        loading.model(tmp_path, loading.LoadPlan(), "empty")
    with pytest.raises(ValueError, match="not in the local cache"):
        hub.read("nobody/nothing", offline=True)


def test_how_far_a_download_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def snapshot(repo: str, tqdm_class: type, **_: object) -> str:
        bar = tqdm_class(total=4_000_000_000, unit="B")
        for _ in range(4):
            bar.update(1_000_000_000)
        bar.close()
        return str(tmp_path)

    said: list[str] = []
    monkeypatch.setattr(loading, "snapshot_download", snapshot)
    assert loading.fetch("owner/name", said.append) == tmp_path
    assert said[0] == "Fetching owner/name: 1.0 of 4.0 GB" and len(said) == 4


def test_a_cache_over_several_devices_is_the_same_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two names of the CPU stand for two cards."""
    decoder = HFDecoder(tiny_llava(kv_heads=2))
    vlm = VLM(tiny_llava(kv_heads=2), "tiny", backend="hf")
    encoded = vlm.encode(tiny_prompt())

    def decode() -> torch.Tensor:
        stream, hidden, _ = prefill(decoder, [encoded.context("target")], 0)
        stream = stream.fork(60)
        said = [decoder.logits(hidden)[0, -1:]]
        for token in (7, 8):
            stream.root(decoder.embed(torch.tensor([[token]])))
            said.append(
                decoder.logits(
                    stream.extend(decoder.embed(torch.tensor([[9, 10, 11]])), [0, 0, 1])[0]
                )
            )
            stream.keep([0, 2])
        return torch.cat(said)

    whole = decode()
    names = [torch.device("cpu"), torch.device("cpu", 0), torch.device("cpu", 0)]
    split = [one._replace(device=name) for one, name in zip(decoder.layouts(), names, strict=True)]
    monkeypatch.setattr(decoder, "layouts", lambda: split)
    assert decoder.is_split and [len(part) for part in decoder.new_cache(1, 4).blocks] == [1, 2]
    assert torch.equal(decode(), whole)


def test_what_is_kept_of_a_split_model_meets_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers compute on the CPU here, and the model's device has another name."""
    decoder = HFDecoder(tiny_llava(kv_heads=2))
    x, cache = decoder.embed(torch.arange(9))[None], decoder.new_cache(1, 9)
    kept = Captured(Capture(layers=(0, 2, 3), attention=(1,), rows=(-1,)))
    monkeypatch.setattr(HFDecoder, "device", torch.device("meta"))
    hidden = decoder.forward(ForwardInput(x, torch.arange(9)[None], cache, captured=kept))
    found = [hidden, *kept.layers.values(), *kept.attention.values()]
    assert len(found) == 5 and {one.device.type for one in found} == {"meta"}


def test_positions_of_another_cut_find_their_place() -> None:
    def flags(text: str) -> torch.Tensor:
        return torch.tensor([letter == "v" for letter in text])

    assert aligned(flags("..vv.."), flags("..vvvv..")).tolist() == [0, 1, 2, 4, 6, 7]
    assert aligned(flags(".vvv."), flags(".v.")).tolist() == [0, 1, 1, 1, 2]
    assert aligned(flags(".v.v."), flags(".vv..")).tolist() == [-1] * 5


def test_a_drafter_with_its_own_cut_says_where_its_tokens_belong() -> None:
    """Its picture has four times the tokens; views speak of the target's positions."""
    model = tiny_llava()
    mine, theirs = tiny_prompt(), tiny_prompt(pictures=2)
    eyes = VLM(model, "tiny", again=lambda prompt: theirs)
    encoded = eyes.encode(mine)
    assert len(encoded.ids) == len(theirs)
    context = FullView().build_context(encoded, eyes, None)
    assert context.index.max() < len(mine) and (context.index.diff() >= 0).all()
    assert torch.equal(mine.visual[context.index], theirs.visual[:-1])
    with pytest.raises(ValueError, match="guided=false"):
        PrunedView(PrunedSettings(0.5, 0.5), layers=(0,)).build_context(encoded, eyes, None)
    assert PrunedView(PrunedSettings(0.5, 0.5)).build_context(
        encoded, eyes, None
    ).index.max() < len(mine)


def test_the_command_line_takes_any_two_that_fit(
    pair: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = pair / "drafter"
    monkeypatch.setattr(hub, "_counted", lambda folder: 10 if folder == small else 20)
    ask = [
        "generate",
        "--method",
        "chain",
        "--prompt",
        "what is this",
        "--max-new-tokens",
        "5",
        "--json",
    ]
    assert main([*ask, "--target", str(pair / "target"), "--drafter", str(small)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["n_tokens"] <= 5 and answer["pair"] == "custom"
    assert main([*ask, "--drafter", str(small)]) == 2
    assert "--drafter needs the --target" in capsys.readouterr().err
    assert main([*ask, "--target", str(small), "--drafter", str(pair / "target")]) == 2
    assert "must be smaller" in capsys.readouterr().err
    assert main([*ask, "--target", str(pair / "nowhere"), "--drafter", str(small)]) == 2
    assert (
        main(
            [*ask, "--target", str(pair / "target"), "--drafter", str(small), "--quantised", "4bit"]
        )
        == 2
    )


def test_a_language_model_without_eyes_drafts_for_one_that_sees(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt without its visual positions; its table of embeddings has padding rows of its
    own.
    """
    eyes = loading.model(pair / "drafter", loading.LoadPlan(), "drafter")
    words = AutoModelForCausalLM.from_config(eyes.config.text_config)
    words.model.load_state_dict(eyes.get_decoder().state_dict())
    words.tie_weights()
    words.resize_token_embeddings(len(tokenizer()) + 5)
    words.save_pretrained(tmp_path / "words")
    tokenizer().save_pretrained(tmp_path / "words")
    Image.new("RGB", (40, 40), (200, 30, 30)).save(tmp_path / "red.png")
    monkeypatch.setattr(hub, "_counted", lambda folder: 10 if folder.name == "words" else 20)
    named = ["--target", str(pair / "target"), "--drafter", str(tmp_path / "words")]
    asked = ["--prompt", "what is", "--max-new-tokens", "12", "--json"]
    assert main(["generate", "--method", "chain", *named, *asked]) == 0
    assert json.loads(capsys.readouterr().out)["tau"] > 1
    asked += ["--image", str(tmp_path / "red.png")]
    said = {}
    for method, changes in {
        "ar": [],
        "chain": [],
        "tree": [],
        "sage": [],
        "tabed": ["--set", "views=text-only"],
        "lvspec": ["--set", "loose=0", "--set", "shift=false"],
    }.items():
        trace = tmp_path / f"{method}.jsonl"
        assert (
            main(["generate", "--method", method, *named, *asked, *changes, "--trace", str(trace)])
            == 0
        )
        answer = json.loads(capsys.readouterr().out)
        said[method] = answer["token_ids"]
        if method not in ("ar", "lvspec"):
            begin = json.loads(trace.read_text().splitlines()[0])
            (seen,) = begin["seen"]
            visual = range(begin["spans"][0]["start"], begin["spans"][0]["stop"])
            assert set(seen["index"]).isdisjoint(visual), method
    assert all(ids == said["ar"] for ids in said.values()), said
    table = json.loads((tmp_path / "words" / "tokenizer.json").read_text())
    a, b = list(table["model"]["vocab"])[50:52]
    table["model"]["vocab"] |= {a: table["model"]["vocab"][b], b: table["model"]["vocab"][a]}
    (tmp_path / "words" / "tokenizer.json").write_text(json.dumps(table))
    one = pairs.Checkpoint(str(tmp_path / "words"), 10, "", True)
    target = pairs.Checkpoint(str(pair / "target"), 20, "", True)
    with pytest.raises(ValueError, match="words has a different vocabulary from .*2 ids differ"):
        loader.load(pairs.PairSpec("two", "two", "LLaVA", target, {"small": one}))


def test_a_folder_with_a_trained_head_drafts_for_its_target(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever trains a head for a target of their own can use it at once."""
    model = loading.model(pair / "target", loading.LoadPlan(), "target")
    geometry = Shared.of(model, torch.device("cpu")).geometry
    head = write(
        tmp_path / "head",
        random_module("hivis", geometry).published(),
        "bin",
        num_attention_heads=geometry.heads,
    )
    words = ["--prompt", "what is this", "--max-new-tokens", "8", "--json"]
    said = []
    for method in ("ar", "hivis"):
        named = ["--method", method, "--target", str(pair / "target"), "--drafter", str(head)]
        assert main(["generate", *named, *words]) == 0
        said.append(json.loads(capsys.readouterr().out)["token_ids"])
    assert said[0] == said[1]
    named = ["--method", "chain", "--target", str(pair / "target"), "--drafter", str(head)]
    assert main(["generate", *named, *words]) == 2
    refused = capsys.readouterr().err
    assert "chain needs a small model" in refused and "custom" not in refused
    assert f"target with {head.name} has the " in refused
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ValueError, match="'bert'; supported are"):
        custom_pair(str(pair / "target"), str(tmp_path))


@pytest.mark.parametrize("kind", ["eagle2", "hivis", "dream"])
def test_a_head_is_checked_against_a_target_without_its_weights(
    pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """By names and shapes: its format, what is missing or of another width, the methods it would
    draft for; numbers that are damaged are not even looked at.
    """
    model = loading.model(pair / "target", loading.LoadPlan(), "target")
    geometry = Shared.of(model, torch.device("cpu")).geometry
    tensors = random_module(kind, geometry).published()
    heads = {"num_attention_heads": geometry.heads}
    named = ["models", "--target", str(pair / "target"), "--json", "--drafter"]

    def verdict(folder: Path) -> tuple[dict, str]:
        code = main([*named, str(folder)])
        found = json.loads(capsys.readouterr().out)
        assert code == int(not found["fits"])
        return found, " ".join(one["text"] for one in found["findings"])

    damaged = {name: torch.full_like(one, float("nan")) for name, one in tensors.items()}
    for ending in ("bin", "safetensors"):
        found, _ = verdict(write(tmp_path / ending, damaged, ending, **heads))
        assert found["fits"] and kind in found["methods"]
    some = dict(tensors)
    some.pop("layers.0.mlp.up_proj.weight")
    found, said = verdict(write(tmp_path / "less", some, "safetensors", **heads))
    assert not found["fits"] and "but lacks layers.0.mlp.up_proj.weight" in said
    wide = dict(tensors, **{"layers.0.mlp.down_proj.weight": torch.ones(128, 96)})
    found, said = verdict(write(tmp_path / "wide", wide, "safetensors", **heads))
    assert not found["fits"] and "for a target of width 128; this target has" in said
    assert main(["models", "--target", str(pair / "target")]) == 2


def test_a_smaller_model_is_checked_by_its_vocabulary(capsys: pytest.CaptureFixture[str]) -> None:
    target, drafter = (str(ASSETS / "pocket" / name) for name in ("target", "drafter"))
    assert main(["models", "--target", target, "--drafter", drafter]) == 0
    assert "It fits, for: chain" in capsys.readouterr().out
    assert main(["models", "--target", drafter, "--drafter", target]) == 1
    assert "a drafter must be smaller than its target" in capsys.readouterr().out


def test_what_cannot_be_looked_up_is_no_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    target = str(ASSETS / "pocket" / "target")
    assert main(["models", "--target", target, "--drafter", "somebody/head"]) == 1
    said = capsys.readouterr().out
    assert "could not be decided" in said and "not in the local cache" in said


class _Hub:
    """A hub that knows two small models and refuses to hand weights over."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders, self.fetched = folders, []

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


def test_two_of_the_hub_are_compared_before_weights_are_fetched(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    shutil.copytree(pair / "drafter", other)
    table = json.loads((other / "tokenizer.json").read_text())
    vocabulary = table["model"]["vocab"]
    a, b = list(vocabulary)[50:52]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    (other / "tokenizer.json").write_text(json.dumps(table))
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"]})
    )
    folders = {
        "me/target": pair / "target",
        "me/small": pair / "drafter",
        "me/other": other,
        "me/head": head,
    }
    remote = _Hub(folders)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(hub, "HfApi", lambda: remote)
    monkeypatch.setattr(hub, "hf_hub_download", remote.download)
    made = custom_pair("me/target", "me/small")
    assert (made.target.params, made.target.licence, made.local) == (20, "mit", False)
    assert set(remote.fetched) == {"config.json", "tokenizer.json"}
    verdict = availability.available(made, detect())
    assert verdict.ok and verdict.must_fetch
    drafts = custom_pair("me/target", "me/head").drafters
    assert list(drafts) == ["eagle3"] and (drafts["eagle3"].id, drafts["eagle3"].params) == (
        "me/head",
        10,
    )
    with pytest.raises(ValueError, match="a different vocabulary from me/target"):
        custom_pair("me/target", "me/other")
    with pytest.raises(ValueError, match="me/none could not be looked up: me/none is not there"):
        custom_pair("me/target", "me/none")
    lost = HfHubHTTPError.__bases__[0](
        "no route"
    )  # as its HTTP library says it, which is no HfHubHTTPError
    monkeypatch.setattr(remote, "model_info", Mock(side_effect=[lost, HFValidationError("a name")]))
    with pytest.raises(ValueError, match="me/target could not be looked up: no route"):
        custom_pair("me/target", "me/small")
    with pytest.raises(
        ValueError, match="There is no folder /no/such/folder, and hub models are named"
    ):
        custom_pair("/no/such/folder", "me/small")
