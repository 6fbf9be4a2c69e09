"""Judges relaxed answers by the truth of the drawn scene: quality against acceptance length.

    python -m studies.judged [--questions 40]

Prints one JSON document: for every arm of the LVSpec claim (`bench/claims.py`: strict verification,
λ, anchors, position shift, FLy, typical acceptance, random relaxation), τ and the share of stated
facts that are right, in all and by kind of question, on held-out drawn scenes of the pocket pair.
The judge is the one of `python -m recipes evaluate --pair pocket`. The interval is a bootstrap over
questions of the difference from strict verification. Nothing depends on a clock.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from typing import Any

import specvl_demo.vlm  # noqa: F401, I001 - before any import of transformers (see decoders)
from recipes.pocket_eval import MOST, Tally, score
from recipes.world.samples import KINDS_OF_TURN, held_out
from recipes.world.texts import text_of
from specvl_demo import pairs
from specvl_demo.bench import claims, provenance
from specvl_demo.core import engine
from specvl_demo.methods.base import shape
from specvl_demo.records import gather
from specvl_demo.serving import choosing, loader, session
from specvl_demo.vlm import prompts

RESAMPLES = 1000
Counts = tuple[int, int]
"""Facts that are right, and facts."""


def share(counts: Sequence[Counts]) -> float | None:
    right, total = (sum(column) for column in zip(*counts, strict=True))
    return right / total if total else None


def interval(ours: Sequence[Counts], control: Sequence[Counts]) -> tuple[float, float]:
    """Return the 95 % interval of the difference in shares, resampling questions in pairs."""
    rng, found = random.Random(0), []
    for _ in range(RESAMPLES):
        at = rng.choices(range(len(ours)), k=len(ours))
        a, b = share([ours[i] for i in at]), share([control[i] for i in at])
        if a is not None and b is not None:
            found.append(a - b)
    found.sort()
    return found[int(0.025 * len(found))], found[int(0.975 * len(found))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=40, help="of each kind")
    n = parser.parse_args().questions
    (claim,) = claims.find("lvspec")
    choices = {arm.name: arm.choice() for arm in claim.arms}
    loaded = loader.load(pairs.find("pocket"), roles=choosing.roles_of(list(choices.values())))
    asked = [held_out(kind, i) for kind in KINDS_OF_TURN for i in range(n)]
    told: dict[str, list[Counts]] = {}
    rows: list[dict[str, Any]] = []
    for arm, choice in choices.items():
        kinds, rounds, tokens, relaxed = Tally(), 0, 0, 0
        told[arm] = []
        for sample, pictures in asked:
            turn = sample.turns[0]
            question = [prompts.Turn(text_of(turn.question), tuple(pictures))]
            request = session.request(loaded, question, MOST, detail="light")
            (lane,) = gather(engine.race(session.lanes(loaded, request, [choice])))
            one = Tally()
            for tally in (one, kinds):
                score(turn, lane.text, tally)
            told[arm].append(
                (sum(c[0] for c in one.counts.values()), sum(c[1] for c in one.counts.values()))
            )
            rounds, tokens = rounds + len(lane.rounds), tokens + len(lane.token_ids)
            relaxed += sum(piece.origin == "relaxed" for r in lane.rounds for piece in r.tokens)
        rows.append(
            {
                "method": arm,
                "drafts": shape(choice.settings),
                "tau": tokens / rounds,
                "relaxed": relaxed / tokens,
                "right": share(told[arm]),
                "beside_strict": interval(told[arm], told["strict"]),
                "kinds": kinds.report(),
            }
        )
        sys.stderr.write(f"{arm}\n")
    settings = {"questions": len(asked), "kinds": len(KINDS_OF_TURN), "max_new_tokens": MOST}
    report = {"machine": provenance.describe(loaded), "settings": settings, "rows": rows}
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
