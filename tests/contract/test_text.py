"""Words from strangers: prompts, names of files, answers and traces stay words where shown."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from specvl_demo import pairs, records
from specvl_demo.core.detokenizer import replace_surrogates
from specvl_demo.question import Question
from specvl_demo.report import tables, trace
from specvl_demo.serving import session
from specvl_demo.serving.choosing import choose
from specvl_demo.serving.loader import load_pair
from tests.shared.refusals import refuses

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
def loaded(place: Path) -> Iterator[object]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "ASSETS", place)
        yield load_pair(pairs.find("pocket"), ["small"])


def answer(loaded: object, question: str) -> list[records.Record]:
    asked = Question(replace_surrogates(question), max_new_tokens=4)
    choices = [choose(loaded.pair, name, {}, 0.0) for name in ("ar", "chain")]
    return list(session.race(loaded, session.make_request(loaded, asked), choices))


@pytest.mark.parametrize("what", ODD_QUESTIONS)
def test_odd_questions_are_answered_and_recorded(loaded: object, what: str, tmp_path: Path):
    """Both methods answer alike, the trace can be written, read and shown on a terminal."""
    made = answer(loaded, ODD_QUESTIONS[what])
    records.write_trace(tmp_path / "t.jsonl", made)
    lanes, _ = trace.inspect_file(tmp_path / "t.jsonl")
    assert lanes[0].token_ids == lanes[1].token_ids
    assert lanes[0].begin.n_visual == 0
    summary = trace.summary(lanes).replace("\N{ZERO WIDTH JOINER}", "")  # part of some emoji
    assert all(line.isprintable() for line in summary.split("\n"))


def test_halves_of_characters_are_mended():
    assert replace_surrogates("\ud83d\ude42") == "🙂"
    assert replace_surrogates("a\ud800b\udfffc") == "a\ufffdb\ufffdc"
    for text in ("", "plain", RIGHT_TO_LEFT, "👩‍👩‍👧", "a\0b", "\ufeffx"):
        assert replace_surrogates(text) == text


def test_a_question_longer_than_the_context_is_refused_with_the_figures(loaded: object):
    for question in ("what " * 20_000, "🙂" * 25_000, "x" * 100_000):
        refuses(
            r"The prompt has \d+ tokens and the answer may have 4; .* at most \d+",
            answer,
            loaded,
            question,
        )


def test_nothing_an_answer_says_moves_the_terminal():
    assert tables.plain("a\tb\nc") == "a\tb\nc"
    assert tables.plain("\x1b[2J\x07\x9b\r\u202e") == "\ufffd[2J" + "\ufffd" * 4
