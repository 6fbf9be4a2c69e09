"""Pieces of text from token ids, on a byte-level vocabulary: characters of several tokens appear whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specvl_demo.core.detokenizer import Detokenizer, TokenTexts


def decode_bytes(ids: Sequence[int], keep_special: bool = False) -> str:
    """Ids below 256 are bytes; 256 is special. Like sentencepiece, the first token loses its leading
    space."""
    text = bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")
    text = text.removeprefix(" ")
    return text + "<end>" * (keep_special and 256 in ids)


@pytest.mark.parametrize(
    "text", ["plain text", " leading", "naïve café", "日本語 ok", "🙂 and 👩‍👩‍👧", "a\n b"]
)
def test_pieces_join_to_the_text_and_no_character_is_torn(text: str) -> None:
    ids = list(text.encode())
    speaker = Detokenizer(TokenTexts(decode_bytes), before=ord("x"))
    pieces = [speaker.say(i, last=n == len(ids) - 1) for n, i in enumerate(ids)]
    assert "".join(pieces) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert [len(p) for p in pieces].count(0) == len(ids) - len(text)


def test_an_answer_cut_inside_a_character_shows_that_it_is() -> None:
    speaker = Detokenizer(TokenTexts(decode_bytes), before=ord("x"))
    first, second = "é".encode()
    assert speaker.say(first) == "" and speaker.say(ord("!"), last=True).endswith("!")
    assert (
        Detokenizer(TokenTexts(decode_bytes), ord("x")).say(second, last=True) == "\N{REPLACEMENT CHARACTER}"
    )


def test_bytes_that_never_become_a_character_do_not_hold_the_text_back() -> None:
    speaker = Detokenizer(TokenTexts(decode_bytes), before=ord("x"))
    pieces = [speaker.say(0x80) for _ in range(6)]
    assert "".join(pieces)


def test_words_keep_their_space_and_special_tokens_have_names() -> None:
    lexicon = TokenTexts(decode_bytes)
    assert lexicon.word(ord(" ")) == " "
    assert lexicon.word(ord("a")) == "a"
    assert lexicon.word(256) == "<end>"


def test_what_was_decoded_once_is_remembered() -> None:
    calls = []
    lexicon = TokenTexts(lambda ids, keep_special=False: calls.append(1) or decode_bytes(ids))
    for _ in range(5):
        Detokenizer(lexicon, ord("x")).say(ord("a"))
        lexicon.word(ord("b"))
    assert len(calls) <= 4


def test_a_small_vocabulary_is_looked_up_ahead() -> None:
    calls = []
    lexicon = TokenTexts(lambda ids, keep_special=False: calls.append(1) or decode_bytes(ids), 200)
    calls.clear()
    assert [lexicon.word(i) for i in (65, 66, 199)][:2] == ["A", "B"] and not calls
