"""The decoder runtime: KV cache, cached sequences, backends and timing. Knows no pictures and no
methods.

Importing it has one effect: torchvision is made importable if its compiled operators cannot load,
before the first import of transformers, which would fail otherwise. PyPI has torchvision for Linux
linked against CUDA only; with a CPU build of torch its import fails at the first operator that it
registers. Processors need only the transforms, not the operators, so it is enough to declare two
schemas to torch.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def _declared() -> torch.library.Library | None:
    """Declare the schemas if the operators are missing; they stay declared while the result is
    alive.

    Returns None if there is nothing to mend: no torchvision, or one whose operators load.
    """
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        return None
    for compiled in Path(found.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(str(compiled))
            return None
        except OSError:
            continue
    library = torch.library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    return library


OPERATORS = _declared()
