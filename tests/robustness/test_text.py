"""Words from strangers: prompts, file names, answers and traces are words wherever they are shown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from PIL import Image

from specvl_demo import pairs, records, session
from specvl_demo.__main__ import main
from specvl_demo.core.detokenizer import whole
from specvl_demo.core.sampling import Sampling
from specvl_demo.registry import choose, load
from specvl_demo.report import tables, trace
from tests import corpus, pocketlike
from tests.page.conftest import (  # noqa: F401 - the browser's fixtures
    browser_context_args,
    browser_type_launch_args,
    opened,
    url,
)
from tests.page.synthetic import race_records

MARKUP = (
    "<img src=x onerror=\"window.hit='{where}'\"><script>window.hit='{where}'</script>"
    '<a href="javascript:hit=1">b</a>'
)
RIGHT_TO_LEFT = "מה יש בתמונה? ما في الصورة؟"
ODD_QUESTIONS = {
    "emoji": "🙂 what is this 👩‍👩‍👧 ?",
    "right to left": RIGHT_TO_LEFT,
    "turned about": "what \u202eis this\u202c?",
    "no visible character": "\u200b",
    "control characters": "a\x00b\x07c\x1b[2Jd\x7f",
    "half a character": "what \ud800 is \udfff this",
    "a torn emoji": "\ud83d\ude42?",
    "bytes that are no text": b"what\xff\xfe".decode("utf-8", "surrogateescape"),
    "special tokens": "<image><eos><bos><pad><assistant>",
    "markup": MARKUP.format(where="question"),
    "a template": "{{ 7*7 }} {% raw %} {0} %s ${x}",
    "line ends": "a\r\nb\rc\u2028d\u2029e",
    "combining": "e" + "\u0301" * 200,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random pair on disk in the shape of the shipped one, and a picture."""
    folder = tmp_path_factory.mktemp("place")
    pocketlike.save_pair(folder / "pocket")
    corpus.halves((96, 64)).save(folder / "a.png")
    return folder


@pytest.fixture(scope="module")
def loaded(place: Path) -> Iterator[object]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "ASSETS", place)
        yield load(pairs.find("pocket"), ["small"])


def answer(loaded: object, question: str, shown: Sequence[Image.Image] = ()) -> list[records.Record]:
    asked = session.request(loaded, [session.turn(question, shown)], 4, Sampling())
    return list(session.race(loaded, asked, [choose(loaded.pair, name, {}, 0.0) for name in ("ar", "chain")]))


@pytest.mark.parametrize("what", ODD_QUESTIONS)
def test_odd_questions_are_answered_and_recorded(loaded: object, what: str, tmp_path: Path) -> None:
    """Both methods answer alike, the trace can be written, read and shown on a terminal."""
    found = answer(loaded, ODD_QUESTIONS[what])
    records.write(tmp_path / "t.jsonl", found)
    lanes, _ = trace.inspect(tmp_path / "t.jsonl")
    assert lanes[0].token_ids == lanes[1].token_ids
    assert lanes[0].begin.n_visual == 0
    assert all(line.isprintable() for line in trace.summary(lanes).split("\n"))


def test_halves_of_characters_are_mended() -> None:
    assert whole("\ud83d\ude42") == "🙂"
    assert whole("a\ud800b\udfffc") == "a\ufffdb\ufffdc"
    for kept in ("", "plain", RIGHT_TO_LEFT, "👩‍👩‍👧", "a\0b", "\ufeffx"):
        assert whole(kept) == kept


def test_only_a_picture_and_only_text(loaded: object) -> None:
    """A picture alone is described, text alone is answered."""
    picture = corpus.halves()
    begin = answer(loaded, " \n\t", [picture])[0]
    assert "Describe the picture." in begin.prompt and begin.n_visual > 0
    assert answer(loaded, "x")[0].n_visual == 0


def test_a_question_longer_than_the_context_is_refused_with_the_figures(loaded: object) -> None:
    for question in ("what " * 20_000, "🙂" * 25_000, "x" * 100_000):
        with pytest.raises(
            ValueError, match=r"The prompt has \d+ tokens and the answer may take 4; .* at most \d+"
        ):
            answer(loaded, question)


