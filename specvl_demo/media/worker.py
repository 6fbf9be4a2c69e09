"""Decodes untrusted files in a separate process: a job as JSON in, for every file a header and RGB
out.

Opens its files, loads its decoders and gives up everything else (`sandbox`) before it decodes one.
Refusals go into the header as `error`; whatever a decoder raises about a damaged file ends the
process, which the parent reports.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

from PIL import Image

from specvl_demo.media import clips, pictures, sandbox
from specvl_demo.media.files import (
    CLIP_FORMATS,
    NAME,
    PICTURE_FORMATS,
    READY,
    SLOWEST,
    Limits,
    MediaError,
)

MEMORY_BYTES = 4 * 2**30
INTERLACED = (
    f"{NAME} is interlaced, which OpenCV cannot show; convert it (ffmpeg -i IN -vf yadif OUT.mp4),"
    " or set SPECVL_CLIPS=decord."
)
"""From 4.13 to 5.0 it only prints that, and returns frames that were never written."""


def limit_resources(cpu_s: float) -> None:
    """Cap memory and CPU time, and forbid writing files."""
    with contextlib.suppress(ValueError, OSError):  # macOS refuses an address-space limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    seconds = math.ceil(cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def decode_item(item: dict, source: BinaryIO, n: int) -> tuple[dict, list]:
    """Return a file's header and its pictures; those of a clip have their `times_s`."""
    kind = item["kind"]
    want = item["want"]
    if kind in PICTURE_FORMATS:
        data = source.read()
        image = pictures.open_picture(data, kind)
        if want == "any" and kind in CLIP_FORMATS and getattr(image, "is_animated", False):
            want = "clip"
        if want == "clip":
            return clips.pack_clip(*clips.read_by_pillow(image, n))
        try:
            return {}, [pictures.decode_picture(image)]
        except OSError:
            image = pictures.open_picture(data, kind)
            return {"incomplete": True}, [pictures.decode_incomplete(image, kind)]
    header, frames = clips.read_clip(source, item["clips"], n)
    if kind == "AVI":  # of its end FFmpeg prints nothing; a stream's writer leaves the size open
        source.seek(4)
        declared = int.from_bytes(source.read(4), "little")
        header["incomplete"] = source.seek(0, os.SEEK_END) < declared < 2**32 - 1
    return header, frames


def write_result(item: dict, source: BinaryIO, heard: int, n: int) -> None:
    """Write a file's header and pixels. heard: Where what the decoders print is read."""
    images: list[Image.Image] = []
    try:
        header, images = decode_item(item, source, n)
        with contextlib.suppress(BlockingIOError):
            noted = os.read(heard, 2**16)
            if b"ended prematurely" in noted or b"partial file" in noted:  # of WebM, of MP4
                header["incomplete"] = True
            if b"Cannot convert interlaced" in noted:
                header = {"error": INTERLACED}
                images = []
    except MediaError as refusal:
        header = {"error": str(refusal)}
    except Image.DecompressionBombError:  # from Pillow, before the size could be checked
        size = f"{Limits.max_pixels / 1e6:.0f} million pixels"
        header = {"error": f"{NAME} declares far more than {size}, the limit."}
    except MemoryError:
        size = f"{MEMORY_BYTES / 2**30:.0f} GB"
        header = {"error": f"{NAME} needs more than {size} of memory to decode."}
    header["sizes"] = [image.size for image in images]
    out = sys.stdout.buffer
    out.write(json.dumps(header).encode() + b"\n")
    for image in images:
        out.write(image.tobytes())
    out.flush()


def load_decoders(items: Sequence[dict]) -> None:
    """Import all that these files need: after that no module can be read any more."""
    for item in items:
        if item["kind"] in PICTURE_FORMATS:
            Image.init()
        else:
            import cv2  # noqa: F401

            if item["clips"] == "decord":
                import decord  # noqa: F401


def _exit_with_parent() -> NoReturn:
    os.read(0, 1)  # nothing else is sent: it returns when the pipe is closed
    os._exit(1)


def main() -> NoReturn:
    """Read the job, open its files, load the decoders, seal the process, and only then decode.

    Ends at once, also when standard input closes early: decoders may hang in their own clean-up.
    """
    job = json.loads(sys.stdin.buffer.readline())
    # Decoders compute on several cores, so that a file may take more than the time on the clock.
    limit_resources(SLOWEST * Limits.decode_s * len(job["items"]))
    with contextlib.ExitStack() as files:
        sources = [files.enter_context(Path(item["path"]).open("rb")) for item in job["items"]]
        load_decoders(job["items"])
        heard, printed = os.pipe()
        os.dup2(printed, 2)
        for end in (heard, 2):
            os.set_blocking(end, False)  # decoders may print more than is read of it
        sandbox.seal_process()
        threading.Thread(target=_exit_with_parent, daemon=True).start()
        os.write(1, READY)
        for item, source in zip(job["items"], sources):
            write_result(item, source, heard, job["n_frames"])
    os._exit(0)


if __name__ == "__main__":
    main()
