"""The accounts, and how the page's process takes memory and files, and how it ends."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

MALLOPT = (-3, 2**20), (-8, 2)
"""Parameters of glibc's allocator and their values: M_MMAP_THRESHOLD and M_ARENA_MAX (malloc.h)."""
LOGIN = "SPECVL_LOGIN"


def read_logins(file: str | None = None) -> list[tuple[str, str]]:
    """Return the accounts that may see the page, (user, password), from a file or the environment;
    empty for no login. Errors repeat no part of a line.
    """
    try:
        text = Path(file).read_text(encoding="utf-8-sig") if file else os.environ.get(LOGIN, "")
    except (OSError, UnicodeDecodeError) as fault:
        raise ValueError(f"The file of logins cannot be read: {type(fault).__name__}.") from None
    pairs = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        user, colon, password = line.strip().partition(":")
        if not colon or not user or not password:
            raise ValueError(f"Line {number} of the logins must be user:password.")
        pairs.append((user, password))
    if file and not pairs:
        raise ValueError(
            "The file of logins has no account: the page would be open to all. Add one, or omit it."
        )
    return pairs


def raise_file_limit() -> int:
    """Raise the limit of open files to the hard limit; return it, at most 2,048."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 2048 if hard == resource.RLIM_INFINITY else min(2048, hard)


def limit_arenas() -> None:
    """Let the C library allocate from two arenas, and large blocks outside them: what uploads and
    answers leave free in a thread's own arena is of no use to others, and memory grows for hours.
    """
    if sys.platform == "linux":
        # Other C libraries do not have it, and do not need it.
        with suppress(OSError, AttributeError):
            for number, value in MALLOPT:
                ctypes.CDLL(None).mallopt(number, value)


def exit_process(*_: object) -> NoReturn:
    """End this process now; also as the handler of a signal before anything has begun, where an
    exception could be lost among the imports. Python's own end would take libraries seconds.
    """
    sys.stdout.write("The page has been stopped.\n")
    sys.stdout.flush()
    os._exit(0)
