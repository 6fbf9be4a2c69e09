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
import sys
from collections.abc import Sequence
from typing import Any

import specvl_demo.vlm  # noqa: F401, I001 - before any import of transformers (see decoders)
from recipes.pocket_eval import MOST, Tally, score
from recipes.world.samples import KINDS_OF_TURN, held_out
from recipes.world.texts import text_of
from specvl_demo import pairs
from specvl_demo.bench import claims, provenance
from specvl_demo.methods.base import shape
from specvl_demo.report.answers import bootstrapped
from specvl_demo.serving import choosing, loader, session
from specvl_demo.vlm import prompts

Counts = tuple[int, int]
"""Facts that are right, and facts."""


def share(counts: Sequence[Counts]) -> float | None:
    right, total = (sum(column) for column in zip(*counts, strict=True))
    return right / total if total else None


def interval(ours: Sequence[Counts], control: Sequence[Counts]) -> list[float] | None:
    """Return the 95 % interval of the difference in shares, resampling questions in pairs."""

    def apart(questions: Sequence[tuple[Counts, Counts]]) -> float | None:
        mine, theirs = (share(counts) for counts in zip(*questions, strict=True))
        return mine - theirs if mine is not None and theirs is not None else None

    return bootstrapped(list(zip(ours, control, strict=True)), apart)


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
            (lane,) = session.answers(loaded, request, [choice])
            one = Tally()
            for tally in (one, kinds):
                score(turn, lane.text, tally)
            right, total = (sum(column) for column in zip(*one.counts.values(), strict=True))
            told[arm].append((right, total))
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
