"""What a decoded clip is, and which of its frames a model is shown."""

from __future__ import annotations

from dataclasses import dataclass, field

from PIL import Image


@dataclass(frozen=True)
class Clip:
    """Frames sampled from a clip, in order, each with the time in seconds at which it is shown."""

    name: str
    format: str
    frames: tuple[Image.Image, ...] = field(repr=False)
    times_s: tuple[float, ...]
    duration_s: float | None
    n_source_frames: int
    decoder: str


def sample_indices(n_source: int, n: int) -> list[int]:
    """`n` uniform indices into `n_source` frames, both ends included; all when there are fewer."""
    if n_source <= n:
        return list(range(n_source))
    if n == 1:
        return [n_source // 2]
    return [round(i * (n_source - 1) / (n - 1)) for i in range(n)]
