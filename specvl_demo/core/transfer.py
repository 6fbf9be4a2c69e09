"""Numbers from the host to a device, and back, without waiting.

A copy from ordinary memory blocks the host until the device has caught up; a copy from pinned
memory is queued like a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


def to_device(numbers: Sequence[int] | Tensor, device: torch.device) -> Tensor:
    """Return whole numbers, or a tensor of the host, on the device, before later launches."""
    host = numbers if isinstance(numbers, Tensor) else torch.tensor(numbers, dtype=torch.int64)
    if device.type != "cuda" or host.device.type != "cpu":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


class HostCopy(Sequence[Any]):
    """A tensor's numbers [n], on their way to the host, which waits when it first reads one: not at
    all if it has waited for something later.
    """

    _arrival: torch.cuda.Event | None = None

    def __init__(self, numbers: Tensor) -> None:
        self._host = numbers
        if numbers.is_cuda:
            self._host = torch.empty_like(numbers, device="cpu", pin_memory=True)
            self._host.copy_(numbers, non_blocking=True)
            self._arrival = torch.cuda.Event()
            self._arrival.record(torch.cuda.current_stream(numbers.device))

    @cached_property
    def _numbers(self) -> list[Any]:
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._host.tolist()

    def __getitem__(self, at: Any) -> Any:
        return self._numbers[at]

    def __len__(self) -> int:
        return len(self._host)


def as_index(at: Sequence[int], device: torch.device) -> Tensor | slice:
    """Return an index that does not wait for the device: of a single place, a slice."""
    return slice(at[0], at[0] + 1) if len(at) == 1 else to_device(at, device)


def take_rows(rows: Tensor, at: Sequence[int], dim: int = 0) -> Tensor:
    """Return the rows at these ascending places; where they are the first ones, a view.

    A tensor indexed by a list waits for the device, which must have the list first.
    """
    if not at or at[-1] == len(at) - 1:
        return rows.narrow(dim, 0, len(at))
    return rows.index_select(dim, to_device(at, rows.device))
