"""Conversations in the target's own words: what drafters are trained on, since they will have to guess
exactly these.

A conversation is drawn from a seed, and every answer in it is replaced by what the target says greedily, turn after turn; the file holds
seeds and answers, pictures are drawn again when needed. Knows the pocket world and a saved target.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm
from transformers import AutoProcessor, LlavaForConditionalGeneration

from specvl_demo.training import batches, pocket, texts
from specvl_demo.training.texts import Sample, text_of

MOST_TURNS = 3


@dataclass(frozen=True)
class Conversation:
    """A sample with the target's answers, and its pictures as the model gets them (uint8 [P, 96, 96, 3])."""

    seed: int
    sample: Sample
    pictures: np.ndarray


def drawn(seed: int) -> Conversation:
    """The conversation of a seed, still with the grammar's answers."""
    rng = random.Random(seed)
    if rng.random() < 0.3:
        sample = texts.several_pictures(rng, 4)
    else:
        sample = texts.one_picture(rng, rng.randint(1, 6), 130, 0.0, 0.14)
    sample = replace(sample, turns=sample.turns[:MOST_TURNS])
    box = batches.content_box(rng)
    pictures = np.stack([np.asarray(batches.letterboxed(p, box, rng)) for p in sample.pictures])
    return Conversation(seed, sample, pictures)


def with_answers(conversation: Conversation, answers: list[str]) -> Conversation:
    """The same conversation with the first turns answered like this, later turns dropped."""
    turns = tuple(replace(t, answer=[a]) for t, a in zip(conversation.sample.turns, answers, strict=False))
    return replace(conversation, sample=replace(conversation.sample, turns=turns))


@torch.inference_mode()
def regenerate(
    folder: Path, out: Path, n: int, seed: int, batch: int = 48, max_new_tokens: int = 150
) -> None:
    """Write `n` conversations in the target's words to `out` (JSON lines); goes on where an earlier call
    stopped.
    """
    done = sum(1 for _ in out.open()) if out.exists() else 0
    processor = AutoProcessor.from_pretrained(folder)
    tokenizer = processor.tokenizer
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as file:
        for first in tqdm(range(done, n, batch), desc="the target's answers", mininterval=5):
            some = [drawn(seed * 10**9 + i) for i in range(first, min(n, first + batch))]
            answers: list[list[str]] = [[] for _ in some]
            for turn in range(MOST_TURNS):
                asked = [i for i, c in enumerate(some) if len(c.sample.turns) > turn]
                if asked:
                    replies = _reply(
                        model,
                        tokenizer,
                        [some[i] for i in asked],
                        [answers[i] for i in asked],
                        device,
                        max_new_tokens,
                    )
                    for i, reply in zip(asked, replies, strict=True):
                        answers[i].append(reply)
            for c, a in zip(some, answers, strict=True):
                file.write(json.dumps({"seed": c.seed, "answers": a}) + "\n")
            file.flush()


def _reply(
    model,
    tokenizer,
    conversations: list[Conversation],
    said: list[list[str]],
    device: torch.device,
    most: int,
) -> list[str]:
    rows = []
    for c, answers in zip(conversations, said, strict=True):
        ids = batches.encode(tokenizer, with_answers(c, answers).sample).ids if answers else [pocket.BOS]
        images = [] if answers else [pocket.IMAGE] * (pocket.N_PATCHES * len(c.pictures))
        question = tokenizer.encode(
            " " + text_of(c.sample.turns[len(answers)].question), add_special_tokens=False
        )
        rows.append([*ids, pocket.USER, *images, *question, pocket.ASSISTANT])
    longest = max(map(len, rows))
    ids = torch.tensor([[pocket.PAD] * (longest - len(r)) + r for r in rows], device=device)
    pixels = batches.to_pixels([p for c in conversations for p in c.pictures]).to(device)
    mask = (ids != pocket.PAD).long()
    full = model.generate(
        input_ids=ids, attention_mask=mask, pixel_values=pixels, max_new_tokens=most, do_sample=False
    )
    return tokenizer.batch_decode(full[:, longest:], skip_special_tokens=True)


def read(path: Path) -> list[tuple[int, list[str]]]:
    """Seeds and answers of a file that `regenerate` wrote."""
    return [(row["seed"], row["answers"]) for row in map(json.loads, path.read_text().splitlines())]
