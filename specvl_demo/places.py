"""Where the shipped weights, the page's files and the examples are: inside the package if installed
from a wheel, next to it in a checkout. The only module that climbs folders.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
"""The folder that `specvl_demo` is imported from: the checkout, or the environment's packages."""


def _place(name: str) -> Path:
    installed = PACKAGE / name
    return installed if installed.is_dir() else ROOT / name


ASSETS = _place("assets")
EXAMPLES = _place("examples")
