"""The command line as a person or a script uses it: its output, and its errors.

Answers come from a pair on disk with random weights in the shape of the pocket pair; their texts
are meaningless.
"""

import errno
import io
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from specvl_demo import records
from specvl_demo.__main__ import main
from specvl_demo.compare.report import COLUMNS, TOTAL, page_of
from specvl_demo.pairs.machine import git_commit
from specvl_demo.places import ROOT
from tests.shared import corpus
from tests.shared.commands import refusal, run_json
from tests.shared.server import run_python

pytestmark = pytest.mark.usefixtures("assets")
FIELDS = [
    "text",
    "token_ids",
    "method",
    "pair",
    "lossless",
    "n_tokens",
    "n_rounds",
    "tau",
    "accepted_per_round",
    "relaxed_tokens",
    "prefill_s",
    "decode_s",
    "tokens_per_s",
    "stop",
    "seed",
]
RACE_FIELDS = ["speedup_decode", "speedup_total", "identical_to_ar", "first_difference"]


def test_generate_json_has_the_fields_and_nothing_else(capsys):
    line = "generate --method chain --image a.png --seed 3 --max-new-tokens 12 --prompt"
    told = run_json(capsys, line, "what is it")
    assert list(told) == FIELDS
    assert told["method"] == "chain" and told["pair"] == "pocket" and told["lossless"] is True
    assert told["n_tokens"] == len(told["token_ids"]) <= 12
    assert told["tau"] == pytest.approx(told["n_tokens"] / told["n_rounds"])
    assert told["tokens_per_s"] == pytest.approx(told["n_tokens"] / told["decode_s"])
    assert told["seed"] == 3 and told["relaxed_tokens"] == 0 and told["stop"] in ("eos", "length")


