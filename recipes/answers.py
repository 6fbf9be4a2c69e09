"""Conversations with the target's own answers, which drafters must predict: to the lines of a file
with their pictures, greedy or at a line's temperature. Each keeps the hash of the target.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from recipes.features import Example, extended
from specvl_demo.core import highest
from specvl_demo.core.sampling import warp_logits
from specvl_demo.core.tree import chain
from specvl_demo.core.types import Prompt
from specvl_demo.decoders.sequence import CachedSequence, prefill
from specvl_demo.options import SEED, Sampling
from specvl_demo.question import Question
from specvl_demo.vlm.prompts import PromptBuilder
from specvl_demo.vlm.target import VLMTarget

Line = Mapping[str, Any]
TOGETHER = 16
"""How many questions are answered at once."""


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
    target: VLMTarget,
    prompter: PromptBuilder,
    lines: Sequence[Line],
    folder: Path,
    out: Path,
    weights: str | None,
    max_tokens: int = 256,
) -> None:
    """Let the target answer every line, with at most so many tokens; continues where an earlier
    call stopped. An answer is cut before a placeholder.

    A line is {"prompt": text, "images": [file, ...], "temperature": number}, files in `folder`, and
    greedy without the last. `out` gets the same lines, those of a batch side by side, with
    "answer_ids" and the target's `weights` (see `fingerprints`), as JSON; ValueError if other
    weights answered there.
    """
    banned, done = target.vocabulary.banned, written(out, weights)
    bar = tqdm(desc="the target's answers", total=len(lines), initial=done, disable=None)
    with out.open("a") as file, bar:
        # A state that follows one line of tokens would take up padding.
        size = TOGETHER if target.decoder.eager_cache(1, 1).branches else 1
        for batch in batches(lines, size):
            fresh, done = batch[done:], max(0, done - len(batch))
            prompts = [prompt_of(prompter, line, folder, max_tokens) for line in fresh]
            answers = (
                answer(target, prompts, list(map(_sampling, fresh)), max_tokens) if fresh else []
            )
            for line, ids in zip(fresh, answers, strict=True):
                words = _words(banned, ids)
                file.write(json.dumps({**line, "weights": weights, "answer_ids": words}) + "\n")
            file.flush()
            bar.update(len(fresh))


def batches(lines: Sequence[Line], size: int) -> list[list[Line]]:
    """Return lines that are answered together, in an order that does not depend on their kinds:
    with the same question and as many pictures, prompts and answers are about equally long.
    """
    alike = sorted(lines, key=lambda line: (len(line.get("images", ())), line["prompt"]))
    made = [alike[i : i + size] for i in range(0, len(alike), size)]
    random.Random(0).shuffle(made)
    return made


@torch.inference_mode()
def answer(
    target: VLMTarget, prompts: Sequence[Prompt], samplings: Sequence[Sampling], max_tokens: int
) -> list[list[int]]:
    """Return answers of at most so many tokens, up to the one that ends them: each prompt is a row
    of every step.
    """
    decoder, end = target.decoder, target.vocabulary.eos
    encoded = [target.encode(prompt) for prompt in prompts]
    contexts = [prompt.context("target") for prompt in encoded]
    room = max(len(context.ids) for context in contexts) + max_tokens
    sequence = prefill(decoder, contexts, room).sequence
    padding = [sequence.length - len(context.ids) for context in contexts]
    pad = torch.arange(sequence.length) < torch.tensor(padding)[:, None]
    draws = [torch.Generator().manual_seed(sampling.seed) for sampling in samplings]
    answers: list[list[int]] = [[] for _ in prompts]
    rows, tokens = list(range(len(prompts))), [int(prompt.ids[-1]) for prompt in encoded]
    for _ in range(max_tokens):
        embedded = decoder.embed(torch.tensor(tokens, device=decoder.device))[:, None]
        logits = decoder.logits(sequence.score(embedded, chain(0))[:, 0])
        sequence.commit_nodes([0])
        tokens = [
            int(highest.argmax(row[None]))
            if samplings[i].greedy
            else int(
                warp_logits(row.cpu(), samplings[i]).softmax(-1).multinomial(1, generator=draws[i])
            )
            for i, row in zip(rows, logits, strict=True)
        ]
        for i, token in zip(rows, tokens, strict=True):
            if not answers[i] or answers[i][-1] not in end:
                answers[i].append(token)
        left = [at for at, i in enumerate(rows) if answers[i][-1] not in end]
        if not left:
            break
        if 2 * len(left) <= len(rows):
            sequence = _rows_of(sequence, left, pad[[rows[at] for at in left]], room)
            rows, tokens = [rows[at] for at in left], [tokens[at] for at in left]
    return answers


def _rows_of(sequence: CachedSequence, rows: list[int], pad: Tensor, room: int) -> CachedSequence:
    """Return some of the sequences in a cache of their own. pad: [m, prompt], of these."""
    cache, n = sequence.backend.new_cache(len(rows), room), sequence.length
    for mine, theirs in zip(cache.blocks, sequence.cache.blocks, strict=True):
        mine[:, :, :, :, :n] = theirs[:, :, rows, :, :n]
    cache.advance(n)
    pad = F.pad(pad, (0, n - pad.shape[1])).to(sequence.next_position.device)
    return CachedSequence(sequence.backend, cache, sequence.next_position[rows], pad)


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


def prompt_of(prompter: PromptBuilder, line: Line, folder: Path, room: int) -> Prompt:
    """Return the prompt of a line as in `ask_all`, with room for an answer."""
    return prompter.prompt(_question(line, folder), room=room)


def _sampling(line: Line) -> Sampling:
    return Sampling(
        line.get("temperature", 0.0), seed=zlib.crc32(str(line).encode()) % (SEED.high + 1)
    )


def _question(line: Line, folder: Path) -> Question:
    images = tuple(Image.open(folder / name).convert("RGB") for name in line.get("images", ()))
    return Question(line["prompt"], images)
