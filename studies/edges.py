"""Tests rare cases: long conversations and answers, very long drafts, every combination of parts.

    python -m studies.edges [turns] [long] [gamma] [grid]      without a name: all of them

Uses the pocket pair, greedy, float32. Prints one JSON document. Every lossless run is compared with
the plain model token for token; of lossy ones, the number that ended differently is reported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

from specvl_demo import pairs
from specvl_demo.bench import cases
from specvl_demo.core.engine import Request
from specvl_demo.methods.base import PARTS, Choice
from specvl_demo.serving import choosing, loader, session
from specvl_demo.serving.loader import Loaded
from specvl_demo.vlm.prompts import Turn

TURNS = 8
LONG = 400
GAMMAS = (1, 16, 64)
QUESTIONS = (
    "Describe the picture.",
    "What colour is the background?",
    "How many objects are there?",
    "What is on the left?",
    "What is on the right?",
    "Is there a circle?",
    "Which object is largest?",
    "Describe the picture once more.",
)


def compare(asked: Request, loaded: Loaded, choices: dict[str, Choice]) -> Iterator[dict[str, Any]]:
    """Yield a row per choice: its tokens, τ, and where it first differs from the plain model."""
    (ar,) = session.answers(loaded, asked, [choosing.choose(loaded.pair, "ar")])
    plain = ar.token_ids
    for name, choice in choices.items():
        (lane,) = session.answers(loaded, asked, [choice])
        ids = lane.token_ids
        same = ids == plain
        first = next((i for i, (a, b) in enumerate(zip(ids, plain, strict=False)) if a != b), None)
        row = {
            "name": name,
            "lossless": choice.lossless,
            "tokens": len(ids),
            "tau": round(len(ids) / len(lane.rounds), 2),
        }
        yield row | {"same": same, "first_difference": None if same else first}


def methods(loaded: Loaded) -> dict[str, Choice]:
    return {
        name: choosing.choose(loaded.pair, name)
        for name in choosing.served(loaded.pair)
        if name != "ar"
    }


def turns(loaded: Loaded) -> list[dict[str, Any]]:
    """Run a conversation of eight questions with each method, against the plain model."""
    picture = cases.pocket()[0].shown
    rows = []
    for name, choice in methods(loaded).items():
        same, tokens = 0, 0
        said: list[Turn] = []
        for question in QUESTIONS:
            now = [*said, Turn(question, picture if not said else ())]
            asked = session.request(loaded, now, 80, detail="light")
            plain, lane = session.answers(
                loaded, asked, [choosing.choose(loaded.pair, "ar"), choice]
            )
            same, tokens = same + (lane.token_ids == plain.token_ids), tokens + len(lane.token_ids)
            said.append(replace(now[-1], answer=plain.text))
        rows.append(
            {"name": name, "lossless": choice.lossless, "same": same, "of": TURNS, "tokens": tokens}
        )
    return rows


@contextmanager
def endless(loaded: Loaded) -> Iterator[None]:
    """Treat the end of sequence like any other token: every answer has the maximum length."""
    vlm = loaded.models.target.vlm
    before = vlm.vocabulary
    vlm.vocabulary = replace(before, eos=frozenset())
    try:
        yield
    finally:
        vlm.vocabulary = before


def long(loaded: Loaded) -> list[dict[str, Any]]:
    asked = session.request(loaded, cases.pocket()[0].turns, LONG, detail="light")
    with endless(loaded):
        return list(compare(asked, loaded, methods(loaded)))


def gamma(loaded: Loaded) -> list[dict[str, Any]]:
    """Run chains of up to 64 drafts, also with answers shorter than a chain."""
    rows = []
    for name, n, new in product(("chain", "ngram", "fly", "tabed", "eagle2"), GAMMAS, (7, 160)):
        choice = choosing.choose(loaded.pair, name, {"policy": "chain", "gamma": n})
        asked = session.request(loaded, cases.pocket()[0].turns, new, detail="light")
        with endless(loaded):
            rows += compare(asked, loaded, {f"{name}, gamma {n}, {new} tokens": choice})
    return rows


def grid(loaded: Loaded) -> dict[str, Any]:
    """Run every drafter with every policy and every verifier; each is refused with a sentence, or
    runs.
    """
    rows: list[dict[str, Any]] = []
    refused: list[str] = []
    asked = session.request(loaded, cases.pocket()[0].turns, 48, detail="light")
    for parts in product(PARTS["drafter"], PARTS["policy"], PARTS["verifier"]):
        name = " × ".join(parts)
        settings = dict(zip(("drafter", "policy", "verifier"), parts, strict=True))
        try:
            choice = choosing.choose(loaded.pair, "custom", settings)
            rows += compare(asked, loaded, {name: choice})
        except ValueError as reason:
            refused.append(f"{name}: {reason}")
    lossless = [row for row in rows if row["lossless"]]
    return {
        "combinations": len(rows) + len(refused),
        "refused": len(refused),
        "run": len(rows),
        "lossless": len(lossless),
        "lossless_same": sum(row["same"] for row in lossless),
        "lossy": len(rows) - len(lossless),
        "lossy_same": sum(row["same"] for row in rows if not row["lossless"]),
        "sentences": sorted({line.split(": ", 1)[1] for line in refused}),
        "wrong": [row for row in lossless if not row["same"]],
    }


STUDIES = {"turns": turns, "long": long, "gamma": gamma, "grid": grid}


def main(names: Sequence[str]) -> None:
    """Run the studies of these names, all if there are none."""
    unknown = [name for name in names if name not in STUDIES]
    if unknown:
        sys.exit(f"There is no study {unknown[0]!r}; known: {', '.join(STUDIES)}.")
    loaded = loader.load(pairs.find("pocket"))
    found = {name: STUDIES[name](loaded) for name in names or STUDIES}
    sys.stdout.write(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
