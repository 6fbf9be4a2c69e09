"""What is going on, on one line of a terminal that is wiped when it is done. Silent everywhere
else.
"""

from __future__ import annotations

from tqdm import tqdm

_bars: list[tqdm] = []


def tell(text: str, share: float | None = None) -> None:
    """Show what is going on, and as a bar how much of it is done where that is known (0 to 1).

    Nothing where standard error is no terminal, so that a refusal stands alone.
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
