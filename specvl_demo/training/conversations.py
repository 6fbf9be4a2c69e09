"""Where the conversations come from that heads are trained on: drawn scenes, or prompts from a file.

Given a target, gives `features.Example`s in the target's own words: for the pocket target those that
`answers.regenerate` wrote, for any other the questions and pictures a file names, answered by the target in
this repository's own loop. Knows no heads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from specvl_demo.core.engine import Lane, Parts, Request, Shared, race
from specvl_demo.core.policies import OneNode
from specvl_demo.core.text import Lexicon
from specvl_demo.core.types import Prompt
from specvl_demo.core.verify import Strict
from specvl_demo.drafters.none import NoDrafter
from specvl_demo.records import Round
from specvl_demo.targets.prompts import Prompter, Turn
from specvl_demo.targets.target import VLMTarget
from specvl_demo.training import answers, batches, pocket
from specvl_demo.training.features import Example, extended


def drawn(tokenizer: PreTrainedTokenizerBase, said: Path, most: int | None = None) -> Iterator[Example]:
    """Conversations about drawn scenes in the words of the pocket target, as `answers.regenerate` wrote
    them."""
    for seed, replies in answers.read(said)[:most]:
        conversation = answers.with_answers(answers.drawn(seed), replies)
        encoded = batches.encode(tokenizer, conversation.sample)
        ids = torch.tensor(encoded.ids)
        inputs = {
            "input_ids": ids[None],
            "attention_mask": torch.ones_like(ids)[None],
            "pixel_values": batches.to_pixels(list(conversation.pictures)),
        }
        yield Example(inputs, torch.tensor(encoded.labels) != -100, ids == pocket.IMAGE)


def ask_all(
    target: VLMTarget,
    prompter: Prompter,
    lines: Sequence[Mapping[str, Any]],
    pictures: Path,
    out: Path,
    weights: str | None,
    max_new_tokens: int = 256,
) -> None:
    """Have the target answer every line greedily; goes on where an earlier call stopped. ValueError where
    other weights answered there.

    A line is {"prompt": text, "images": [file, ...]}, files in the folder `pictures`. `out` gets the same
    lines with "answer_ids" and the target's `weights` (see `fingerprints`), as JSON.
    """
    done = answers.said_by(weights, out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as file:
        for line in tqdm(lines[done:], desc="the target's answers", mininterval=5, disable=None):
            ids = answer(
                target, prompter.lexicon(), _prompt(prompter, line, pictures, max_new_tokens), max_new_tokens
            )
            file.write(json.dumps({**line, "weights": weights, "answer_ids": ids}) + "\n")
            file.flush()


def answer(target: VLMTarget, lexicon: Lexicon, prompt: Prompt, max_new_tokens: int) -> list[int]:
    """The target's greedy answer, as ids; cut before a placeholder, which would stand for a picture."""
    request = Request("answer", prompt, target, lexicon, max_new_tokens=max_new_tokens, detail="light")
    parts = Parts("ar", "", True, {}, NoDrafter(), OneNode(), Strict())
    records = race([Lane("ar", parts, Shared(request))])
    ids = [token.id for record in records if isinstance(record, Round) for token in record.tokens]
    return list(takewhile(lambda token: token not in target.vocabulary.banned, ids))


def asked(
    prompter: Prompter, said: Path, pictures: Path, most: int | None = None, shortest: int = 0
) -> Iterator[Example]:
    """The conversations that `ask_all` wrote; answers of fewer than `shortest` tokens teach no drafting and
    are left out (HiViS §3.2 keeps those of more than five words)."""
    lines = [json.loads(line) for line in said.read_text().splitlines()]
    for line in [line for line in lines if len(line["answer_ids"]) >= shortest][:most]:
        prompt = _prompt(prompter, line, pictures, len(line["answer_ids"]))
        yield example(prompt, line["answer_ids"])


def example(prompt: Prompt, answer_ids: list[int]) -> Example:
    """A prompt and its answer."""
    n, tail = len(prompt), torch.zeros(len(answer_ids), dtype=torch.bool)
    belongs = torch.cat((torch.zeros(n, dtype=torch.bool), ~tail))
    return Example(extended(prompt.inputs, answer_ids), belongs, torch.cat((prompt.visual, tail)))


def _prompt(prompter: Prompter, line: Mapping[str, Any], folder: Path, room: int) -> Prompt:
    images = tuple(Image.open(folder / name).convert("RGB") for name in line.get("images", ()))
    return prompter.prompt([Turn(line["prompt"], images)], room=room)
