"""The training loop of all recipes: checkpoints, resume, optimizers, schedule, log and progress.

It runs on a CPU, on a GPU, or in several processes started by `accelerate launch`. A stopped and
resumed run of one process ends with the same weights as an uninterrupted one.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import broadcast, reduce
from torch import Tensor, nn
from tqdm import tqdm

LOG_EVERY = 25


@dataclass(frozen=True)
class Recipe:
    """What a run depends on, each field an option of a recipe. Only numbers of steps may be changed
    when resuming.

    batch: Over all processes. lr, muon_lr: Of AdamW and Muon. decay: Share of the steps over which
    they fall.
    """

    seed: int = 1
    steps: int = 1000
    batch: int = 32
    lr: float = 2e-3
    muon_lr: float = 5e-3
    decay: float = 0.7


def processes() -> PartialState:
    """Return this process's state among those that train together, for which one may prepare data
    for days.
    """
    return PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(days=30))


def checkpoint(folder: Path, name: str, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a run's checkpoint in a folder, if there is one; ValueError if it is another's."""
    path = folder / f"{name}.pt"
    if not path.exists():
        return None
    saved = torch.load(path, map_location="cpu", weights_only=True)
    before = saved["identity"]
    fixed = [key for key in {**before, **identity} if not key.endswith("steps")]
    others = [key for key in fixed if before.get(key) != identity.get(key)]
    if others:
        raise ValueError(
            f"{folder} has a run with other {', '.join(others)}; pass --fresh, or name another"
            " --folder"
        )
    return saved


class Trainer:
    """One run of a recipe.

    name: Of the checkpoint file, the log's rows and the progress bar. identity: What the run
    depends on; another checkpoint is refused. parts: What a checkpoint stores besides the
    optimizers. decay: Share of the steps over which the learning rate falls. average: Whether
    processes exchange gradients here. fresh: Ignore an existing checkpoint.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        identity: Mapping[str, Any],
        parts: Mapping[str, nn.Module],
        opts: list[torch.optim.Optimizer],
        steps: int,
        decay: float,
        accelerator: Accelerator | None = None,
        average: bool = False,
        fresh: bool = False,
    ) -> None:
        if steps < 1:
            raise ValueError(f"a run needs at least 1 step, got {steps}")
        self.name, self.folder, self.identity = name, folder, dict(identity)
        self.parts, self.opts, self.steps, self.decay = dict(parts), opts, steps, decay
        self.accelerator = accelerator or Accelerator(cpu=not torch.cuda.is_available())
        self.average, self.fresh, self.step = average, fresh, 0

    def checkpoint(self) -> dict[str, Any] | None:
        """Return the run's checkpoint, if any; ValueError if another run wrote it."""
        return None if self.fresh else checkpoint(self.folder, self.name, self.identity)

    def load(self, saved: Mapping[str, Any]) -> None:
        self.step = saved["step"]
        for name, part in self.parts.items():
            part.load_state_dict(saved["parts"][name])
        for opt, state in zip(self.opts, saved["opts"], strict=True):
            opt.load_state_dict(state)

    def resume(self) -> bool:
        """Continue from the folder's checkpoint; return False if there is none."""
        saved = self.checkpoint()
        if saved is not None:
            self.load(saved)
        return saved is not None

    def save(self) -> None:
        """Write the checkpoint atomically."""
        if not self.accelerator.is_main_process:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        data = {
            "identity": self.identity,
            "step": self.step,
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "opts": [opt.state_dict() for opt in self.opts],
        }
        part = self.folder / f"{self.name}.part"
        torch.save(data, part)
        part.replace(self.folder / f"{self.name}.pt")

    def train(
        self,
        batches: Callable[[int], Iterable[Any]],
        loss: Callable[[Any], tuple[Tensor, dict[str, float]]],
        after: Callable[[], None] | None = None,
        minutes: float | None = None,
        stop_at: int | None = None,
        save_every_s: float = 300.0,
    ) -> bool:
        """Run to the last step; return False if `minutes` ran out or `stop_at` was reached first.

        batches(step): The batches from this step on, always the same. loss(batch): The loss and
        numbers to log. after: Called after every step. ValueError if a loss is not finite.
        """
        last, began = min(self.steps, stop_at or self.steps), time.monotonic()
        saved = began
        show = None if self.accelerator.is_main_process else True
        bar = tqdm(total=self.steps, initial=self.step, desc=self.name, mininterval=5, disable=show)
        recent: list[dict[str, float]] = []
        source = iter(batches(self.step)) if self.step < last else iter(())
        while self.step < last:
            batch = next(source)
            with self.accelerator.autocast():
                value, seen = loss(batch)
            # The mean over all processes, so that all of them stop.
            mean = reduce(value.detach(), "mean").item()
            if not math.isfinite(mean):
                raise ValueError(
                    f"the loss of step {self.step + 1} is {mean}: start anew (--fresh) at lower"
                    " learning rates (--lr and the like)"
                )
            self._update(value)
            if after:
                after()
            recent.append(seen)
            bar.update()
            if self.step % LOG_EVERY == 0 or self.step == self.steps:
                self._log(bar, recent)
                recent = []
            if time.monotonic() - saved > save_every_s:
                self.save()
                saved = time.monotonic()
            if minutes is not None and self._is_up(60 * minutes, began):
                break
        self.save()
        bar.close()
        return self.step >= self.steps

    def last_log(self) -> dict[str, float] | None:
        """Return the last logged numbers of this run; None before the first."""
        path = self.folder / "log.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return next((row for row in reversed(rows) if row["run"] == self.name), None)

    def _update(self, loss: Tensor) -> None:
        factor = warm_then_linear(self.step / self.steps, self.decay)
        for opt in self.opts:
            opt.zero_grad(set_to_none=True)
            for group in opt.param_groups:
                group["lr"] = group.setdefault("base_lr", group["lr"]) * factor
        self.accelerator.backward(loss)
        parameters = [p for opt in self.opts for group in opt.param_groups for p in group["params"]]
        if self.average and self.accelerator.num_processes > 1:
            grads = [p.grad for p in parameters if p.grad is not None]
            mean = reduce(torch.cat([grad.flatten() for grad in grads]), "mean")
            for grad, part in zip(grads, mean.split([grad.numel() for grad in grads]), strict=True):
                grad.copy_(part.view_as(grad))
        self.accelerator.clip_grad_norm_(parameters, 1.0)
        for opt in self.opts:
            opt.step()
        self.step += 1

    def _log(self, bar: tqdm, recent: list[dict[str, float]]) -> None:
        rows: dict[str, list[float]] = {}
        for seen in recent:
            for key, value in seen.items():
                if value == value:  # a batch without such tokens has no mean: NaN
                    rows.setdefault(key, []).append(value)
        means = {key: round(sum(values) / len(values), 4) for key, values in rows.items()}
        bar.set_postfix(dict(list(means.items())[:3]))
        if self.accelerator.is_main_process:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / "log.jsonl").open("a") as log:
                log.write(json.dumps({"run": self.name, "step": self.step, **means}) + "\n")

    def _is_up(self, seconds: float, began: float) -> bool:
        """Whether time has run out by the first process's clock: all stop after the same step."""
        up = torch.tensor(float(time.monotonic() - began > seconds), device=self.accelerator.device)
        return bool(broadcast(up))


