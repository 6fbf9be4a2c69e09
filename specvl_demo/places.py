"""Where the shipped weights, the page's files and the examples lie: inside the package where it was
installed from a wheel, beside it in a checkout. The only file that climbs folders.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
"""From here `specvl_demo` is imported: the checkout, or the environment's packages."""


def _place(name: str) -> Path:
    installed = PACKAGE / name
    return installed if installed.is_dir() else ROOT / name


ASSETS = _place("assets")
EXAMPLES = _place("examples")
