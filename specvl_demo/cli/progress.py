"""The current activity, on one line of a terminal that is cleared at the end. Silent everywhere
else.
"""

from __future__ import annotations

from tqdm import tqdm

_bars: list[tqdm] = []


def tell(text: str, share: float | None = None) -> None:
    """Show the current activity, and a bar with its share (0 to 1) if known.

    Does nothing if standard error is not a terminal, so that an error message is the only output.
    """
    if not _bars:
        _bars.append(tqdm(total=1.0, leave=False, disable=None))
    bar = _bars[0]
    bar.bar_format = "{desc}…" if share is None else "{bar:24} {percentage:3.0f} %  {desc}…"
    bar.n = share or 0.0
    bar.set_description_str(text)


def done() -> None:
    while _bars:
        _bars.pop().close()
