"""SpecVL demo: speculative decoding for vision-language models, shown round by round.

The public interface: `load` a pair, ask it with `Pair.race`, read or save the `Race`; `register` a
method of your own. Importing the package does not import torch; it makes torchvision importable,
and lets idle threads sleep.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from specvl_demo import torchvision_schemas as torchvision_schemas
from specvl_demo import waiting_threads as waiting_threads

if TYPE_CHECKING:
    from specvl_demo.methods.base import register
    from specvl_demo.serving.session import Pair, Race, load

__version__ = "0.1.0"
__all__ = ["Pair", "Race", "load", "register"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = "methods.base" if name == "register" else "serving.session"
    return getattr(import_module(f"specvl_demo.{place}"), name)
