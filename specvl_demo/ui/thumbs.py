"""Small copies of what a model was shown, as data addresses that travel in a trace.

Given decoded pictures and clips, gives plain data; so a trace shows its pictures on any machine.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from PIL import Image

from specvl_demo.media import Clip, Picture

SIDE = 224
QUALITY = 82


def shown(media: Sequence[Picture | Clip], names: Sequence[str]) -> list[dict[str, Any]]:
    """[{'name', 'frames': [address]}]: one frame for a picture, every sampled one for a clip."""
    out = []
    for at, item in enumerate(media):
        frames = [item.image] if isinstance(item, Picture) else item.frames
        name = names[at] if at < len(names) else ""
        out.append({"name": name, "frames": [_address(frame) for frame in frames]})
    return out


def _address(image: Image.Image) -> str:
    small = image.copy()
    small.thumbnail((SIDE, SIDE))
    data = io.BytesIO()
    small.convert("RGB").save(data, "JPEG", quality=QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()
