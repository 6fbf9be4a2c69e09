"""What cannot be is refused in one sentence that says what was needed: one table for each way in.

The command line, Python, a question of the page (which its endpoints and Compare ask in too), and
programs in OpenAI's form.
"""

import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import specvl_demo as sv
from specvl_demo.__main__ import main
from specvl_demo.options import Sampling
from specvl_demo.places import EXAMPLES
from specvl_demo.question import MAX_FILES, MAX_TURNS
from specvl_demo.ui.serve import benches, workers
from specvl_demo.ui.serve.jobs import read_job
from tests.shared.refusals import read_table, refuses
from tests.unit.test_openai_form import COMPLETIONS, Api

COMMANDS = """
dance                                      nvalid choice: 'dance'
generate --prompt x                        --method
generate --method ar                       nothing to answer
generate --method ar --prompt              expected one argument
generate --method ar --prompt=             nothing to answer
fetch photos                               Invalid choice: 'photos'
nope:                                      no method 'nope'; known: ar
ar: --pair nope                            no pair 'nope'; known: photo, pocket
ar: --image nowhere.png                    no file
ar: --image broken.png                     damaged
ar: --image http://example.org/a.png       is an address: download the file first
ar: --image words.png                      neither a picture nor a clip
ar: --image .                              not a file
ar: --image c.mp4                          is a clip
ar: --video a.png                          still picture
ar: --video nowhere.mp4                    no file
ar: --max-new-tokens 0                     between 1 and
ar: --max-new-tokens 4096                  together this model allows
ar: --temperature nan                      between 0.001 and 10
ar: --temperature 1e-320                   between 0.001 and 10
ar: --top-p 1.5                            between 0.001 and 1, not 1.5
ar: --seed -1                              between 0
ar: --dtype int8                           invalid choice: 'int8'
ar: --bogus                                Unrecognized
ar: --set gamma                            KEY=VALUE
ar: --set gamma=5                          has no parameter 'gamma'
ar: --trace nowhere/t.jsonl                cannot be written
ar: --trace a.png                          must end in .jsonl
ar: --max-new-tokens 4 --trace /dev/full   /dev/full cannot be written: No space left
chain: --set gamma=0                       gamma must be a whole number between 1 and 64
chain: --set gamma=five                    whole number
chain: --set colour=1                      no parameter 'colour'
chain: --set policy=best-first             take the method custom
chain: --set drafter=nope                  no drafter 'nope'
chain: --set preset=nope                   no preset 'nope'
lvspec: --temperature 1                    temperature
sage: --set growth=sideways                growth
sage: --set min_width=11                   min_width
chain: --drafter pocket/drafter            A drafter needs the target that it drafts for
chain: --target pocket/drafter --drafter pocket/target   must be smaller
chain: --target pocket/nowhere --drafter pocket/drafter  nowhere
chain: --target pocket/target --drafter somebody/head    not in the local cache
custom: --set policy=nope                  no policy 'nope'
custom: --set policy=one-node              never be used
custom: --set drafter=none                 'none' does not
custom: --set drafter=ngram --set policy=best-first   needs
custom: --set drafter=ngram --set views=multimodal    views empty
custom: --set views=                       at least one view
custom: --set views=multimodal+multimodal  twice
race --methods ar,nope --prompt x          no method 'nope'
race --methods , --prompt x                name at least one method; `models` lists them
race --methods chain,chain --prompt x      chain twice
race --methods chain --prompt x --set bogus=1           no parameter 'bogus'; it has: gamma
race --methods chain,sage --prompt x --set bogus=1      chain has no parameter 'bogus'
race --methods ar,sage --prompt x --set preset=nope     sage has no preset 'nope'; it has: paper
race --methods chain,sage --prompt x --set preset=nope  chain has no preset 'nope'
race --methods ar,custom --prompt x --set policy=one-node  never be used
race --methods chain --prompt x --set sage.max_depth=4  sage does not run here
bench --methods nope                       no method 'nope'
bench --suite nope --methods ar            invalid choice: 'nope'
bench --repeats 0                          between 1
bench --data nowhere.jsonl                 no file nowhere.jsonl
trace                                      check|show|html
trace check                                FILE
trace show nowhere.jsonl                   no file
trace show .                               is a folder
trace check a.png                          not UTF-8
trace show words.png                       line 1: JSON is malformed
trace html nowhere.jsonl                   --out
generate --method ar --batch lines.jsonl   add --json
ar: --batch lines.jsonl --json             takes prompts and files from its lines
generate --method ar --batch nowhere.jsonl --json  cannot be read
models --see 7                             Unrecognized arguments: --see 7
serve --pair nope                          There is no pair 'nope'; known: photo, pocket,
serve --port 0                             --port: must be a whole number between 1 and 65535, not 0
serve --workers 0                          --workers: must be a whole number between 1 and 1024
serve --gpus-each -1                       --gpus-each: must be a number between 0 and 64, not -1
serve --waiting -5                         --waiting: must be a whole number between 0 and 10000
serve --limit nan                          --limit: must be a number between 1 and 86400, not nan
serve --login-file nowhere                 cannot be read
serve --nonsense                           Unrecognized arguments: --nonsense
"""
"""What is typed, two spaces or more, a part of the sentence. `ar:` is a question to this method."""
LONG = [
    ("ar:" + " --image a.png" * 9, "at most 8"),
    ("ar: --seed " + "9" * 5000, "…999"),
    ("x" * 5000 + ":", "…xxx"),
    ("\x1b[2J<b>:", "no method"),
]
TYPED = [tuple(line.split("  ", 1)) for line in COMMANDS.strip().splitlines()] + LONG


