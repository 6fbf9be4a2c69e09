"""What a conversation keeps for its next question, so that only what is new is computed.

Given what lanes leave behind, gives it to the lanes of the next request: encodings by model, the target's
rows, the drafters' rows. Whoever holds a Memory holds its tensors; dropping it releases them. Knows token ids
and positions; no models, no pictures.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from specvl_demo.core.types import Context, Decoder, Drafted, Encoded, Past


class Memory:
    """One conversation's.

    encoded: by decoder, gone with it. drafted: by method and settings. ran: methods with their settings that
    have computed here, so that they need no warming up.
    """

    def __init__(self) -> None:
        self.encoded: WeakKeyDictionary[Decoder, Encoded] = WeakKeyDictionary()
        self.drafted: dict[Hashable, Drafted] = {}
        self.ran: set[Hashable] = set()
        self._past: dict[tuple[int, ...], Past] = {}

    def past(self, layers: tuple[int, ...]) -> Past | None:
        """The target's rows, with the states of these layers."""
        return self._past.get(layers)

    def holds(self, layers: tuple[int, ...], request: str) -> bool:
        """Whether a lane of this request has left its rows already."""
        past = self._past.get(layers)
        return past is not None and past.request == request

    def keep(self, layers: tuple[int, ...], past: Past) -> None:
        """In place of what was kept before: one copy of the target's rows is enough for all lanes."""
        self._past[layers] = past


def common(kept: Tensor, asked: Tensor) -> int:
    """With how many equal tokens two texts [a], [b] begin."""
    n = min(len(kept), len(asked))
    differ = (kept[:n] != asked[:n]).nonzero()
    return int(differ[0]) if len(differ) else n


def behind(drafted: Drafted, scene: object, contexts: Sequence[Context]) -> int | None:
    """How many of the contexts' last columns are new, the same for every view and at least one; None where a
    view shows anything else than before, or where they have grown unlike.

    scene: of the contexts' encoding.
    """
    if drafted.scene is not scene or len(contexts) != len(drafted.contexts):
        return None
    pairs = zip(drafted.contexts, contexts, strict=True)
    new = {_behind(old, drafted.said, now) for old, now in pairs}
    return None if len(new) > 1 or None in new else new.pop()[1]


def _behind(old: Context, said: Tensor, now: Context) -> tuple[int, int] | None:
    n = len(old.ids)
    # Visual tokens are all alike: their places in the prompt tell one pruned picture from another.
    grown = (
        len(now.ids) > n
        and torch.equal(now.ids[:n], old.ids)
        and torch.equal(now.index[:n], old.index)
        and torch.equal(now.positions[..., :n], old.positions)
        and not bool(now.visual[n:].any())
    )
    if not grown:
        return None
    more = len(now.ids) - n
    return more, max(1, more - common(said, now.ids[n:]))
