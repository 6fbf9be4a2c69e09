"""The decoder runtime: KV cache, cached sequences, backends and timing. Knows no pictures and no
methods.

The one thing that happens at import: torchvision is made importable where its compiled operators
cannot load, before the first import of transformers, which fails where torchvision does. PyPI has
torchvision for Linux linked against CUDA only; beside a CPU build of torch its import ends at the
first operator that it wants to describe. Processors need none of them, only the transforms: telling
torch two schemas is enough.
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
    """Declare the schemas where the operators are missing. The declaration lives as long as what is
    returned; None where there is nothing to mend: no torchvision, or one whose operators load."""
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
