"""From a pair's target to a drafter with its card: answers, features, training, export. Every stage
continues where an earlier call stopped.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from recipes import answers, features, packing, photo_data, photo_writer
from recipes.drafters import KINDS, run
from recipes.drafters.base import Learner, Recipe
from recipes.features import Example, Store
from recipes.trainer import checkpoint, processes
from specvl_demo.pairs import fingerprints, on_disk
from specvl_demo.serving.loaded import LoadedPair

ANSWERS_SEED = 7
HELD_OUT_SEED = 3000
SHORTEST, LONGEST = 8, 160
"""Tokens of an answer that is trained on."""


@dataclass(frozen=True)
class Places:
    """Where files are: checkpoints and log of this run; `out`, the finished head; `work`, answers
    and features, shared by runs on the same target; its answers to the training conversations.

    prompts: Questions as JSON lines (see `answers.ask_all`). data: A folder of captioned
    photographs to ask about instead.
    """

    folder: Path
    out: Path
    work: Path
    answers: Path
    prompts: Path | None = None
    data: Path | None = None

    @property
    def pictures(self) -> Path:
        """The folder of the questions' pictures; ValueError if there are no questions."""
        folder = self.prompts.parent if self.prompts is not None else self.data
        if folder is None:
            raise ValueError(
                "a drafter learns from its target's answers: give questions with --prompts, or a"
                " folder of captioned photographs with --data"
            )
        return folder


def main(
    loaded: LoadedPair,
    kind: type[Learner],
    recipe: Recipe,
    places: Places,
    n: int,
    n_held_out: int,
    minutes: float | None = None,
    fresh: bool = False,
    small: bool = False,
    start: Path | None = None,
) -> dict[str, Any]:
    """Train, or continue training, a drafter for the pair's target; return its card.

    small: In eight bits. start: A finished drafter's folder of this kind to start from.
    """
    data = (places.prompts or places.pictures).name
    weights = on_disk.fingerprint(loaded.pair.target)
    origin = {"weights": weights, "start": fingerprints.folder_hash(start) if start else None}
    if not fresh:
        # Refused here, before hours of answering.
        checkpoint(places.folder, kind.name, run.identity_of(kind.name, recipe, origin))
    # One process answers and computes features; the others read them.
    with processes().main_process_first():
        store, held_out = stores(loaded, kind, places, n, n_held_out, weights)
    cuda, model = torch.cuda.is_available(), loaded.models.target.vlm.model
    # A target in bfloat16 means that the processor multiplies it fast.
    half = cuda or model.get_input_embeddings().weight.dtype == torch.bfloat16
    accelerator = Accelerator(mixed_precision="bf16" if half else "no", cpu=not cuda)
    model.to(accelerator.device).requires_grad_(False)
    learner = run.learner_for(kind, recipe, model, store, accelerator.device, start)
    trained = run.Run(learner, places.folder, accelerator, origin)
    if not fresh:
        trained.resume()
    trained.fit(store, minutes)
    accelerator.wait_for_everyone()
    card: dict[str, Any] = {"target": loaded.pair.target.id, "weights": weights}
    card["data"] = f"{data}, answered by the target"
    if start is not None:
        card["start"] = str(origin["start"])
    if not accelerator.is_main_process:
        return card
    if small:
        packing.round_to(learner.module)
    card |= {"conversations": len(store), "loss": trained.last_log()}
    card["acceptance"] = run.accepted(learner, held_out)
    run.export(trained, places.out, card, small)
    return json.loads((places.out / "card.json").read_text())


def stores(
    loaded: LoadedPair,
    kind: type[Learner],
    places: Places,
    n: int,
    n_held_out: int,
    weights: str | None,
) -> tuple[Store, Store]:
    """Return features to train on and held-out ones, maybe more than are needed; ValueError if
    they, or the answers, are of other weights than the target's.
    """
    folders, needs = [], kind.needs
    for name in ("train", "held-out"):
        complete = (places.work / f"{name}-{other}" for other in KINDS)
        ready = (f for f in complete if (f / "complete").exists() and Store(f).needs.covers(needs))
        folder = next(ready, places.work / f"{name}-{kind.name}")
        features.of_weights(folder, weights)
        folders.append(folder)
    files = answered(loaded, places, n, n_held_out, weights)
    for folder, file, most in zip(folders, files, (n, n_held_out), strict=True):
        if not (folder / "complete").exists():
            about = {
                "target": loaded.pair.target.id,
                "weights": weights,
                "answers": file.name,
                "n": most,
            }
            model = loaded.models.target.vlm.model
            features.build(model, _examples(loaded, places, file, most), folder, needs, about)
            (folder / "complete").touch()
    return Store(folders[0]), Store(folders[1])


def answered(
    loaded: LoadedPair, places: Places, n: int, n_held_out: int, weights: str | None
) -> tuple[Path, Path]:
    """Return the files with the target's answers: to train on, and held out."""
    held_out = places.work / "answers-held-out.jsonl"
    to_learn, to_measure = _questions(places, n, n_held_out)
    for out, some in ((held_out, to_measure), (places.answers, to_learn)):
        target, folder = loaded.models.target, places.pictures
        answers.ask_all(target, loaded.prompter, some, folder, out, weights, LONGEST)
    return places.answers, held_out


def _questions(places: Places, n: int, n_held_out: int) -> tuple[list[Any], list[Any]]:
    if places.prompts is None:
        learn, measure = photo_data.read(places.pictures)
        return (
            photo_writer.prompt_lines(learn, places.pictures, n, ANSWERS_SEED),
            photo_writer.prompt_lines(measure, places.pictures, n_held_out, HELD_OUT_SEED),
        )
    lines = [json.loads(line) for line in places.prompts.read_text().splitlines() if line.strip()]
    random.Random(ANSWERS_SEED).shuffle(lines)
    if len(lines) <= n_held_out:
        raise ValueError(
            f"{places.prompts.name} has {len(lines)} prompts, but {n_held_out} must be held out"
        )
    return lines[n_held_out:][:n], lines[:n_held_out]


def _examples(loaded: LoadedPair, places: Places, file: Path, most: int) -> Iterator[Example]:
    return answers.asked_examples(loaded.prompter, file, places.pictures, most, SHORTEST)
