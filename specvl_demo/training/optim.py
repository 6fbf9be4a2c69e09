"""Muon in float32 for the weight matrices, AdamW for everything else; their state can be saved and resumed.

`torch.optim.Muon` orthogonalises in bfloat16, which is many times slower on CPUs without bf16 units; this one
batches matrices of equal shape and stays in the weights' dtype. Knows parameters and gradients only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Muon(torch.optim.Optimizer):
    """Momentum, then five Newton-Schulz steps towards the nearest orthogonal matrix (Jordan et al., 2024).

    The update's root mean square is 0.2·lr whatever the shape, so that Adam's learning rates carry over.
    """

    def __init__(
        self, params: Iterable, lr: float, weight_decay: float = 0.02, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault(p.shape, []).append(p)
            for shape, params in by_shape.items():
                self._step_shape(group, shape, params)

    def _step_shape(self, group: dict, shape: torch.Size, params: list[nn.Parameter]) -> None:
        updates = []
        for p in params:
            buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
            buffer.lerp_(p.grad, 1 - group["momentum"])
            updates.append(p.grad.lerp(buffer, group["momentum"]))
        x = orthogonal(torch.stack(updates))
        scale = group["lr"] * 0.2 * math.sqrt(max(shape))
        for p, update in zip(params, x.unbind(0), strict=True):
            p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-scale)


def orthogonal(x: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz iteration on a stack of matrices [N, a, b]."""
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (x.flatten(1).norm(dim=1).view(-1, 1, 1) + 1e-7)
    for _ in range(steps):
        a = x @ x.transpose(1, 2)
        b = torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, b, x, beta=3.4445)
    return x.transpose(1, 2) if tall else x


def optimizers(
    parts: list[tuple[nn.Module, float]], lr: float, muon_lr: float
) -> list[torch.optim.Optimizer]:
    """One Muon and one AdamW over some modules, each with its own factor on both learning rates."""
    matrices, others, seen = [], [], set()
    for module, factor in parts:
        mats, rest = [], []
        for name, p in module.named_parameters():
            if id(p) in seen or not p.requires_grad:
                continue
            seen.add(id(p))
            is_matrix = p.ndim == 2 and not any(w in name for w in ("embed", "lm_head", "position"))
            (mats if is_matrix else rest).append(p)
        if mats:
            matrices.append({"params": mats, "lr": muon_lr * factor})
        if rest:
            others.append({"params": rest, "lr": lr * factor})
    opts: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.0)
    ]
    if matrices:
        opts.append(Muon(matrices, lr=muon_lr))
    return opts


def set_lr(opts: list[torch.optim.Optimizer], factor: float) -> None:
    """Scale every group's own learning rate, which it keeps as `base_lr`."""
    for opt in opts:
        for group in opt.param_groups:
            group["lr"] = group.setdefault("base_lr", group["lr"]) * factor


def warm_then_linear(progress: float, decay: float, warm: float = 0.01) -> float:
    """The schedule's factor at `progress` in [0, 1]: a short rise, a plateau, a straight line down over the
    last `decay` share.
    """
    if progress < warm:
        return max(0.05, progress / warm)
    return 1.0 if progress < 1 - decay else max(0.02, (1 - progress) / decay)
