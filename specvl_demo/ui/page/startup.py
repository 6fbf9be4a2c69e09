"""Checks before anything heavy is imported: the installed versions, and the accounts; how the
page's process takes memory, and how it ends.

Given the package's own requirements and the environment; reports errors in one sentence. Reads only
metadata.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from specvl_demo import places

CHECKED = ("gradio", "torch", "transformers")
"""Packages whose next major version may be incompatible."""
MALLOPT = {"M_MMAP_THRESHOLD": (-3, 2**20), "M_ARENA_MAX": (-8, 2)}
"""Parameters of glibc's allocator (malloc.h) and their values."""
LOGIN = "SPECVL_LOGIN"


def check_versions() -> list[str]:
    """Return a sentence for each of CHECKED that is outside the package's range.

    It is only a warning: a range that was right months ago must not disable the page.

    Raises:
        ValueError: With a sentence if one is missing.
    """
    from packaging.requirements import Requirement  # noqa: PLC0415 - installed with the packages checked here

    outside = []
    for requirement in map(Requirement, _ranges()):
        if requirement.name not in CHECKED:
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            raise ValueError(
                f"{requirement.name} is not installed; {_needed(requirement)}"
            ) from None
        if not requirement.specifier.contains(version, prereleases=True):
            outside.append(
                f"{requirement.name} {version} is outside the tested range; {_needed(requirement)}"
            )
    return outside


def _ranges() -> list[str]:
    """Return what the package requires: from the checkout it runs from, else as installed."""
    project = places.ROOT / "pyproject.toml"
    if not project.is_file():
        return metadata.requires("specvl-demo") or []
    # Not tomllib, which Python 3.10 lacks.
    names = "|".join(CHECKED)
    return re.findall(rf'^ +"((?:{names})[<>=][^"]*)"', project.read_text(encoding="utf-8"), re.M)


def _needed(requirement: object) -> str:
    return f"this version needs {requirement}: pip install '{requirement}', or use `make demo`."


def logins(file: str | None = None) -> list[tuple[str, str]]:
    """Return the accounts that may see the page: (user, password), from a file or the environment.

    Empty means no login. Each line is user:password; errors repeat no part of it.
    """
    try:
        text = Path(file).read_text(encoding="utf-8") if file else os.environ.get(LOGIN, "")
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


def open_files() -> int:
    """Raise the limit of open files to the hard limit; return it, at most 2,048."""
    try:
        import resource  # noqa: PLC0415 - Windows has none
    except ImportError:
        return 2048
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 2048 if hard == resource.RLIM_INFINITY else min(2048, hard)


def few_arenas() -> None:
    """Let the C library allocate from two arenas, and large blocks outside them.

    By default each of the web server's forty threads gets an arena. What uploads and answers leave
    free in one is of no use to the others, so that memory grows with every visitor for hours.
    """
    if sys.platform == "linux":
        # Other C libraries do not have it, and do not need it.
        with suppress(OSError, AttributeError):
            for number, value in MALLOPT.values():
                ctypes.CDLL(None).mallopt(number, value)


def leave(*_: object) -> NoReturn:
    """End this process now; also as the handler of a signal before anything has begun, where an
    exception could be lost among the imports. Python's own end would take libraries seconds.
    """
    sys.stdout.write("The page has been stopped.\n")
    sys.stdout.flush()
    os._exit(0)
