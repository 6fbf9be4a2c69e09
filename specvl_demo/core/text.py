"""Token ids to pieces of text, as they are decided.

Given a function that decodes ids, gives the piece each token adds: a character spread over several tokens
appears with the token that completes it. Works on token ids alone, so a click on a piece of text leads to its
token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_BROKEN = "\N{REPLACEMENT CHARACTER}"


class Decode(Protocol):
    """Decodes ids as one text. keep_special: whether special tokens show."""

    def __call__(self, ids: Sequence[int], keep_special: bool = False) -> str: ...


class Lexicon:
    """Remembers what ids decode to; shared by the lanes of one tokenizer."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._after: dict[tuple[int, ...], str] = {}
        self._words: dict[int, str] = {}

    def after(self, before: int, ids: tuple[int, ...]) -> str:
        """The text that `ids` add behind the token `before`."""
        key = (before, *ids)
        if key not in self._after:
            head = self._decode([before])
            whole = self._decode(key)
            self._after[key] = whole[len(head) :] if whole.startswith(head) else self._decode(ids)
        return self._after[key]

    def word(self, token: int) -> str:
        """A token by itself, with its leading space; special tokens by their name."""
        if token not in self._words:
            # Decoders drop the leading space of the first token: ask for the second of two.
            piece = self.after(token, (token,))
            self._words[token] = piece or self._decode([token], keep_special=True)
        return self._words[token]


class Speaker:
    """The text of one answer, token by token."""

    def __init__(self, lexicon: Lexicon, before: int) -> None:
        """before: the prompt's last token."""
        self._lexicon = lexicon
        self._before = before
        self._open: tuple[int, ...] = ()

    def say(self, token: int, last: bool = False) -> str:
        """The piece this token adds; empty while a character is incomplete, unless the answer ends."""
        self._open = (*self._open, token)
        piece = self._lexicon.after(self._before, self._open)
        if piece.endswith(_BROKEN) and not last and len(self._open) < 4:
            return ""
        self._before, self._open = token, ()
        return piece
