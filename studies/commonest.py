"""Counts the tokens that a pair's target emits most often, for `draft_vocab`, which limits a
drafter to them.

    python -m studies.commonest ID [questions] [FILE]

Asks the plain model held-out questions, counts the ids of its answers, prints the share covered by
the most frequent 256, 512, ... ids, and writes the list, most frequent first, to FILE: the
commonest.json in the target's folder.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from recipes.world.samples import KINDS_OF_TURN, held_out
from recipes.world.texts import text_of
from specvl_demo import pairs
from specvl_demo.bench.cases import Case
from specvl_demo.bench.measure import requests
from specvl_demo.media import VideoFrames
from specvl_demo.serving import choosing, loader, session


def drawn(n: int) -> list[Case]:
    """Return `n` held-out questions of every kind in turn."""
    found, kinds = [], list(KINDS_OF_TURN)
    for i in range(n):
        kind = kinds[i % len(kinds)]
        sample, pictures = held_out(kind, i // len(kinds))
        shown = (VideoFrames(tuple(pictures)),) if kind == "clip" else tuple(pictures)
        found.append(Case(f"{kind}-{i}", text_of(sample.turns[0].question).strip(), shown))
    return found


def main(argv: list[str]) -> int:
    loaded = loader.load(pairs.find(argv[0]), ())
    plain = choosing.choose(loaded.pair, "ar")
    said: Counter[int] = Counter()
    # choice: calibration questions of other seeds would also do; nothing is trained on the counts.
    asked = drawn(int(argv[1]) if len(argv) > 1 else 200)
    for request in requests(loaded, asked, 160):
        (lane,) = session.answers(loaded, request, [plain])
        said.update(lane.token_ids)
    ids, size = [token for token, _ in said.most_common()], 64
    total = said.total()
    while size < 2 * len(ids):
        covered = sum(said[token] for token in ids[:size]) / total
        sys.stdout.write(f"{size:6} tokens: {covered:.4f} of {total}\n")
        size *= 2
    target = loaded.pair.target.folder / loader.COMMONEST
    (Path(argv[2]) if len(argv) > 2 else target).write_text(json.dumps(ids))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
