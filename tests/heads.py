"""Random heads for tiny targets: as modules that can learn, and built for drafting from the same tensors."""

from __future__ import annotations

from typing import Any

import torch

from specvl_demo.core.types import Decoder
from specvl_demo.methods.heads.blocks import Geometry
from specvl_demo.methods.heads.checkpoints import FORMATS, Head
from specvl_demo.training.drafters.dream import DreamHead as DreamModule
from specvl_demo.training.drafters.eagle import FeatureHead as FeatureModule
from specvl_demo.training.drafters.hivis import HivisHead

GEOMETRY = Geometry(width=64, heads=4, kv_heads=4, head_width=16, eps=1e-5, theta=10000.0)


def random_module(kind: str, geometry: Geometry = GEOMETRY, seed: int = 0) -> torch.nn.Module:
    """A head whose every tensor matters."""
    torch.manual_seed(seed)
    if kind == "dream":
        module: torch.nn.Module = DreamModule(geometry, ffn=96, scale=1.7)
    elif kind == "hivis":
        module = HivisHead(geometry, 96, (1.3, 0.7), step_rows=3)
    else:
        module = FeatureModule(geometry, 96, (1.3, 0.7))
    with torch.no_grad():
        for p in module.parameters():
            p += 0.15 * torch.randn_like(p)
        if kind == "dream":
            module.layers[1].cross_attn_attn_gate.fill_(0.8)
            module.layers[1].cross_attn_mlp_gate.fill_(0.6)
    return module.eval()


def built(
    module: torch.nn.Module, kind: str, decoder: Decoder, geometry: Geometry = GEOMETRY, **own: object
) -> Any:
    """The module's tensors behind the lean forward."""
    own = {"method": kind, **own}
    head = Head(kind, module.published(), geometry, {}, f"tiny {kind}", own)
    return FORMATS[kind].build(head, decoder)
