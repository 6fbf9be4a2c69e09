"""Random heads for tiny targets: as modules that can learn, and built for drafting from the same tensors."""

from __future__ import annotations

import torch

from specvl_demo.core.types import Decoder, Drafter
from specvl_demo.drafters.blocks import Geometry
from specvl_demo.drafters.checkpoints import Head, Kind
from specvl_demo.drafters.dream import DreamDrafter, DreamHead
from specvl_demo.drafters.features import FeatureDrafter
from specvl_demo.drafters.heads import AnyHead, build
from specvl_demo.training import heads

GEOMETRY = Geometry(width=64, heads=4, kv_heads=4, head_width=16, eps=1e-5, theta=10000.0)


def random_module(
    kind: Kind, geometry: Geometry = GEOMETRY, seed: int = 0
) -> heads.FeatureHead | heads.DreamHead:
    """A head whose every tensor matters."""
    torch.manual_seed(seed)
    if kind == "dream":
        module: torch.nn.Module = heads.DreamHead(geometry, ffn=96, scale=1.7)
    else:
        module = heads.FeatureHead(geometry, ffn=96, n_steps=3 if kind == "hivis" else 0, scales=(1.3, 0.7))
    with torch.no_grad():
        for p in module.parameters():
            p += 0.15 * torch.randn_like(p)
        if kind == "dream":
            module.layers[1].cross_attn_attn_gate.fill_(0.8)
            module.layers[1].cross_attn_mlp_gate.fill_(0.6)
    return module.eval()


def built(
    module: torch.nn.Module, kind: Kind, decoder: Decoder, geometry: Geometry = GEOMETRY, **own: object
) -> AnyHead:
    """The module's tensors behind the lean forward."""
    own = {"method": kind, **own}
    return build(Head(kind, module.published(), geometry, {}, f"tiny {kind}", own), decoder)


def drafter_of(head: AnyHead) -> Drafter:
    """A drafter for one lane."""
    return DreamDrafter(head) if isinstance(head, DreamHead) else FeatureDrafter(head)