@pytest.mark.parametrize(("line", "part"), TYPED, ids=[line[:60] for line, _ in TYPED])
@pytest.mark.usefixtures("assets")
def test_the_command_line_refuses(capsys, monkeypatch, line: str, part: str):
    """With exit code 2, and nothing on standard output."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # what `serve` does first
    monkeypatch.setattr(workers, "make_worker", lambda *_: pytest.fail("was served"))
    method, colon, flags = line.partition(":")
    words = ["generate", "--method", method, "--prompt", "x", *flags.split()]
    assert main(words if colon else line.split()) == 2
    printed = capsys.readouterr()
    assert part.strip() in printed.err and len(printed.err) < 1000 and printed.out == ""
    assert printed.err.strip().isprintable() and "Traceback" not in printed.err
    assert printed.err.endswith(".\n")


CALLS = """
{"methods": ["nope"]}                        no method 'nope'
{"methods": "chain"}                         methods must be a list of names
{"methods": []}                              at least one method
{"images": ["nowhere.png"]}                  no file
{"images": [7]}                              Pictures and clips must be paths, or Pillow's images
{"images": [""]}                             The name of a file is empty
{"settings": {"ar": {"gamma": 1}}}           no parameter 'gamma'
{"settings": {"gamma": 3}}                   no method 'gamma'; known:
{"settings": {"ar": "gamma=3"}}              such as {.*}; under 'ar' is text
{"temperature": -1.0}                        must be 0, or a number between 0.001 and 10, not -1
{"temperature": null}                        Temperature must be
{"repetition_penalty": 11}                   must be 0, or a number between 0.1 and 10, not 11
{"max_new_tokens": 0}                        must be a whole number between 1 and 4096, not 0
{"question": " "}                            nothing to answer
{"question": null}                           nothing to answer
"""
"""What Python's caller gives, two spaces or more, and what the sentence matches."""


@pytest.fixture(scope="module")
def pair(place: Path) -> sv.Pair:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specvl_demo.pairs.ASSETS", place)
        return sv.load("pocket")


@pytest.mark.parametrize(("fields", "part"), read_table(CALLS))
@pytest.mark.usefixtures("assets")
def test_python_refuses(pair: sv.Pair, fields: dict[str, Any], part: str):
    refuses(part, pair.race, **{"question": "x", "methods": ["ar"], **fields})


@pytest.mark.usefixtures("assets")
def test_python_refuses_pixels_that_are_not_there(pair: sv.Pair, tmp_path: Path):
    (tmp_path / "cut.png").write_bytes((EXAMPLES / "scene.png").read_bytes()[:400])
    cut = Image.open(tmp_path / "cut.png")
    refuses("no pixels", pair.race, images=[Image.new("RGB", (0, 5))])
    refuses("cannot be decoded: image file is truncated", pair.race, images=[cut])
    refuses("paths, or Pillow's images", pair.race, images=np.zeros((4, 4, 3)))


def test_python_loads_nothing_that_is_not_there():
    refuses("no pair 'nope'", sv.load, "nope")
    refuses("dtype must be one of float32, .* not 'int8'", sv.load, "pocket", "int8")


def test_no_number_of_sampling_is_out_of_bounds():
    refuses("Top-p must be a number between 0.001 and 1, not 1.5", Sampling, top_p=1.5)
    assert isinstance(Sampling(temperature=1).temperature, float)


