"""Questions about photographs, and answers that the base language model writes itself.

LLaVA made its instruction data this way: a language model without pictures reads the captions and
writes the answer. A small model soon repeats itself, so the opening sentence is a person's own, the
model continues from there, and no word triple may occur twice. Answers to plain prompts come from
the same loop; they keep plain chat in the training.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm
from transformers import (
    AutoModelForCausalLM,
    LogitsProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from recipes import photo_questions, photo_scores
from recipes.photo_data import Photo

PHRASES: dict[str, Any] = json.loads(
    Path(__file__).with_name("photo_phrases.json").read_text("utf-8")
)
"""plain, ask: topics, and what is asked about each kind of them. questions: about a photograph, by
the kind of answer. things: questions about one thing, with the form of the answer. about: what is
asked about a thing once it is named. go on, order: how the base is made to tell what may happen
next.
"""
END = "<|im_end|>"
ASK, ANSWER = "<|im_start|>user\n", END + "\n<|im_start|>assistant\n"
UNWANTED = re.compile(
    r"caption|\bai\b|sentence|paragraph|\bstory|\bscenes?\b|\bimage|camera|character|[#*<>_|]|\d\.|[^\x00-\x7f]",
    re.I,
)

SHORT, DIFFERENCE, CLIP, DESCRIBE, STORY, NEXT = (
    PHRASES["questions"][kind]
    for kind in ("short", "difference", "clip", "describe", "story", "next")
)
SHARES = {"short": 0.3, "long": 0.25, "story": 0.25, "question": 0.1, "two": 0.05, "plain": 0.05}
"""Of the prompts whose answers drafters learn from: long answers are where drafting pays off."""
BATCH = 64
"""Answers that are written at once."""
TEMPERATURE, TOP = 0.6, 30
"""Answers are sampled among the TOP likeliest tokens."""
GO_ON, ORDER, ABOUT = PHRASES["go on"], PHRASES["order"], PHRASES["about"]


@dataclass(frozen=True)
class Job:
    """An answer to be written: the writer reads `prompt`, `opening` is how it begins."""

    key: str
    kind: str
    question: str
    prompt: str
    opening: str


def next_job(key: str, captions: Sequence[str], rng: random.Random) -> Job:
    """Return the order for what may happen next; captions are clean sentences."""
    opening = max(captions, key=len) + rng.choice(GO_ON)
    prompt = ASK + ORDER.format(told=" ".join(captions)) + ANSWER
    return Job(key, "next", rng.choice(NEXT), prompt, opening)


def plain_prompts() -> list[str]:
    """Return all plain prompts without a photograph, shuffled: more than 2,000 different ones."""
    rng = random.Random(5)
    signs = ("plus", "minus", "times") * 40
    sums = [f"{rng.randint(2, 99)} {sign} {rng.randint(2, 99)}" for sign in signs]
    plain, asks = PHRASES["plain"], PHRASES["ask"]
    topics = {
        "thing": plain["things"],
        "place": plain["places"],
        "deed": plain["deeds"],
        "sum": sums,
    }
    asked = {ask.format(x=x) for kind, xs in topics.items() for ask in asks[kind] for x in xs}
    made = sorted({*asked, *plain["others"]})
    rng.shuffle(made)
    return made


def prompt_lines(photos: Sequence[Photo], folder: Path, n: int, seed: int) -> list[dict[str, Any]]:
    """Return n prompts for drafters, {"prompt", "images": [path below `folder`]}, each drawn only
    from (seed, number).
    """
    index = photo_questions.WordIndex([photo.captions for photo in photos])
    plain = plain_prompts()
    ways = {"long": DESCRIBE, "story": (*STORY, *NEXT), "two": DIFFERENCE}
    order = random.Random(f"{seed}/order").sample(range(len(photos)), len(photos))
    made = []
    for i in range(n):
        rng = random.Random(f"{seed}/{i}")
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        shown = [photos[order[i % len(order)]]]
        if kind == "two" and len(photos) > 1:
            shown.append(photos[order[(i + 1) % len(order)]])
        asked = kind == "question" and photo_questions.ask(shown[0].captions, rng, 1, index)
        if kind == "plain":
            shown, prompt = [], rng.choice(plain)
        else:
            prompt = asked[0].question if asked else rng.choice(ways.get(kind, SHORT))
        images = [str(one.path.relative_to(folder)) for one in shown]
        made.append({"prompt": prompt, "images": images})
    return made


# ---------------------------------------------------------------- writing


def finished(text: str) -> str:
    """Return the text up to its last complete sentence."""
    cut = max(text.rfind(mark) for mark in (".", "!", "?"))
    return re.sub(r"\s+", " ", text[: cut + 1]).strip()


def keep(text: str, tokens: int, least: int, most: int) -> bool:
    """Whether an answer is fit to be taught: long enough, few repetitions, not about captions."""
    fit = least <= tokens <= most and photo_scores.distinct(text) >= 0.9
    return fit and not UNWANTED.search(text)


class NoTripleTwice(LogitsProcessor):
    """Bans tokens that would repeat a token triple of an answer, after `begins` of each row."""

    def __init__(self, begins: Sequence[int]) -> None:
        self.begins = begins

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        for row, begin, logits in zip(input_ids.tolist(), self.begins, scores, strict=True):
            tokens = row[begin:]
            triples = zip(tokens, tokens[1:], tokens[2:], strict=False)
            logits[[c for a, b, c in triples if [a, b] == tokens[-2:]]] = -torch.inf
        return scores


@torch.inference_mode()
def write(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    jobs: Sequence[Job],
    most: int,
    distinct: bool,
) -> Iterator[tuple[Job, str]]:
    """Sample all jobs in one left-padded batch, at most `most` new tokens each; yield each with its
    whole text. distinct: No token triple occurs twice in an answer.
    """
    prompts, rows = (
        [torch.tensor(tokenizer(text, add_special_tokens=False).input_ids) for text in texts]
        for texts in ([j.prompt for j in jobs], [j.prompt + j.opening for j in jobs])
    )
    width, eos = max(map(len, rows)), tokenizer.eos_token_id
    begins = [width - len(row) + len(prompt) for row, prompt in zip(rows, prompts, strict=True)]
    padded = partial(pad_sequence, batch_first=True, padding_side="left")
    made = model.generate(
        input_ids=padded(rows, padding_value=eos),
        attention_mask=padded([*map(torch.ones_like, rows)]),
        max_new_tokens=most,
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=TOP,
        eos_token_id=eos,
        pad_token_id=eos,
        logits_processor=[NoTripleTwice(begins)] if distinct else [],
    )
    for job, row, begin in zip(jobs, made.tolist(), begins, strict=True):
        yield job, tokenizer.decode(row[begin:], skip_special_tokens=True).strip()


def write_answers(
    base: Path, path: Path, jobs: Sequence[Job], tokenizer: PreTrainedTokenizerBase, seed: int = 1
) -> None:
    """Let the base write the answers of these jobs that are not yet in the file; those that are not
    fit to be taught are recorded as `rejected`.
    """
    done = {json.loads(line)["key"] for line in path.open()} if path.exists() else set()
    left = [job for job in jobs if job.key not in done]
    if not left:
        return
    plain = left[0].kind == "plain"
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).eval()
    torch.manual_seed(seed + len(done))
    for k in tqdm(range(0, len(left), BATCH), desc=path.stem, mininterval=5):
        with path.open("a") as file:
            some, most = left[k : k + BATCH], 90 if plain else 70
            for job, text in write(model, tokenizer, some, most, distinct=not plain):
                told = text if plain else finished(text)
                fit = plain or keep(told, len(tokenizer(told).input_ids), 50, 125)
                kind, told = (job.kind, told) if fit else ("rejected", "")
                row = {"key": job.key, "kind": kind, "question": job.question, "answer": told}
                file.write(json.dumps(row) + "\n")


def plain_answers(
    base: Path, folder: Path, prompts: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> list[tuple[str, str]]:
    """Return the base's answers to these plain prompts, writing missing ones."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "plain.jsonl"
    jobs = [Job(prompt, "plain", prompt, ASK + prompt + ANSWER, "") for prompt in prompts]
    write_answers(base, path, jobs, tokenizer)
    rows = [json.loads(line) for line in path.open()]
    return [(r["question"], r["answer"]) for r in rows if r["key"] in set(prompts)]
