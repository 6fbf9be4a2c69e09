"""Numbers from the host to a device without waiting for it.

A copy from ordinary memory blocks the host until the device has come that far; one from pinned
memory lies in the stream like a kernel. Knows nothing of what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def sent(numbers: Sequence[int] | Tensor, device: torch.device) -> Tensor:
    """Whole numbers, or a tensor on the host, on the device: ready for what is launched next."""
    host = numbers if isinstance(numbers, Tensor) else torch.tensor(numbers, dtype=torch.int64)
    if device.type != "cuda" or host.device.type != "cpu":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)
