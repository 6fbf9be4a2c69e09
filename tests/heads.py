"""Random heads for tiny targets: as modules that can learn, and built for drafting from the same
tensors; and one lane on its way, by hand or to its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from recipes.drafters.dflash import DflashHead as DflashModule
from recipes.drafters.dream import DreamHead as DreamModule
from recipes.drafters.eagle import FeatureHead as FeatureModule
from recipes.drafters.hivis import HivisHead
from specvl_demo.core.engine import Lane, Parts, SharedPrefill, race
from specvl_demo.core.types import Drafter, LaneStart, Prompt
from specvl_demo.core.verification import LosslessVerifier
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.methods.heads.blocks import Geometry
from specvl_demo.methods.heads.checkpoints import FORMATS, Head
from specvl_demo.records import Round
from tests.conftest import ask, ids_of

GEOMETRY = Geometry(width=64, heads=4, kv_heads=4, head_width=16, eps=1e-5, theta=10000.0)


def random_module(kind: str, geometry: Geometry = GEOMETRY, seed: int = 0) -> torch.nn.Module:
    """A head whose every tensor matters."""
    torch.manual_seed(seed)
    if kind == "dream":
        module: torch.nn.Module = DreamModule(geometry, ffn=96, scale=1.7)
    elif kind == "dflash":
        mask = torch.randn(geometry.width)
        module = DflashModule(geometry, 96, n_read=3, layers=2, block=4, mask=mask)
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
    module: torch.nn.Module,
    kind: str,
    decoder: LanguageBackend,
    geometry: Geometry = GEOMETRY,
    settings: Mapping[str, Any] | None = None,
    **own: object,
) -> Any:
    """The module's tensors behind the lean forward. settings: Its config.json."""
    own = {"method": kind, **own}
    head = Head(kind, module.published(), geometry, settings or {}, f"tiny {kind}", own)
    return FORMATS[kind].build(head, decoder)


def begun(target: Any, drafter: Any, prompt: Prompt, max_nodes: int = 40) -> LaneStart:
    """Return a drafter that has begun after a prompt, with its own session on the target."""
    request = ask(target, prompt)
    shared = SharedPrefill(request)
    prefill = shared.prefill(drafter.capture)
    start = LaneStart(
        prompt=prompt,
        encoded=prefill.encoded,
        prefill=prefill,
        encode=shared.encoded,
        vocabulary=target.vocabulary,
        sampling=request.sampling,
        max_new_tokens=40,
        max_nodes=max_nodes,
        session=target.open(prefill, 40, max_nodes, drafter.capture),
    )
    with torch.inference_mode():
        drafter.begin(start)
    return start


def decode(
    target: object, drafter: Drafter | None, policy: object, prompt: Prompt, **changes: object
) -> tuple[list[int], list[Round]]:
    """A whole answer, and its rounds."""
    parts = Parts("head", "head", True, {}, drafter or Drafter(), policy, LosslessVerifier())
    records = list(race([Lane("head", parts, SharedPrefill(ask(target, prompt, **changes)))]))
    rounds = [r for r in records if isinstance(r, Round)]
    return ids_of(rounds), rounds
