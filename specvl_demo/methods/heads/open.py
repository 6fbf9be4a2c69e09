"""From a folder of published or own weights to a head that drafts, whatever its format.

Given a folder and the target's decoder, gives the built head, shared by lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specvl_demo.core.types import Decoder
from specvl_demo.methods.heads import checkpoints
from specvl_demo.methods.heads.checkpoints import FORMATS
from specvl_demo.methods.heads.files import read


def open_head(
    folder: Path, decoder: Decoder, kinds: Iterable[str] = (), target: Mapping[str, Any] | None = None
) -> Any:
    """The head in `folder` for this target. kinds: formats that will do, empty for any.

    target: the target's text config, to compare with. Raises ValueError with one sentence where the files are
    no such head or do not fit the target.
    """
    return build(checkpoints.load(folder, decoder, kinds, target), decoder)


def serving(role: str) -> list[str]:
    """The formats whose heads serve a pair's role."""
    return [kind for kind, form in FORMATS.items() if form.role == role]


def role_in(folder: Path) -> str | None:
    """Which role the head in a folder serves; None where it holds no head that is known here."""
    try:
        tensors, _ = read(folder)
        return checkpoints.recognise(tensors, folder.name).role
    except ValueError:
        return None


def build(head: checkpoints.Head, decoder: Decoder) -> Any:
    """The object that drafts with a head's tensors."""
    return FORMATS[head.kind].build(head, decoder)