@pytest.mark.parametrize(
    "name", ["plain.jpg", "plain.png", "plain.gif", "plain.bmp", "clip.avi", "clip.webm"]
)
def test_a_file_that_lacks_its_end_is_shown_with_a_remark(name: str, capsys, place: Path):
    """A picture if it lacks little."""
    kind = "video" if name in corpus.CODECS else "image"
    data = (corpus.pictures() | corpus.clips())[name]
    line = f"generate --method ar --max-new-tokens 2 --{kind} {name}"
    (place / name).write_bytes(data[: len(data) * 19 // 20])
    remark = f"{name} is incomplete: its file ends too early."
    assert run_json(capsys, line)["remarks"] == [remark]
    (place / name).write_bytes(data[: len(data) // 2])
    assert kind == "video" or f"{name} is damaged" in refusal(capsys, line)


def test_a_console_ends_no_answer_for_want_of_a_character(monkeypatch):
    for argv, escape in ((["models"], "?"), (["models", "--json"], "\\u2019")):
        console = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr(sys, "stdout", console)
        assert main(argv) == 0
        assert escape in console.buffer.getvalue().decode("ascii")


@pytest.mark.parametrize(("text", "kind"), [(" \n", "is empty"), ("[{}]", "is a JSON array")])
def test_a_batch_file_of_another_kind_is_named(text: str, kind: str, capsys, place: Path):
    (place / "lines.jsonl").write_text(text)
    sentence = refusal(capsys, "generate --method ar --json --batch lines.jsonl")
    assert f"lines.jsonl {kind}; write one JSON object a line." in sentence


BATCH = """
{"id": "a", "prompt": "what is it", "images": ["a.png"], "video": null}
{"id": 7, "kind": "clip", "split": "choose", "prompt": "and", "video": "c.mp4"}
{"id": "gone", "prompt": "x", "images": ["nowhere.png"]}

{nonsense
{"id": "nothing", "prompt": " "}
{"id": "kind", "prompt": 5}
{"id": "last", "prompt": "what is it", "images": ["a.png"]}"""


def test_a_batch_answers_every_line(capsys, place: Path):
    """One load; a bad line gets its error under its id, if any, and the others are answered."""
    # Editors begin it with a byte-order mark.
    (place / "lines.jsonl").write_text(BATCH.lstrip(), encoding="utf-8-sig")
    line = "generate --method chain --max-new-tokens 10"
    assert main([*line.split(), "--json", "--batch", "lines.jsonl"]) == 1
    said = capsys.readouterr()
    told = [json.loads(line) for line in said.out.splitlines()]
    ids = ["a", 7, "gone", None, "nothing", "kind", "last"]
    assert said.err == "" and [answer["id"] for answer in told] == ids
    errors = {at: one["error"] for at, one in enumerate(told) if "error" in one}
    parts = {
        2: "no file",
        3: "not a line of JSON",
        4: "nothing to answer",
        5: "question must be text, not a number",
    }
    assert errors.keys() == parts.keys() and all(part in errors[at] for at, part in parts.items())
    assert [*told[0]] == ["id", *FIELDS]
    alone = run_json(capsys, f"{line} --image a.png --prompt", "what is it")
    assert told[0]["token_ids"] == told[6]["token_ids"] == alone["token_ids"]


def test_a_race_becomes_one_file(capsys, place: Path):
    """No address outside it; for words of strangers see tests/page/test_untrusted.py."""
    line = "race --methods tabed --image a.png --max-new-tokens 8 --trace t.jsonl --prompt x"
    assert main(line.split()) == 0
    capsys.readouterr()
    assert main(["trace", "html", "t.jsonl", "--out", "t.html"]) == 0
    assert capsys.readouterr().out == "t.html\n"
    page = (place / "t.html").read_text(encoding="utf-8")
    assert "function raceView" in page and "<script src" not in page and "<link" not in page
    for out, sentence in (("nowhere/t.html", "cannot be written"), ("t.png", "must end in .html")):
        assert sentence in refusal(capsys, f"trace html t.jsonl --out {out}")
        assert not (place / out).exists()


def test_python_races_saves_and_shows_as_the_readme_says(place: Path):
    """What the README shows: records as they are made, then the table, the trace and the file."""
    import specvl_demo as sv

    pair = sv.load("pocket")
    race = pair.race(
        "What is happening?", images=["a.png"], methods=["ar", "chain"], max_new_tokens=8
    )
    assert next(iter(race)).method == "ar"
    kinds = [type(record).__name__ for record in race]
    assert kinds[:2] == ["Begin", "Begin"] and kinds.count("End") == 2
    assert kinds == [type(record).__name__ for record in race]
    ar, chain = race.lanes
    assert ar.token_ids == chain.token_ids and ar.begin.notes.question == "What is happening?"
    assert "| chain" in race.table()
    race.save("sv.jsonl")
    race.html("sv.html")
    race.figure("sv.svg")
    assert main(["trace", "figure", "sv.jsonl", "--out", "cli.svg"]) == 0
    assert Path("cli.svg").read_text() == Path("sv.svg").read_text()
    assert main(["trace", "check", "sv.jsonl"]) == 0
    assert "function raceView" in Path("sv.html").read_text()
    assert "chain" in pair.methods
    two = [pair.race("What is this?", images=["a.png"], methods=["ar", "chain"]) for _ in range(2)]
    with ThreadPoolExecutor(4) as threads:  # two races at once, each read by two threads
        texts = list(threads.map(lambda one: [lane.text for lane in one.lanes], [*two, *two]))
    assert len({tuple(answers) for answers in texts}) == 1 and texts[0][0] == texts[0][1]


def test_a_race_gives_json_of_every_lane_and_a_trace_that_can_be_read(capsys, place: Path):
    line = "race --methods chain,sage,tabed,lvspec --video c.mp4 --max-new-tokens 16"
    told = run_json(capsys, f"{line} --set chain.gamma=3 --trace race.jsonl")
    assert [lane["method"] for lane in told["lanes"]] == ["ar", "chain", "sage", "tabed", "lvspec"]
    for lane in told["lanes"]:
        assert list(lane) == [*FIELDS, *RACE_FIELDS]
        if lane["lossless"]:
            assert lane["identical_to_ar"] is True and lane["first_difference"] is None
    assert told["lanes"][0]["speedup_decode"] == 1.0
    assert main(["trace", "check", "race.jsonl"]) == 0
    assert "5 lanes" in capsys.readouterr().out
    assert main(["trace", "show", "race.jsonl"]) == 0
    shown = capsys.readouterr().out
    assert "What happens in the clip?" in shown and "the target's own token" in shown
    begins = [json.loads(line) for line in (place / "race.jsonl").read_text().splitlines()]
    chain = next(b for b in begins if b["kind"] == "begin" and b["method"] == "chain")
    assert chain["settings"]["gamma"] == 3 and chain["n_visual"] == 4 * 36
    made_by = chain["versions"]
    assert made_by.get("commit") == git_commit() and len(made_by["weights of small"]) == 12
    assert [(s["kind"], s["frame"], s["rows"]) for s in chain["spans"]] == [
        ("video", frame, 6) for frame in range(4)
    ]


def test_all_means_every_method_of_the_pair(capsys):
    told = run_json(capsys, "race --methods all --image a.png --max-new-tokens 6")
    names = [lane["method"] for lane in told["lanes"]]
    assert names[0] == "ar" and {"chain", "tree", "ngram"} <= set(names) and "custom" not in names


def test_the_answer_streams_as_text(capsys):
    assert main(["generate", "--method", "ar", "--prompt", "what", "--max-new-tokens", "8"]) == 0
    said = capsys.readouterr()
    assert "| method" in said.out and said.err == ""


def test_models_lists_everything(capsys):
    told = run_json(capsys, "models")
    pocket = next(pair for pair in told["pairs"] if pair["id"] == "pocket")
    assert pocket["available"] is True and "chain" in pocket["methods"]
    verdict = pocket["verdicts"]["chain"]
    assert verdict["available"] and verdict["needs_bytes"] > 0 and verdict["dtype"] == "float32"
    assert all(list(pair["verdicts"]) == pair["methods"] for pair in told["pairs"])
    assert all(pair["reason"] for pair in told["pairs"])
    chain = next(method for method in told["methods"] if method["name"] == "chain")
    assert chain["parameters"][0]["name"] == "gamma" and chain["lossless"] is True
    assert main(["models"]) == 0
    assert "pocket" in capsys.readouterr().out


def test_bench_measures_beside_the_library(capsys, place: Path):
    (place / "own.jsonl").write_text('{"question": "What is it?", "image": "a.png"}')
    asked = "--data own.jsonl --repeats 2 --max-new-tokens 6"
    told = run_json(capsys, f"bench --methods chain --peers {asked}")
    rows = {row["method"]: row for row in told["rows"]}
    assert list(rows) == ["ar", "chain", "hf-generate", "hf-assisted"]
    assert {*COLUMNS, *TOTAL} <= set(rows["chain"])
    assert rows["ar"]["speedup_vs_ar"] == 1.0 and rows["chain"]["identical_to_ar"] is True
    assert rows["hf-generate"]["identical_to_ar"] and rows["hf-assisted"]["identical_to_ar"]
    assert rows["hf-generate"]["speedup_vs_hf_generate"] == 1.0
    assert rows["chain"]["repeats"] == 2 and rows["chain"]["spread"] >= 0
    shares = [rows["chain"][f"share_{phase}"] for phase in ("draft", "verify", "commit", "other")]
    assert sum(shares) == pytest.approx(1)
    assert told["settings"]["repeats"] == 2 and told["machine"]["threads"] >= 1
    timed = [row for row in told["timings"] if row["method"] == "chain" and row["id"] == "own-1"]
    tokens, seconds = (sum(row[name] for row in timed) for name in ("tokens", "seconds"))
    assert tokens / seconds == pytest.approx(rows["chain"]["tokens_per_s"])
    assert "Hugging Face's own decoding ran in float32, with" in page_of(told).to_markdown()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["generate", "--method", "ar", "--seed", "-1"], 2),
        (["trace", "check", "nowhere.jsonl"], 2),
        (["race", "--methods", "ar", "--pair", "nope"], 2),
    ],
)
def test_help_mistakes_and_traces_need_no_torch(words: list[str], code: int):
    done = run_python("-X", "importtime", "-m", "specvl_demo", *words)
    assert done.returncode == code and (done.stdout == "") == (code == 2)
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "specvl_demo.cli.parse" in imported
    assert not imported & {"torch", "transformers", "gradio", "numpy", "plotly", "PIL", "cv2"}


def test_an_answer_is_printed_if_its_trace_cannot_be_written(capsys, monkeypatch, tmp_path: Path):
    """The disk fills up while it is computed: the answer, then the sentence and its exit code."""
    whole, written = records.dumps, []

    def dumps(record: records.Record) -> str:
        written.append(record)
        if len(written) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(record)

    monkeypatch.setattr(records, "dumps", dumps)
    asked = ["generate", "--pair", "pocket", "--method", "ar", "--prompt", "x", "--json"]
    trace = tmp_path / "t.jsonl"
    assert main([*asked, "--max-new-tokens", "5", "--trace", str(trace)]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["n_tokens"] == 5 and len(written) == 3
    assert "t.jsonl cannot be written: No space left" in said.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    ("flags", "out", "code", "said"),
    [
        ([], "/dev/full", 1, "output cannot be written: No space left"),
        (["-OO"], os.devnull, 2, "run without it"),
    ],
)
def test_what_a_process_cannot_do_is_one_sentence(flags: list[str], out: str, code: int, said: str):
    trace = str(ROOT / "examples" / "chart.trace.jsonl")
    command = [sys.executable, *flags, "-m", "specvl_demo", "trace", "check", trace]
    with Path(out).open("w") as file:
        done = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.PIPE)
    text = done.stderr.decode()
    assert done.returncode == code and said in text and text.count("\n") == 1


def test_a_gpu_that_is_lost_is_one_sentence():
    """The process ends at once: what is freed at exit would fail again, and abort."""
    code = (
        "import sys, atexit\nfrom specvl_demo.__main__ import run_guarded\n"
        "class AcceleratorError(RuntimeError): ...\n"
        "def command(): raise AcceleratorError('CUDA error: misaligned address\\nCUDA kernel')\n"
        "atexit.register(print, 'aborted')\n"
        "sys.exit(run_guarded(command))"
    )
    done = run_python("-c", code)
    said = "The GPU stopped responding: CUDA error: misaligned address. Run the command again"
    assert done.returncode == 1 and done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1 and not done.stdout


def test_a_missing_package_is_named():
    code = (
        "import sys; sys.modules['torch'] = None; from specvl_demo.__main__ import main;"
        " sys.exit(main())"
    )
    done = run_python("-c", code, "generate", "--method", "ar", "--prompt", "what")
    assert done.returncode == 1 and done.stderr.startswith("torch is not installed: pip install")
