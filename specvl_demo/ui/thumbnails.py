"""Small copies of what a model was shown, as data addresses that travel in a trace.

Given decoded pictures and clips, gives plain data; so a trace shows its pictures on any machine.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

from PIL import Image

from specvl_demo.media import Clip
from specvl_demo.records import Shown

SIDE = 224
QUALITY = 82


def shown(media: Sequence[Image.Image | Clip], names: Sequence[str]) -> list[Shown]:
    """One frame for a picture, every sampled one for a clip."""
    out = []
    for at, item in enumerate(media):
        frames = item.frames if isinstance(item, Clip) else [item]
        name = names[at] if at < len(names) else ""
        out.append(Shown(name, [_address(frame) for frame in frames]))
    return out


def _address(image: Image.Image) -> str:
    small = image.copy()
    small.thumbnail((SIDE, SIDE))
    data = io.BytesIO()
    small.convert("RGB").save(data, "JPEG", quality=QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()
