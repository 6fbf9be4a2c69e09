"""What is going on, on one line of a terminal that is wiped when it is done. Silent everywhere else."""

from __future__ import annotations

import sys

BAR = 24
"""Characters of a bar."""


def tell(text: str, share: float | None = None) -> None:
    """Show what is going on, and as a bar how much of it is done where that is known (0 to 1).

    Nothing where standard error is no terminal, so that a refusal stands alone.
    """
    if sys.stderr.isatty():
        full = round(BAR * min(max(share or 0.0, 0.0), 1.0))
        bar = "" if share is None else f"[{'█' * full}{'·' * (BAR - full)}] {100 * share:3.0f} %  "
        sys.stderr.write(f"\r{bar}{text}…\x1b[K")
        sys.stderr.flush()


def done() -> None:
    """Wipe the line."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
