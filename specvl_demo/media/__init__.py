"""Pictures and clips from files: what a file really is, whether it fits, and its upright RGB
pixels; of clips uniformly sampled frames with their real times.
"""

from specvl_demo.media.files import PLACE, Limits, MediaError, MediaFile
from specvl_demo.media.load import load_files
from specvl_demo.media.pictures import VideoFrames, Visual, to_rgb

__all__ = [
    "PLACE",
    "Limits",
    "MediaError",
    "MediaFile",
    "VideoFrames",
    "Visual",
    "load_files",
    "to_rgb",
]