QUESTIONS = """
{"pair": "nope"}                             no pair 'nope'; known: photo, pocket,
{"pair": ["pocket"]}                         The pair must be text, not a list
{"methods": ["nope"]}                        no method 'nope'; known: .*ar,
{"methods": "ar"}                            methods must be a list .* not text
{"methods": ["sage", "ar", "sage"]}          methods name sage twice
{"settings": {"nope": {}}}                   no method 'nope'; known: .*ar,
{"settings": "gamma=5"}                      Settings must be an object
{"settings": {"ar": 5}}                      such as {.*}; under 'ar' is a number
{"settings": {"ar": {"gamma": [1]}}}         The setting 'gamma' must be .* not a list
{"media": ["/path"]}                         Pictures and clips must be .* not text
{"media": "scene.png"}                       not text
{"history": "before"}                        history must be a list .* not text
{"max_new_tokens": true}                     Max new tokens must be .* not True
{"max_new_tokens": 1.5}                      must be .* between 1 and 1024, not 1.5
{"dtype": "float8"}                          dtype must be one of float32, .* not 'float8'
{"quantised": ["4bit"]}                      packing of weights must be .* not \\['4bit'\\]
{"picture_detail": 0}                        detail must be a number between 0.05 and 25
{"prefix": ["The"]}                          The prefix must be a list of token ids
"""
"""What the page sends, two spaces or more, and what the sentence matches."""
UPLOADS = [{"path": "a.png", "name": "a.png"}] * (MAX_FILES + 1)
TURN = {"question": "q", "answer": "a", "media": []}
LARGE = [
    ({"media": UPLOADS}, f"at most {MAX_FILES} pictures .* got {MAX_FILES + 1}"),
    ({"history": [TURN | {"media": UPLOADS}]}, f"at most {MAX_FILES} pictures"),
    ({"question": " ", "before": [TURN], "media": UPLOADS[:1]}, "nothing to answer"),
    ({"history": [TURN] * (MAX_TURNS + 1)}, f"at most {MAX_TURNS} earlier questions, got"),
    ({"seed": 10**5000}, "Seed must be a whole number .* not a number of more than 12 digits"),
    ({"prefix": "é" * 513}, "beginning has 1026 bytes; at most 1024"),
    ({"prefix": [1] * 1025}, "beginning has 1025 tokens; at most 1024"),
]


@pytest.mark.parametrize(("fields", "part"), read_table(QUESTIONS) + LARGE)
def test_the_page_refuses(tmp_path: Path, monkeypatch, fields: dict[str, Any], part: str):
    """A question of a wrong kind; nothing of it is dropped or cut in silence."""
    monkeypatch.chdir(tmp_path)
    Path("a.png").write_bytes(b"x")
    payload = {"pair": "pocket", "question": "?", "methods": ["ar"], **fields}
    assert len(refuses(part, read_job, payload, [tmp_path])) < 1000


COMPARISONS = """
{"questions": 101}                           between 1 and 100, not 101
{"repeats": true}                            between 1 and 10, not True
{"questions": 60, "repeats": 10}             are too many
{"temperature": []}                          Temperature must be 0, or a number
{"temperature": 1, "methods": ["lvspec"]}    lvspec is not defined for sampling
{"lines": "{}"}                              line 1: a question is needed, .* has nothing
{"lines": "{\\"id\\":7,\\"prompt\\":\\"a\\"}\\n{\\"id\\":7,\\"prompt\\":\\"b\\"}"}  line 2: .*line 1
{"lines": "{\\"q\\": \\"x\\"}"}                line 1: a question is needed, .* has q
{"lines": "{\\"question\\": \\"?\\", \\"image\\": \\"/etc/passwd\\"}"}   was not added
"""


@pytest.mark.parametrize(("fields", "part"), read_table(COMPARISONS))
def test_compare_refuses(fields: dict[str, Any], part: str):
    request = {"pair": "pocket", "methods": ["chain"], "questions": 2, "repeats": 2, **fields}
    refuses(part, benches.read_bench, request, [], None)


