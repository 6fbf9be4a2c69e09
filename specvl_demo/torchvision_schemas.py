"""Makes torchvision importable where its compiled operators cannot load.

PyPI has torchvision for Linux linked against CUDA only; beside a CPU build of torch its import, and
with it that of transformers' processors, fails at the first operator whose fake is registered.
Processors need only the transforms, so it is enough to declare two schemas to torch at that moment.
"""

from __future__ import annotations

import sys
from typing import Any

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class SchemaFinder:
    """Finds no module: it declares the schemas when torchvision is about to use them."""

    library: Any = None
    """Keeps them declared."""

    @classmethod
    def find_spec(cls, name: str, *_: object) -> None:
        if name == "torchvision._meta_registrations" and cls.library is None:
            import torch  # noqa: PLC0415 - loaded already, by torchvision

            if not hasattr(torch.ops.torchvision, "nms"):
                cls.library = torch.library.Library("torchvision", "DEF")
                for schema in SCHEMAS:
                    cls.library.define(schema)


sys.meta_path.insert(0, SchemaFinder)
