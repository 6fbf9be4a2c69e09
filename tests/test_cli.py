"""The command line as a person or a script meets it: what it prints, and how it says no.

Answers come from a pair on disk with random weights; its texts mean nothing, its shape is the pocket pair's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from specvl_demo import pairs
from specvl_demo.__main__ import main
from specvl_demo.report import tables
from tests import corpus, pocketlike

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Assets with a random pair, a picture, a clip and broken files."""
    folder = tmp_path_factory.mktemp("place")
    pocketlike.save_pair(folder / "pocket")
    corpus.halves((200, 100)).save(folder / "a.png")
    corpus.write_clip(folder / "c.mp4")
    (folder / "broken.png").write_bytes(corpus.bad_pictures()["cut_in_half.png"][0])
    (folder / "words.png").write_text("not a picture")
    return folder


@pytest.fixture(autouse=True)
def assets(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "ASSETS", place)
    monkeypatch.chdir(place)


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


REFUSED = [
    ("", "COMMAND"),
    ("dance", "nvalid choice: 'dance'"),
    ("generate --prompt x", "--method"),
    ("generate --method nope --prompt x", "no method 'nope'; known: ar"),
    ("generate --method ar --pair nope --prompt x", "no pair 'nope'; known: pocket"),
    ("generate --method ar", "nothing to answer"),
    ("generate --method ar --prompt", "expected one argument"),
    ("generate --method ar --prompt=   ", "nothing to answer"),
    ("generate --method ar --prompt x --image nowhere.png", "no file"),
    ("generate --method ar --prompt x --image broken.png", "damaged"),
    ("generate --method ar --prompt x --image words.png", "neither a picture nor a clip"),
    ("generate --method ar --prompt x --image .", "not a file"),
    ("generate --method ar --prompt x --image c.mp4", "is a clip"),
    ("generate --method ar --prompt x --video a.png", "still picture"),
    ("generate --method ar --prompt x --video nowhere.mp4", "no file"),
    ("generate --method ar --prompt x" + " --image a.png" * 9, "at most 8"),
    ("generate --method ar --prompt x --max-new-tokens 0", "between 1 and"),
    ("generate --method ar --prompt x --max-new-tokens -5", "between 1 and"),
    ("generate --method ar --prompt x --max-new-tokens many", "whole number"),
    ("generate --method ar --prompt x --max-new-tokens 4096", "together this model takes"),
    ("generate --method ar --prompt x --temperature hot", "a number"),
    ("generate --method ar --prompt x --temperature -1", "between 0 and 10"),
    ("generate --method ar --prompt x --temperature 1e-40", "at least 0.001"),
    ("generate --method ar --prompt x --temperature nan", "between 0 and 10"),
    ("generate --method ar --prompt x --temperature inf", "between 0 and 10"),
    ("generate --method ar --prompt x --top-p 0", "above 0"),
    ("generate --method ar --prompt x --top-p 1.5", "above 0 and at most 1"),
    ("generate --method ar --prompt x --seed 1.5", "whole number"),
    ("generate --method ar --prompt x --seed -1", "between 0"),
    ("generate --method ar --prompt x --dtype int8", "invalid choice: 'int8'"),
    ("generate --method ar --prompt x --bogus", "Unrecognized"),
    ("generate --method ar --prompt x --set gamma", "KEY=VALUE"),
    ("generate --method ar --prompt x --set gamma=5", "has no parameter 'gamma'"),
    ("generate --method chain --prompt x --set gamma=0", "gamma is between"),
    ("generate --method chain --prompt x --set gamma=1e9", "whole number"),
    ("generate --method chain --prompt x --set gamma=", "whole number"),
    ("generate --method chain --prompt x --set policy=best-first", "take custom"),
    ("generate --method chain --prompt x --set drafter=nope", "no drafter 'nope'"),
    ("generate --method chain --prompt x --set preset=nope", "no preset 'nope'"),
    ("generate --method custom --prompt x --set drafter=ngram --set policy=best-first", "needs"),
    ("generate --method ar --prompt x --trace nowhere/t.jsonl", "cannot be written"),
    ("generate --method ar --prompt x --trace .", "cannot be written"),
    ("race --methods ar,nope --prompt x", "no method 'nope'"),
    ("race --methods , --prompt x", "names no method"),
    ("race --methods chain,chain --prompt x", "chain twice"),
    ("race --methods chain --prompt x --set bogus=1", "has this parameter"),
    ("race --methods chain --prompt x --set sage.max_depth=4", "sage does not run here"),
    ("bench --methods nope", "no method 'nope'"),
    ("bench --suite nope --methods ar", "no suite 'nope'"),
    ("bench --repeats 0", "between 1"),
    ("trace", "check|show"),
    ("trace check", "FILE"),
    ("trace check nowhere.jsonl", "no file"),
    ("trace show nowhere.jsonl", "no file"),
    ("trace check a.png", "not UTF-8"),
    ("trace show words.png", "line 1: not a line of JSON"),
    ("train", "recipe"),
    ("train nope", "unknown recipe 'nope'"),
    ("train pocket --steps x", "--steps: invalid int value: 'x'"),
    ("train answers --see 7", "Unrecognized arguments: --see 7"),
]