# ---------------------------------------------------------------- optimizers


class Muon(torch.optim.Optimizer):
    """Momentum, then five Newton-Schulz steps towards the nearest orthogonal matrix (Jordan et al.,
    2024).

    The update's root mean square is 0.2·lr for every shape, so that Adam's learning rates carry
    over. `torch.optim.Muon` orthogonalises in bfloat16, which is many times slower on CPUs without
    bf16 units; this one batches matrices of equal shape and stays in the weights' dtype.
    """

    def __init__(
        self, params: Iterable, lr: float, weight_decay: float = 0.02, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[tuple[nn.Parameter, Tensor]]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault(p.shape, []).append((p, p.grad))
            for shape, params in by_shape.items():
                self._step_shape(group, shape, params)

    def _step_shape(
        self, group: dict[str, Any], shape: torch.Size, params: list[tuple[nn.Parameter, Tensor]]
    ) -> None:
        updates = []
        for p, grad in params:
            buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
            buffer.lerp_(grad, 1 - group["momentum"])
            updates.append(grad.lerp(buffer, group["momentum"]))
        x = orthogonal(torch.stack(updates))
        scale = group["lr"] * 0.2 * math.sqrt(max(shape))
        for (p, _), update in zip(params, x.unbind(0), strict=True):
            p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-scale)


def orthogonal(x: Tensor) -> Tensor:
    """Apply five steps of Newton-Schulz iteration to a stack of matrices [N, a, b]."""
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (x.flatten(1).norm(dim=1).view(-1, 1, 1) + 1e-7)
    for _ in range(5):
        a = x @ x.transpose(1, 2)
        b = torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, b, x, beta=3.4445)
    return x.transpose(1, 2) if tall else x


def optimizers(
    parts: list[tuple[nn.Module, float]], lr: float, muon_lr: float
) -> list[torch.optim.Optimizer]:
    """Return one AdamW over modules with their factors of learning rates, and one Muon."""
    matrices: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    seen: set[nn.Parameter] = set()
    for module, factor in parts:
        mats: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, p in module.named_parameters():
            if p.requires_grad and p not in seen:
                seen.add(p)
                matrix = p.ndim == 2 and not re.search("embed|lm_head|position", name)
                (mats if matrix else rest).append(p)
        matrices += [{"params": mats, "lr": muon_lr * factor}] if mats else []
        others += [{"params": rest, "lr": lr * factor}] if rest else []
    adam = torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.98), weight_decay=0.0)
    return [adam, Muon(matrices, lr=muon_lr)] if matrices else [adam]


def warm_then_linear(progress: float, decay: float) -> float:
    """Return the schedule's factor at `progress`: a short rise, a plateau, a decrease."""
    if progress < 0.01:
        return max(0.05, progress / 0.01)
    return 1.0 if progress < 1 - decay else max(0.02, (1 - progress) / decay)