# "content" is that of the one message.
COMPLETED = """
{"stop": [".", ""]}                          At most 16 stop strings of 1 to 200 characters
{"stop": 7}                                  Stop strings must be texts, not a number
{"logit_bias": {"x": 1}}                     is for the id of a token, not 'x'
{"logit_bias": {"1": 101}}                   must be a number between -100 and 100, not 101
{"logit_bias": [1]}                          Logit biases must be an object of numbers by token id
{"ignore_eos": "yes"}                        ignore_eos must be true or false, not text
{"logprobs": 5}                              `logprobs` must be true or false, not 5
{"top_logprobs": 5}                          `top_logprobs` needs `logprobs`
{"logprobs": true, "top_logprobs": 21}       between 0 and 20, not 21
{"n": 2}                                     `n` must be 1 or left out here, not 2.
{"skip_special_tokens": false}               `skip_special_tokens` must be true or left out here
{"stream": "yes"}                            `stream` must be true or false, not 'yes'
{"tools": [{"type": "function"}]}            `tools` is not known here; leave it out.
{"best_of": 3}                               `best_of` must be 1 or left
{"top_k": -2}                                `top_k` must be 0, or a whole number between 1 and
{"repetition_penalty": 11}                   `repetition_penalty` must be 0, or a number between 0.1
{"length_penalty": 1.1}                      `length_penalty` must be 1 or left out here, not 1.1
{"model": "pocket/native", "stream": true}   native needs a
{"model": "pocket/lvspec", "stream": true, "temperature": 1}   lvspec is not defined for
{"model": 7}                                 /v1/models
{"model": null}                              or pair/method (/v1/models lists them), not null.
{"temperature": 1000}                        `temperature` must
{"temperature": -1}                          must be 0, or a number between 0.001 and 10, not -1
{"top_p": 2}                                 `top_p` must be a number between 0.001 and 1, not 2
{"seed": 1.5}                                `seed` must be a whole number between 0 and 2147483647
{"max_tokens": "x"}                          `max_tokens` must
{"max_tokens": -1}                           must be a whole number between 1 and 1024, not -1
{"max_tokens": 5000}                         must be a whole number between 1 and 1024, not 5000
{"messages": []}                             "Why is the sky blue?"}], not [].
{"messages": null}                           `messages` must be a list such as
{"messages": ["x"]}                          `messages[0]` must be an object
{"messages": [{"content": "x"}]}             `messages[0].role` must be user here
{"messages": [{"role": "bot"}, {"role": "user"}]}  or assistant here (system prompts come first,
{"messages": [{"role": "user"}]}             `messages[0].content` must be text, or
{"messages": [{"role": "tool", "content": "x"}]}  there are no tools), not 'tool'.
{"content": ""}                              There is nothing to answer
{"content": ["x"]}                           `messages[0].content[0]` must be a part
{"content": [{"type": "text"}]}              `messages[0].content[0].text` must be text, not null
{"content": [{"type": "input_audio"}]}       is text, image_url or video_url
{"content": [{"type": "image_url", "image_url": "https://example.org/a.png"}]}  holds the file
{"content": [{"type": "image_url", "image_url": "data:;base64,@@@"}]}  must be base64
{"content": [{"type": "image_url", "image_url": "data:;base64,AAAA"}]}  content[0].image_url is
{"content": [{"type": "image_url", "image_url": "data:;base64,iVBORw0KGgo="}]}  is damaged
"""


@pytest.mark.parametrize(("fields", "part"), read_table(COMPLETED))
def test_openais_form_refuses(tmp_path: Path, fields: dict[str, Any], part: str):
    api = Api(tmp_path)
    answer = api.complete(**fields)
    error = answer.json()["error"]
    assert answer.status_code == 400 and part in error["message"] and not api.jobs
    assert error["param"].startswith(("messages", *fields))
    assert {error["param"]} >= {*re.findall(r"^`?((?<=`).+?(?=`)|messages\S+)", error["message"])}
    assert error["type"] == "invalid_request_error" and error["message"].endswith(".")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/models/gpt-4o", b"", 404),
        ("GET", "/v1/embeddings", b"", 404),
        ("POST", COMPLETIONS, b'{"model": "nope"}', 404),
        ("POST", COMPLETIONS, b'{"model": "pocket/nope"}', 404),
        ("GET", COMPLETIONS, b"", 405),
        ("POST", COMPLETIONS, b"no json", 400),
        ("POST", COMPLETIONS, b" " * (17 * 2**20), 413),
    ],
)
def test_openais_form_refuses_on_every_route(
    tmp_path: Path, method: str, path: str, body: bytes, status: int
):
    answer = Api(tmp_path).send(method, path, content=body)
    error = answer.json()["error"]
    assert answer.status_code == status and error["message"].endswith(".")
    assert error["type"] == "invalid_request_error"
