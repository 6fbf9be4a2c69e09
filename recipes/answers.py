"""Conversations with the target's own answers, which drafters must predict: to the lines of a file
with their pictures, greedy or at a line's temperature. Each keeps the hash of the target.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tqdm import tqdm

from recipes.features import Example, extended
from specvl_demo.core.types import Prompt
from specvl_demo.options import SEED, Sampling
from specvl_demo.question import Question
from specvl_demo.serving import choosing, session
from specvl_demo.serving.loaded import LoadedPair
from specvl_demo.vlm.prompts import PromptBuilder


def _words(banned: Container[int], ids: Iterable[int]) -> list[int]:
    """Cut an answer before a placeholder, which would represent a picture."""
    return list(takewhile(lambda token: token not in banned, ids))


def written(path: Path, weights: str | None) -> int:
    """Return how many answers a file has, all from these weights; ValueError otherwise.

    An incomplete last line is removed and will be written again.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return 0
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if any(row.get("weights", "unknown") != weights for row in map(json.loads, whole.splitlines())):
        raise ValueError(f"{path} has answers of other weights; delete it, or name another file")
    if whole != text:
        path.write_text(whole)
    return whole.count("\n")


def ask_all(
    loaded: LoadedPair,
    lines: Sequence[Mapping[str, Any]],
    folder: Path,
    out: Path,
    weights: str | None,
    most: int = 256,
) -> None:
    """Let the target answer every line, with a chain of its small drafter if that is loaded;
    continues where an earlier call stopped. An answer is cut before a placeholder.

    A line is {"prompt": text, "images": [file, ...], "temperature": number}, files in `folder`, and
    greedy without the last. `out` gets the same lines with "answer_ids" and the target's `weights`
    (see `fingerprints`), as JSON; ValueError if other weights answered there.
    """
    choice = choosing.choose(loaded.pair, "chain" if "small" in loaded.models.drafters else "ar")

    banned, done = loaded.models.target.vocabulary.banned, written(out, weights)
    bar = tqdm(lines[done:], "the target's answers", len(lines), initial=done, disable=None)
    with out.open("a") as file:
        for line in bar:
            seed = zlib.crc32(str(line).encode()) % (SEED.high + 1)
            sampling = Sampling(line.get("temperature", 0.0), seed=seed)
            question = replace(_question(line, folder), max_new_tokens=most, sampling=sampling)
            asked = session.make_request(loaded, question, detail="light")
            (lane,) = session.run_lanes(loaded, asked, [choice])
            ids = _words(banned, lane.token_ids)
            file.write(json.dumps({**line, "weights": weights, "answer_ids": ids}) + "\n")
            file.flush()


def asked_examples(
    prompter: PromptBuilder, file: Path, folder: Path, most: int, shortest: int = 0
) -> Iterator[Example]:
    """Yield the conversations that `ask_all` wrote.

    Answers of fewer than `shortest` tokens teach no drafting and are left out (arXiv 2509.23928,
    §3.2 keeps those of more than five words).
    """
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in [line for line in lines if len(line["answer_ids"]) >= shortest][:most]:
        ids = line["answer_ids"]
        yield example(prompt_of(prompter, line, folder, len(ids)), ids)


def example(prompt: Prompt, answer_ids: list[int]) -> Example:
    n, tail = len(prompt), torch.zeros(len(answer_ids), dtype=torch.bool)
    belongs = torch.cat((torch.zeros(n, dtype=torch.bool), ~tail))
    return Example(extended(prompt.inputs, answer_ids), belongs, torch.cat((prompt.visual, tail)))


def prompt_of(prompter: PromptBuilder, line: Mapping[str, Any], folder: Path, room: int) -> Prompt:
    """Return the prompt of a line as in `ask_all`, with room for an answer."""
    return prompter.prompt(_question(line, folder), room=room)


def _question(line: Mapping[str, Any], folder: Path) -> Question:
    images = tuple(Image.open(folder / name).convert("RGB") for name in line.get("images", ()))
    return Question(line["prompt"], images)
