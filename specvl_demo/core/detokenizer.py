"""Token ids to pieces of text, as they are decided.

Given a function that decodes ids, returns the piece each token adds: a character spread over
several tokens appears with the token that completes it. Since every piece belongs to one token, a
click on it leads to that token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

_BROKEN = "\N{REPLACEMENT CHARACTER}"


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which neither tokenizers nor UTF-8 can encode."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class TokenTexts:
    """Caches what ids decode to; shared by the lanes of one tokenizer.

    decode: decode(ids, keep_special=False) -> text, with or without special tokens.
    vocabulary: ids below this are decoded at once, so that no lane is charged for a first use.
    """

    def __init__(self, decode: Callable[..., str], vocabulary: int = 0) -> None:
        self._decode = cache(decode)
        self._words: dict[int, str] = {}
        for token in range(vocabulary):
            self.display_text(token)

    def text_after(self, before: int, ids: Sequence[int]) -> str:
        """Return the text that `ids` add after the token `before`."""
        head = self._decode((before,))
        both = self._decode((before, *ids))
        return both[len(head) :] if both.startswith(head) else self._decode(tuple(ids))

    def added_text(self, token: int) -> str:
        """Return the text a token adds after any other; special tokens add none."""
        # Decoders drop the leading space of the first token, so decode it as the second of two.
        return self.text_after(token, (token,))

    def display_text(self, token: int) -> str:
        """Return a token's own text with its leading space; for special tokens, their name."""
        if token not in self._words:
            self._words[token] = self.added_text(token) or self._decode((token,), keep_special=True)
        return self._words[token]


class Detokenizer:
    """The text of one answer, token by token; `stopped` once it has reached a stop string."""

    def __init__(self, token_texts: TokenTexts, before: int, stop: Sequence[str] = ()) -> None:
        """before: the prompt's last token."""
        self._token_texts = token_texts
        self._before = before
        self._open: tuple[int, ...] = ()
        self._stop = stop
        self._held = ""
        self.stopped = False

    def decode_next(self, token: int, last: bool = False, may_stop: bool = True) -> str:
        """Return the piece this token adds: empty while a character is incomplete and goes on.

        What may become a stop string is held back until later tokens decide, so that no text is
        ever taken back. may_stop: Whether stop strings count yet.
        """
        piece = self._decode(token, last)
        return self._cut(piece, last) if self._stop and may_stop else piece

    def _cut(self, piece: str, last: bool) -> str:
        text = self._held + piece
        self._held = ""
        places = [at for stop in self._stop if (at := text.find(stop)) >= 0]
        if places:
            self.stopped = True
            return text[: min(places)]
        starts = (
            at for at in range(len(text)) if any(stop.startswith(text[at:]) for stop in self._stop)
        )
        end = len(text) if last else next(starts, len(text))
        self._held = text[end:]
        return text[:end]

    def _decode(self, token: int, last: bool) -> str:
        piece = self._token_texts.added_text(token)
        if self._open or _BROKEN in piece:
            self._open = (*self._open, token)
            piece = self._token_texts.text_after(self._before, self._open)
            if piece.endswith(_BROKEN) and not last and len(self._open) < 4:
                return ""
        self._before = token
        self._open = ()
        return piece
