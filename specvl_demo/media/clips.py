"""Frames of clips, uniformly sampled, with the times at which they are shown.

Clips are decoded in a process of their own (`worker`) under a hard time limit: whatever a file does to the
decoder, this process goes on and says what happened.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from PIL import Image

from specvl_demo.media.files import (
    CLIP_FORMATS,
    PICTURE_FORMATS,
    Limits,
    MediaError,
    check_size,
    read,
    sniff,
    unsupported,
)
from specvl_demo.media.pictures import Picture, decode_picture, is_animated, load_picture


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


def load_clip(path: str | os.PathLike[str], n_frames: int = 8, limits: Limits | None = None) -> Clip:
    """`n_frames` uniformly sampled upright RGB frames with timestamps, decoded in a child process.

    A clip with fewer frames gives all it has. An animated GIF or WebP is a clip too. Raises MediaError, also
    when the decoder crashes, runs out of memory or does not finish in `limits.decode_s` seconds.
    """
    limits = limits or Limits()
    if n_frames < 1:
        raise MediaError(f"A clip needs at least one sampled frame, not {n_frames}.")
    path, data = read(path, limits)
    kind = sniff(data[:32])
    if kind not in CLIP_FORMATS:
        if kind in PICTURE_FORMATS:
            raise MediaError(f"{path.name} is a still picture ({kind}), not a clip: send it as a picture.")
        raise unsupported(path.name, kind)
    del data
    header, pixels = _run_worker(path, kind, n_frames, limits)
    frames, offset = [], 0
    for width, height in header["sizes"]:
        n_bytes = width * height * 3
        frames.append(Image.frombytes("RGB", (width, height), pixels[offset : offset + n_bytes]))
        offset += n_bytes
    return Clip(
        path.name,
        kind,
        tuple(frames),
        tuple(header["times_s"]),
        header["duration_s"],
        header["n_source_frames"],
        header["decoder"],
    )


def _run_worker(path: Path, kind: str, n_frames: int, limits: Limits) -> tuple[dict, bytes]:
    """Header and RGB bytes from the decoding process. Its output is bounded and its fate is always told."""
    root = Path(__file__).resolve().parents[2]
    job = {"path": str(path.resolve()), "kind": kind, "n_frames": n_frames, "limits": asdict(limits)}
    quiet = {"OPENCV_LOG_LEVEL": "SILENT", "OPENCV_FFMPEG_LOGLEVEL": "-8", "OMP_NUM_THREADS": "1"}
    local_files_only = {"OPENCV_FFMPEG_CAPTURE_OPTIONS": "protocol_whitelist;file"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"{__package__}.worker"],
            input=json.dumps(job).encode(),
            capture_output=True,
            timeout=limits.decode_s,
            cwd=root,
            env=os.environ | quiet | local_files_only,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MediaError(f"{path.name} took longer than {limits.decode_s:.0f} seconds to decode.") from None
    except OSError as fault:
        raise MediaError(
            f"{path.name} could not be decoded: no decoder process ({fault.strerror})."
        ) from None
    line, _, pixels = done.stdout.partition(b"\n")
    try:
        header = json.loads(line)
    except ValueError:
        header = {}
    if header.get("too_large"):
        check_size(path.name, *header["too_large"], limits)
    if header.get("error"):
        raise MediaError(f"{path.name} {header['error']}")
    if done.returncode or sum(w * h * 3 for w, h in header.get("sizes", [])) != len(pixels) or not pixels:
        raise MediaError(f"{path.name} is damaged: its {kind} data stopped the decoder.")
    return header, pixels


def load_media(
    images: Sequence[str | os.PathLike[str]] = (),
    clips: Sequence[str | os.PathLike[str]] = (),
    n_frames: int = 8,
    limits: Limits | None = None,
) -> tuple[list[Picture], list[Clip]]:
    """All pictures and clips of one request. The count is checked before any file is touched."""
    limits = limits or Limits()
    n_items = len(images) + len(clips)
    if n_items > limits.max_items:
        raise MediaError(f"{n_items} pictures and clips were sent; at most {limits.max_items} are accepted.")
    return [load_picture(p, limits) for p in images], [load_clip(p, n_frames, limits) for p in clips]


def load_any(path: str | os.PathLike[str], n_frames: int = 8, limits: Limits | None = None) -> Picture | Clip:
    """A picture or a clip, whatever the file turns out to be; an animation counts as a clip if it moves."""
    limits = limits or Limits()
    path, data = read(path, limits)
    kind = sniff(data[:32])
    if kind in CLIP_FORMATS and (kind not in PICTURE_FORMATS or is_animated(data, kind)):
        return load_clip(path, n_frames, limits)
    return decode_picture(data, path.name, limits)
