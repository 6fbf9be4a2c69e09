"""Conversations in the target's own words: what drafters are trained on, since these they will have to guess.

A conversation is drawn from a seed, and every answer in it is replaced by what the target says greedily, turn
after turn; the file holds seeds and answers, and whose they are; pictures are drawn again when needed. Knows
the pocket world and a saved target.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm
from transformers import AutoProcessor, LlavaForConditionalGeneration, PreTrainedTokenizerBase

from specvl_demo import fingerprints
from specvl_demo.targets.vlm import VLM
from specvl_demo.training import batches, pocket, samples
from specvl_demo.training.converse import Script, context_of, converse
from specvl_demo.training.texts import Sample, text_of
from specvl_demo.training.train_pocket import see

MOST_TURNS = 3
AHEAD = 12
"""Batches that are drawn together, so that conversations of like length can be."""


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
        sample = samples.several_pictures(rng, 4)
    else:
        sample = samples.one_picture(rng, rng.randint(1, 6), 130, 0.0, 0.14)
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
    stopped. ValueError where other weights answered there.
    """
    weights = fingerprints.of_folder(folder)
    done = said_by(weights, out)
    if done >= n:
        return
    processor = AutoProcessor.from_pretrained(folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    vlm = VLM(model, folder.name)
    out.parent.mkdir(parents=True, exist_ok=True)
    bar = tqdm(total=n, initial=done, desc="the target's answers", mininterval=5, disable=None)
    with out.open("a") as file:
        for first in range(done, n, AHEAD * batch):
            some = [drawn(seed * 10**9 + i) for i in range(first, min(n, first + AHEAD * batch))]
            answers: dict[int, list[str]] = {}
            # Of like length together: a batch runs until its last conversation ends.
            order = sorted(some, key=lambda c: sum(map(samples.length, c.sample.turns)))
            for at in range(0, len(order), batch):
                for c, said in _replies(vlm, processor.tokenizer, order[at : at + batch], max_new_tokens):
                    answers[c.seed] = said
                    bar.update()
            rows = ({"seed": c.seed, "weights": weights, "answers": answers[c.seed]} for c in some)
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()
    bar.close()


def _replies(
    vlm: VLM, tokenizer: PreTrainedTokenizerBase, conversations: list[Conversation], most: int
) -> Iterator[tuple[Conversation, list[str]]]:
    """Every conversation with the target's answers to all its turns."""
    pixels = batches.to_pixels([p for c in conversations for p in c.pictures]).to(vlm.decoder.device)
    seen = iter(see(vlm.model, pixels))
    scripts = []
    for c in conversations:
        asked = [
            [
                pocket.USER,
                *tokenizer.encode(" " + text_of(turn.question), add_special_tokens=False),
                pocket.ASSISTANT,
            ]
            for turn in c.sample.turns
        ]
        ids = [pocket.BOS, pocket.USER, *pocket.picture_ids(tokenizer, len(c.pictures)), *asked[0][1:-1]]
        visual = torch.cat([next(seen) for _ in c.pictures])
        context = context_of(vlm.decoder, ids, visual, pocket.IMAGE)
        scripts.append(Script(context, [asked[0][-1:], *asked[1:]]))
    for c, answers in zip(conversations, converse(vlm, scripts, most), strict=True):
        yield c, tokenizer.batch_decode(answers, skip_special_tokens=True)


def said_by(weights: str | None, path: Path) -> int:
    """How many conversations the file holds, all in the words of these weights; ValueError where not.

    A last line that was cut off is taken away: it will be said again.
    """
    if not path.exists():
        return 0
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    rows = [json.loads(line) for line in whole.splitlines()]
    if any(row.get("weights", "unknown") != weights for row in rows):
        raise ValueError(f"{path} holds the answers of other weights; delete it, or name another file")
    if whole != text:
        path.write_text(whole)
    return len(rows)


def read(path: Path) -> list[tuple[int, list[str]]]:
    """Seeds and answers of a file that `regenerate` wrote."""
    return [(row["seed"], row["answers"]) for row in map(json.loads, path.read_text().splitlines())]
