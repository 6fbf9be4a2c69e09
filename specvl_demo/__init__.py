"""SpecVL demo: speculative decoding for vision-language models, shown round by round.

The public interface: `load` a pair, ask it with `Pair.race`, read or save the `Race`; `register` a
method of your own. Importing the package does not import torch; it makes torchvision importable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specvl_demo import torchvision_schemas as torchvision_schemas

if TYPE_CHECKING:
    from specvl_demo.methods.base import Method
    from specvl_demo.serving.session import Pair, Race

__version__ = "0.1.0"
__all__ = ["Pair", "Race", "load", "register"]


def load(
    pair: str = "photo",
    dtype: str | None = None,
    target: str | None = None,
    drafter: str | None = None,
) -> Pair:
    """Return a target with its drafters, loaded.

    Args:
        pair: "photo", "pocket" or another id of `python -m specvl_demo models`.
        dtype: float32, bfloat16 or float16; None for bfloat16 on a GPU, float32 on a CPU.
        target: Any model of a supported family instead of a pair: a folder, or its hub id.
        drafter: A smaller model with its vocabulary, or the folder of a trained head.

    Raises:
        ValueError: With a sentence if the pair is unknown or does not run here.
    """
    from specvl_demo.serving import session

    return session.load(pair, dtype, target, drafter)


def register(method: Method) -> Method:
    """Add a method of your own; `Pair.race`, the command line and the page then accept its name.

    Raises ValueError if the name is taken or its parts do not fit together.
    """
    from specvl_demo.methods import base

    return base.register(method)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name in ("Pair", "Race"):
        from specvl_demo.serving import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
