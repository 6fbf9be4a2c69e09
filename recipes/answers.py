"""Conversations with the target's own answers, which drafters are trained on since they must
predict them.

Questions are the lines of a file with their pictures. The target answers greedily, or at the
temperature of a line; a file keeps lines, answers, and the hash of the target.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from recipes.features import Example, extended
from specvl_demo.core.types import Prompt
from specvl_demo.options import SEED
from specvl_demo.question import Question
from specvl_demo.serving import choosing, session
from specvl_demo.serving.loader import Loaded
from specvl_demo.vlm.prompts import PromptBuilder
from specvl_demo.vlm.target import VLMTarget

TOGETHER = 40
"""Prompts of an evaluation that are answered at once."""
BATCHED = frozenset({"input_ids", "attention_mask", "pixel_values"})
"""Inputs that prompts of one batch may have: a picture is one tensor of pixels, whatever it
shows.
"""


@torch.inference_mode()
def replies(target: VLMTarget, prompts: Sequence[Mapping[str, Any]], most: int) -> list[list[int]]:
    """Return the target's greedy answers of at most `most` ids, including the end of sequence.

    prompts: A model's inputs for batches of one; they are answered together, left-padded, if
    possible. An answer is cut before a placeholder, which would represent a picture.
    """
    if len(prompts) > 1 and not all(BATCHED.issuperset(one) for one in prompts):
        return [answer for one in prompts for answer in replies(target, [one], most)]
    model: Any = target.vlm.model
    rows = [prompt["input_ids"][0] for prompt in prompts]
    padded = partial(pad_sequence, batch_first=True, padding_side="left")
    inputs = {
        **prompts[0],
        "input_ids": padded(rows),
        "attention_mask": padded([*map(torch.ones_like, rows)]),
    }
    pixels = [one["pixel_values"] for one in prompts if "pixel_values" in one]
    if pixels:
        inputs["pixel_values"] = torch.cat(pixels).to(model.dtype)
    inputs = {k: v.to(model.device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
    made = model.generate(**inputs, max_new_tokens=most, do_sample=False)
    answers = []
    for row in made[:, max(map(len, rows)) :].tolist():
        ends = (i + 1 for i, token in enumerate(row) if token in target.vocabulary.eos)
        answers.append(_words(target, row[: next(ends, len(row))]))
    return answers


def _words(target: VLMTarget, ids: Iterable[int]) -> list[int]:
    """Cut an answer before a placeholder."""
    return list(takewhile(lambda token: token not in target.vocabulary.banned, ids))


def greedy_texts(loaded: Loaded, prompts: Iterable[Mapping[str, Any]], most: int) -> Iterator[str]:
    """Yield a loaded target's greedy answers to prompts (see `replies`) as text."""
    source = iter(tqdm(prompts, desc="answers", mininterval=5, disable=None))
    while some := list(islice(source, TOGETHER)):
        for prompt, ids in zip(some, replies(loaded.models.target, some, most), strict=True):
            last = int(prompt["input_ids"][0, -1])
            yield loaded.token_texts.text_after(last, tuple(ids)).strip()


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


def _answer_all(
    questions: Sequence[Any],
    out: Path,
    weights: str | None,
    batch: int,
    answer: Callable[[Any], Iterable[dict[str, Any]]],
) -> None:
    """Append the rows that a file does not have yet, `batch` of them at once; errors as in
    `written`.
    """
    done = written(out, weights)
    total, about = len(questions), "the target's answers"
    bar = tqdm(total=total, initial=min(done, total), desc=about, disable=None)
    with bar, out.open("a") as file:
        for start in range(done, total, batch):
            rows = [json.dumps(row) + "\n" for row in answer(questions[start : start + batch])]
            file.writelines(rows)
            file.flush()
            bar.update(len(rows))


def ask_all(
    loaded: Loaded,
    lines: Sequence[Mapping[str, Any]],
    folder: Path,
    out: Path,
    weights: str | None,
    most: int = 256,
) -> None:
    """Let the target answer every line, with a chain of its small drafter if that is loaded, which
    changes nothing in the answers; continues where an earlier call stopped. An answer is cut
    before a placeholder.

    A line is {"prompt": text, "images": [file, ...], "temperature": number}, files in `folder`, and
    greedy without the last. `out` gets the same lines with "answer_ids" and the target's `weights`
    (see `fingerprints`), as JSON.

    Raises:
        ValueError: If other weights answered there.
    """
    choice = choosing.choose(loaded.pair, "chain" if "small" in loaded.models.drafters else "ar")

    def answer(some: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        for line in some:
            seed = zlib.crc32(str(line).encode()) % (SEED.high + 1)
            temperature = line.get("temperature", 0.0)
            question = replace(
                _question(line, folder), max_new_tokens=most, temperature=temperature, seed=seed
            )
            asked = session.request(loaded, question, detail="light")
            (lane,) = session.answers(loaded, asked, [choice])
            ids = _words(loaded.models.target, lane.token_ids)
            yield {**line, "weights": weights, "answer_ids": ids}

    _answer_all(lines, out, weights, 1, answer)


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