def test_the_command_line_takes_and_refuses_odd_questions(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """100,000 characters: exit code 2 with the figures; undecodable bytes and markup: an answer in JSON."""
    monkeypatch.setattr(pairs, "ASSETS", place)
    ask = ["generate", "--method", "ar", "--max-new-tokens", "2", "--json", "--prompt"]
    assert main([*ask, "long " * 20_000]) == 2
    said = capsys.readouterr()
    assert "tokens and the answer may take 2" in said.err and said.err.count("\n") == 1 and said.out == ""
    for question in (ODD_QUESTIONS["bytes that are no text"], ODD_QUESTIONS["markup"]):
        assert main([*ask, question]) == 0
        assert json.loads(capsys.readouterr().out)["n_tokens"] >= 1
    assert main(["generate", "--method", "\x1b[2J<b>", "--prompt", "x"]) == 2
    assert capsys.readouterr().err.strip().isprintable()


def test_nothing_an_answer_says_moves_the_terminal() -> None:
    assert tables.plain("a\tb\nc") == "a\tb\nc"
    assert tables.plain("\x1b[2J\x07\x9b\r\u202e") == "\ufffd[2J" + "\ufffd" * 4


def hostile(path: Path) -> Path:
    """A sound trace in which every text that a stranger may choose is markup that runs a script."""
    lines = []
    for record in race_records(["ar", "tabed", "lvspec"], n_tokens=30):
        data = msgspec.to_builtins(record)
        lane = f"{MARKUP.format(where='lane')}{data['lane']}"
        data["lane"] = lane
        if data["kind"] == "begin":
            for key in ("title", "pair", "prompt", "device", "dtype", "request"):
                data[key] = MARKUP.format(where=key)
            data["versions"] = data["models"] = {
                MARKUP.format(where="versions"): MARKUP.format(where="version")
            }
            data["settings"] = {MARKUP.format(where="setting"): MARKUP.format(where="value")}
            for seen in data["seen"]:
                seen["view"] = seen["words"] = MARKUP.format(where="view")
            frames = [
                MARKUP.format(where="frame"),
                "javascript:hit=1",
                "data:text/html,<script>hit=1</script>",
            ]
            frames.append("data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' onload='hit=1'/>")
            data["notes"] = {
                "question": MARKUP.format(where="asked"),
                "media": [
                    {
                        "name": MARKUP.format(where="file"),
                        "frames": [*frames, *data["notes"]["media"][0]["frames"]],
                    }
                ],
            }
            data["method"] = "ar" if data["method"] == "ar" else MARKUP.format(where="method")
            for span in data["spans"]:
                span["frame"] = 4
        elif data["kind"] == "round":
            for token in data["tokens"]:
                token["text"] = MARKUP.format(where="token")
            data["tree"]["texts"] = [MARKUP.format(where="node")] * len(data["tree"]["texts"])
            lists = [data["candidates"], *(data["views"] or {}).values()]
            for candidate in (c for each in lists for few in each for c in few):
                candidate["text"] = MARKUP.format(where="candidate")
            if data["views"]:
                data["views"] = {
                    MARKUP.format(where=f"column{i}"): v for i, v in enumerate(data["views"].values())
                }
            data["notes"] |= {
                "weights": {MARKUP.format(where="series"): 0.5, "b": 0.5},
                "heat": [MARKUP.format(where="heat")] * len(data["tokens"]),
                MARKUP.format(where="key"): [MARKUP.format(where="list")],
            }
        else:
            data["message"], data["stop"] = MARKUP.format(where="message"), "error"
        lines.append(json.dumps(data))
    path.write_text("\n".join(lines))
    assert trace.inspect(path)[1] == []
    return path


@pytest.mark.ui
def test_a_strangers_trace_runs_no_script(opened, tmp_path: Path) -> None:  # noqa: F811
    """Opened in the page and looked at in every view, its markup is text: nothing runs or is made of it.

    The fixture also fails on any console error, script fault, or request that leaves this machine.
    """
    page = opened
    path = hostile(tmp_path / "<img src=x onerror=hit=1>.jsonl")
    page.get_by_role("tab", name="Replay").click()
    page.locator("#vl-trace").set_input_files(path)
    page.wait_for_function("specvl.race.lanes.size === 3 && specvl.race.list[0].name.startsWith('<img')")
    page.evaluate("specvl.race.setHead(null)")
    for tab in ("Race", "Inspect", "Compare", "Replay", "Learn", "Race"):
        page.get_by_role("tab", name=tab).click()
        page.wait_for_timeout(200)
        for lane in range(3):
            page.evaluate("(i) => specvl.race.select({lane: specvl.race.list[i].name, token: 3})", lane)
            page.wait_for_timeout(150)
            page.evaluate("(i) => specvl.race.select({lane: specvl.race.list[i].name, round: 1})", lane)
            page.wait_for_timeout(150)
    assert page.evaluate("window.hit") is None
    grown = page.evaluate(
        "[...document.querySelectorAll('#specvl img[src=x], #specvl script, #specvl a[href^=javascript], "
        "#specvl [onerror], #specvl [onload], #specvl iframe')].map((node) => node.outerHTML)"
    )
    assert grown == []
    assert "<script>" in page.locator(".vl-lane .vl-text").first.inner_text()
    sources = page.evaluate(
        "[...document.querySelectorAll('#specvl img')].map((node) => node.getAttribute('src'))"
    )
    assert not any(s and s.startswith(("javascript:", "data:text", "data:image/svg")) for s in sources)


@pytest.mark.ui
def test_the_pages_own_table_holds_no_formulas(opened) -> None:  # noqa: F811
    """The comparison's CSV: words that begin like a formula are text, negative numbers stay numbers."""
    said = opened.evaluate(
        """async () => {
          const scripts = [...document.querySelectorAll('link[rel=modulepreload]')];
          const at = scripts.find((l) => l.href.endsWith('/compare.js'));
          const { csv } = await import(at.href);
          const row = {method: '=HYPERLINK("http://x","y")', races: 1, tau: -1.5, rho: {}};
          return csv([row, {...row, method: '@x'}, {...row, method: '-x'}], () => null);
        }"""
    )
    rows = list(csv.reader(io.StringIO(said)))[1:]
    assert [row[0] for row in rows] == ['\'=HYPERLINK("http://x","y")', "'@x", "'-x"]
    assert rows[0][2] == "-1.5"
