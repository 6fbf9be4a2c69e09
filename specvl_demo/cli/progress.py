"""What is going on, on one line of a terminal that is wiped when it is done. Silent everywhere else."""

from __future__ import annotations

import sys


def tell(text: str) -> None:
    """Show what is going on; nothing where standard error is no terminal, so that a refusal stands alone."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text}…\x1b[K")
        sys.stderr.flush()


def done() -> None:
    """Wipe the line."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
