"""`train eagle2 | hivis | dream --pair ID`: from a pair's target to a head with its card, one stage after
another.

Given a loaded pair and folders, has the target answer, computes features, trains and exports. Every stage
goes on where an earlier call stopped. Knows the order of the stages, nothing of what happens in them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from specvl_demo import fingerprints
from specvl_demo.registry import Loaded
from specvl_demo.training import answers, conversations, features, train_heads
from specvl_demo.training.evaluate import HELD_OUT
from specvl_demo.training.features import Example, Store
from specvl_demo.training.learners import NEEDS, Recipe

ANSWERS_SEED = 7
HELD_OUT_SEED = HELD_OUT // 10**9
SHORTEST = 8


@dataclass(frozen=True)
class Places:
    """Where things lie.

    folder: checkpoints and log of this run. out: the finished head. work: answers and features, shared by
    runs on the same target. answers: what the target said to the training conversations, made when missing.
    prompts: questions for targets other than the pocket one, as JSON lines {"prompt", "images"}; None draws
    scenes.
    """

    folder: Path
    out: Path
    work: Path
    answers: Path
    prompts: Path | None = None


def main(
    loaded: Loaded,
    recipe: Recipe,
    places: Places,
    n: int = 6000,
    n_held_out: int = 150,
    minutes: float | None = None,
    fresh: bool = False,
) -> dict[str, Any]:
    """Train a head for the pair's target; gives its card."""
    if places.prompts is None and not loaded.pair.shipped:
        raise ValueError(f"{loaded.pair.id} knows more than drawn scenes; give its questions with --prompts")
    weights = fingerprints.of(loaded.pair.target)
    if not fresh:
        train_heads.reached(places.folder, recipe, weights)  # refused before hours of answering
    # One process answers and computes features; the others find them there.
    with train_heads.processes().main_process_first():
        store, held_out = stores(loaded, recipe, places, n, n_held_out, weights)
    data = "drawn scenes" if places.prompts is None else places.prompts.name
    target = {"target": loaded.pair.target.id, "weights": weights}
    card = {**target, "data": f"{data}, answered by the target greedily"}
    model = loaded.models.target.vlm.model
    return train_heads.main(
        recipe, model, store, held_out, places.folder, places.out, card, weights, minutes, fresh
    )


def stores(
    loaded: Loaded, recipe: Recipe, places: Places, n: int, n_held_out: int, weights: str | None
) -> tuple[Store, Store]:
    """Features to learn from and held-out ones; a store that holds more than this recipe needs will do.

    ValueError where those at hand, or the answers, are of other weights than the target's.
    """
    needs = NEEDS[recipe.method]
    enough = [method for method in ("dream", "eagle2", "hivis") if NEEDS[method].covers(needs)]
    folders = []
    for name in ("train", "held-out"):
        complete = (places.work / f"{name}-{method}" for method in enough)
        folder = next((f for f in complete if (f / "complete").exists()), None)
        folder = folder or places.work / f"{name}-{recipe.method}"
        features.of_weights(folder, weights)
        folders.append(folder)
    said = answered(loaded, places, n, n_held_out, weights)
    for folder, file, most in zip(folders, said, (n, n_held_out), strict=True):
        if not (folder / "complete").exists():
            about = {"target": loaded.pair.target.id, "weights": weights, "answers": file.name, "n": most}
            model = loaded.models.target.vlm.model
            features.build(model, _examples(loaded, places, file, most), folder, needs, about)
            (folder / "complete").touch()
    return Store(folders[0]), Store(folders[1])


def answered(
    loaded: Loaded, places: Places, n: int, n_held_out: int, weights: str | None
) -> tuple[Path, Path]:
    """Files with the target's answers: to learn from, and held out."""
    held_out = places.work / "answers-held-out.jsonl"
    if places.prompts is None:
        folder = loaded.pair.target.folder
        answers.regenerate(folder, places.answers, n, ANSWERS_SEED)
        answers.regenerate(folder, held_out, n_held_out, HELD_OUT_SEED)
        return places.answers, held_out
    lines = [json.loads(line) for line in places.prompts.read_text().splitlines() if line.strip()]
    random.Random(ANSWERS_SEED).shuffle(lines)
    if len(lines) <= n_held_out:
        raise ValueError(
            f"{places.prompts.name} has {len(lines)} prompts, and {n_held_out} are to be held out"
        )
    pictures = places.prompts.parent
    for out, some in ((held_out, lines[:n_held_out]), (places.answers, lines[n_held_out:][:n])):
        conversations.ask_all(loaded.models.target, loaded.prompter, some, pictures, out, weights)
    return places.answers, held_out


def _examples(loaded: Loaded, places: Places, said: Path, most: int) -> Iterator[Example]:
    if places.prompts is None:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(loaded.pair.target.folder)
        return conversations.drawn(tokenizer, said, most)
    return conversations.asked(loaded.prompter, said, places.prompts.parent, most, SHORTEST)