@pytest.mark.parametrize(
    "line", ["race --methods all --prompt x", "bench", "models --json", "soak --minutes 1", "app.py"]
)
def test_a_damaged_file_of_tuned_presets_is_named(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not taken for a pair that serves no method."""
    (tmp_path / "tuned.json").write_text("{")
    monkeypatch.setenv("SPECVL_TUNED", str(tmp_path / "tuned.json"))
    if line == "app.py":
        import app

        assert app.main([]) == 2
    else:
        assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert "tuned.json cannot be read" in said and "delete it, or tune again" in said


@pytest.mark.parametrize(("line", "part"), REFUSED, ids=[line[:60] for line, _ in REFUSED])
def test_bad_input_is_one_sentence_and_code_2(
    capsys: pytest.CaptureFixture[str], line: str, part: str
) -> None:
    words = line.replace("--prompt=   ", "--prompt=").split()
    assert main(words) == 2
    said = capsys.readouterr()
    assert part in said.err
    assert said.err.strip().count("\n") == 0 and "Traceback" not in said.err
    assert said.err.endswith(".\n")


def test_generate_json_has_the_fields_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    told = run_json(
        capsys,
        *("generate", "--method", "chain", "--image", "a.png", "--prompt", "what is it", "--seed", "3"),
        *("--max-new-tokens", "12"),
    )
    assert list(told) == list(tables.GENERATE_FIELDS)
    assert told["method"] == "chain" and told["pair"] == "pocket" and told["lossless"] is True
    assert told["n_tokens"] == len(told["token_ids"]) <= 12
    assert told["tau"] == pytest.approx(told["n_tokens"] / told["n_rounds"])
    assert told["tokens_per_s"] == pytest.approx(told["n_tokens"] / told["decode_s"])
    assert told["seed"] == 3 and told["relaxed_tokens"] == 0 and told["stop"] in ("eos", "length")


def test_race_json_and_trace(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    told = run_json(
        capsys,
        *("race", "--methods", "chain,sage,tabed,lvspec", "--video", "c.mp4", "--max-new-tokens", "16"),
        *("--set", "chain.gamma=3", "--trace", "race.jsonl"),
    )
    assert [lane["method"] for lane in told["lanes"]] == ["ar", "chain", "sage", "tabed", "lvspec"]
    for lane in told["lanes"]:
        assert list(lane) == [*tables.GENERATE_FIELDS, *tables.RACE_FIELDS]
        if lane["lossless"]:
            assert lane["identical_to_ar"] is True and lane["first_difference"] is None
    assert told["lanes"][0]["speedup_decode"] == 1.0
    assert main(["trace", "check", "race.jsonl"]) == 0
    assert "5 lanes" in capsys.readouterr().out
    assert main(["trace", "show", "race.jsonl"]) == 0
    shown = capsys.readouterr().out
    assert "What happens in the clip?" in shown and "target's own token included" in shown
    begins = [json.loads(line) for line in (place / "race.jsonl").read_text().splitlines()]
    chain = next(b for b in begins if b["kind"] == "begin" and b["method"] == "chain")
    assert chain["settings"]["gamma"] == 3 and chain["n_visual"] == 4 * 36
    assert [(s["kind"], s["frame"], s["rows"]) for s in chain["spans"]] == [
        ("video", frame, 6) for frame in range(4)
    ]


def test_seeded_sampling_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("generate", "--method", "tree", "--prompt", "what", "--max-new-tokens", "16")
    first, again, other = (
        run_json(capsys, *argv, "--temperature", "1.5", "--top-p", "0.9", "--seed", seed)["token_ids"]
        for seed in ("1", "1", "2")
    )
    assert first == again != other


def test_a_lossy_method_refuses_to_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--method", "lvspec", "--prompt", "x", "--temperature", "1"]) == 2
    assert "temperature" in capsys.readouterr().err


def test_all_means_every_method_of_the_pair(capsys: pytest.CaptureFixture[str]) -> None:
    told = run_json(capsys, "race", "--methods", "all", "--image", "a.png", "--max-new-tokens", "6")
    names = [lane["method"] for lane in told["lanes"]]
    assert names[0] == "ar" and {"chain", "tree", "ngram"} <= set(names) and "custom" not in names


def test_the_answer_streams_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--method", "ar", "--prompt", "what", "--max-new-tokens", "8"]) == 0
    said = capsys.readouterr()
    assert "| method" in said.out and said.err == ""


def test_special_tokens_that_a_person_types_stay_text(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    typed = "say <image> or <eos> and <assistant>"
    argv = ["--prompt", typed, "--image", "a.png", "--max-new-tokens", "2", "--trace", "typed.jsonl"]
    run_json(capsys, "generate", "--method", "ar", *argv)
    begin = json.loads((place / "typed.jsonl").read_text().splitlines()[0])
    assert begin["n_visual"] == 36
    assert begin["prompt"].count("<image>") == 1 and begin["prompt"].count("<assistant>") == 1


def test_models_lists_everything(capsys: pytest.CaptureFixture[str]) -> None:
    told = run_json(capsys, "models")
    pocket = told["pairs"][0]
    assert pocket["id"] == "pocket" and pocket["available"] is True and "chain" in pocket["methods"]
    assert all(pair["reason"] for pair in told["pairs"])
    chain = next(method for method in told["methods"] if method["name"] == "chain")
    assert chain["parameters"][0]["name"] == "gamma" and chain["lossless"] is True
    assert main(["models"]) == 0
    assert "pocket" in capsys.readouterr().out


def test_bench_measures_beside_the_library(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    line = {"question": "What is it?", "image": "a.png"}
    (place / "own.jsonl").write_text(f"{json.dumps(line)}\n" * 2)
    asked = ("--data", "own.jsonl", "--repeats", "2", "--max-new-tokens", "6")
    told = run_json(capsys, "bench", "--methods", "chain", *asked, "--peers")
    rows = {row["method"]: row for row in told["rows"]}
    assert list(rows) == ["ar", "chain", "hf-generate", "hf-assisted", "hf-prompt-lookup"]
    assert rows["ar"]["speedup_vs_ar"] == 1.0 and rows["chain"]["identical_to_ar"] is True
    assert rows["hf-generate"]["identical_to_ar"] is True
    assert rows["hf-generate"]["speedup_vs_hf_generate"] == 1.0
    assert rows["chain"]["repeats"] == 2 and rows["chain"]["spread"] >= 0
    shares = [rows["chain"][f"share_{phase}"] for phase in ("draft", "verify", "commit", "other")]
    assert sum(shares) == pytest.approx(1)
    assert told["settings"]["repeats"] == 2 and told["machine"]["threads"] >= 1
    record = place / "record.json"
    record.write_text(json.dumps(told))
    assert main(["bench", "--from", "record.json", "--busy"]) == 0
    assert "× HF generate" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"), [(["--help"], 0), (["generate", "--method", "nope", "--prompt", "x"], 2)]
)
def test_mistakes_and_help_answer_without_torch(words: list[str], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "specvl_demo", *words],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == code and (done.stdout == "") == (code == 2)
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "specvl_demo.cli.parse" in imported
    assert not imported & {"torch", "transformers", "gradio", "cv2", "decord"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["generate", "--method", "ar", "--prompt", "what", "--max-new-tokens", "4", "--trace", "/dev/full"]
    assert main(argv) == 2
    assert "/dev/full cannot be written: No space left" in capsys.readouterr().err


def test_a_missing_package_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["generate", "--method", "ar", "--prompt", "what"]) == 1
    assert capsys.readouterr().err.startswith("torch is not installed: pip install")


def test_nothing_but_json_reaches_standard_output_of_a_real_process() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "specvl_demo", "models", "--json"], cwd=ROOT, capture_output=True, check=True
    )
    assert json.loads(done.stdout)["pairs"][0]["id"] == "pocket"
