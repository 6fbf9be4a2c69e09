"""`fetch photo`: the base weights of the photo pair, checked, unpacked and kept in the user's cache."""

from __future__ import annotations

import argparse
import sys

from specvl_demo import pairs
from specvl_demo.cli.parse import Refused


def run(options: argparse.Namespace) -> int:
    """Fetch what is missing and say where it lies; Refused with a sentence where it cannot be had."""
    from specvl_demo.vlm import photo_weights

    target = pairs.find(options.what).target
    if not target.folder.is_dir():
        raise Refused(f"The weights of {target.id} are missing from assets; train or copy them first.")

    def tell(text: str) -> None:
        sys.stderr.write(f"{text}…\n")

    sys.stdout.write(f"{photo_weights.fetch(target.folder, tell, show=sys.stderr.isatty())}\n")
    return 0
