"""Where the shipped weights, the page's files and the examples are: inside the package if installed
from a wheel, next to it in a checkout. Where files are kept that are made once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import platformdirs

AnyPath: TypeAlias = str | os.PathLike[str]
PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
"""The folder that `specvl_demo` is imported from: the checkout, or the environment's packages."""


def _data_folder(name: str) -> Path:
    installed = PACKAGE / name
    return installed if installed.is_dir() else ROOT / name


ASSETS = _data_folder("assets")
EXAMPLES = _data_folder("examples")

CACHE_VARIABLE = "SPECVL_CACHE"
"""Names another folder than the platform's for files that are made once and kept."""


def cache() -> Path:
    """Return the folder of what is made once: SPECVL_CACHE, else the user's cache."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else platformdirs.user_cache_path("specvl-demo")


def import_env(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which another Python imports from where this one does, whoever
    started it and however it came by its `sys.path`.
    """
    return {**environment, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
