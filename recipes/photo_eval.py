"""How well a photo target answers, on photographs and prompts that it was never trained on; greedy
answers.

Captions (CIDEr, BLEU-4, and CIDEr when every photograph has another's answer), questions made from
captions (exact, by kind, with the share of each kind's most frequent answer), things named
(held-out classes; trained classes on another crop), plain chat (loss on the base's own answers),
and how much long answers repeat themselves.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from PIL import Image
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from recipes import answers, photo_questions, photo_scores, photo_writer
from recipes.photo_data import TEST_CROP, Photo, Thing, read, read_things, view
from recipes.photo_tasks import TEST_PROMPTS, held_out
from recipes.photo_writer import ANSWER, ASK
from specvl_demo.core.types import Prompt
from specvl_demo.decoders.backend import LanguageBackend
from specvl_demo.decoders.calibration import text_context
from specvl_demo.decoders.sequence import prefill
from specvl_demo.options import Sampling
from specvl_demo.question import Question
from specvl_demo.serving.loaded import LoadedPair
from specvl_demo.vlm.encoder import LanguageModel

CAPTION = "Describe the picture."
NAME = "What is this?"
LONG = {"Describe the picture in detail.": 3, "Write a short story about this picture.": 4}
"""Questions for long answers, and the different sentences that an answer should have."""


def ask(
    loaded: LoadedPair, questions: Sequence[tuple[Path, int, str]], max_tokens: int
) -> list[str]:
    """Return greedy answers to (path, view, question), by the target as it runs in the app: in its
    own precision.
    """
    target, model = loaded.models.target, cast("Any", loaded.models.target.vlm.model)
    size = model.config.vision_config.image_size

    def prompt(path: Path, number: int, question: str) -> Prompt:
        image = Image.open(path).convert("RGB")
        made = loaded.prompter.prompt(Question(question, (image,)), room=max_tokens)
        pixels = view(image, number, path.name, size)[None]
        return replace(made, inputs={**made.inputs, "pixel_values": pixels})

    texts: list[str] = []
    for start in tqdm(range(0, len(questions), answers.TOGETHER), mininterval=5, disable=None):
        prompts = [prompt(*each) for each in questions[start : start + answers.TOGETHER]]
        greedy = [Sampling()] * len(prompts)
        decoded = answers.answer(target, prompts, greedy, max_tokens)
        for made, ids in zip(prompts, decoded, strict=True):
            texts.append(loaded.token_texts.text_after(int(made.ids[-1]), ids).strip())
    return texts


@torch.inference_mode()
def chat_loss(
    language: LanguageBackend, tokenizer: PreTrainedTokenizerBase, chats: Sequence[tuple[str, str]]
) -> float:
    """Return the mean loss per token of given answers to plain prompts, in nats."""
    total = n = 0.0
    for question, answer in chats:
        both = (ASK + question + ANSWER, answer)
        question, answer = (tokenizer(t, add_special_tokens=False).input_ids for t in both)
        ids = torch.tensor(question + answer, device=language.device)
        hidden = prefill(language, [text_context(language, ids)], 0).hidden
        logits = language.logits(hidden[:, len(question) - 1 : -1])[0].float()
        total += F.cross_entropy(logits, ids[len(question) :], reduction="sum").item()
        n += len(answer)
    return total / n


def named(thing: Thing, answer: str) -> bool:
    """Whether an answer names the class or its plain name: its last word (`grey fox`: fox)."""
    return thing.name.lower().split()[-1] in re.findall(r"[a-z0-9'-]+", answer.lower()) or (
        thing.name.lower() in answer.lower()
    )


def captions(loaded: LoadedPair, photos: Sequence[Photo]) -> dict[str, Any]:
    """Return CIDEr and BLEU-4, and CIDEr of answers that belong to another photograph."""
    texts = ask(loaded, [(p.path, 0, CAPTION) for p in photos], 30)
    references = [p.captions for p in photos]
    return {
        "photographs": len(photos),
        "cider": photo_scores.cider(texts, references),
        "bleu_4": photo_scores.bleu_4(texts, references),
        "cider_swapped": photo_scores.cider([*texts[1:], *texts[:1]], references),
        "distinct": len(set(texts)),
        "examples": [
            {"photograph": p.path.name, "told": t, "person": p.captions[0]}
            for p, t in zip(photos, texts, strict=True)
        ],
    }


def questions(loaded: LoadedPair, photos: Sequence[Photo]) -> dict[str, Any]:
    """Return exact answers by kind: one question per photograph, of kinds its captions support."""
    index, rng = photo_questions.WordIndex([p.captions for p in photos]), random.Random(9)
    asked = [(p.path, q) for p in photos for q in photo_questions.ask(p.captions, rng, 1, index)]
    texts = ask(loaded, [(path, 0, q.question) for path, q in asked], 8)
    right: dict[str, int] = defaultdict(int)
    truths: dict[str, Counter[str]] = defaultdict(Counter)
    examples = []
    for (path, q), told in zip(asked, texts, strict=True):
        right[q.kind] += photo_questions.same(told, q.answer)
        truths[q.kind][q.answer] += 1
        row = {"photograph": path.name, "question": q.question, "told": told, "truth": q.answer}
        examples.append(row)
    kinds = {}
    for kind, truth in sorted(truths.items()):
        n, [(_, most)] = truth.total(), truth.most_common(1)
        kinds[kind] = {"n": n, "exact": right[kind] / n, "majority": most / n}
    exact = sum(right.values()) / max(1, len(asked))
    return {"n": len(asked), "exact": exact, "kinds": kinds, "examples": examples}


def things(loaded: LoadedPair, all_things: Sequence[Thing], n: int) -> dict[str, Any]:
    """Return things named: of classes never trained, and of trained ones on an unseen crop."""
    held = held_out(len(all_things))
    out: dict[str, Any] = {}
    for key, group, number in (
        ("held_out_classes", [t for t in all_things if t.index in held], 0),
        ("held_out_crops", [t for t in all_things if t.index not in held], TEST_CROP),
    ):
        chosen = random.Random(4).sample(group, min(n, len(group)))
        texts = ask(loaded, [(t.path, number, NAME) for t in chosen], 14)
        right = [named(t, a) for t, a in zip(chosen, texts, strict=True)]
        answered = zip(chosen, texts, right, strict=True)
        wrong = [{"thing": t.name, "told": told} for t, told, is_right in answered if not is_right]
        named_share = sum(right) / max(1, len(chosen))
        out[key] = {"n": len(chosen), "named": named_share, "wrong": wrong}
    return out


def long_answers(loaded: LoadedPair, photos: Sequence[Photo]) -> dict[str, Any]:
    """Return of descriptions and stories the mean length, and the shares with enough different
    sentences, without four words in order twice, and without them three times (a loop).
    """
    out: dict[str, Any] = {}
    for question, enough in LONG.items():
        texts = ask(loaded, [(p.path, 0, question) for p in photos], 160)
        repeated = [photo_scores.most_repeated(text) for text in texts]
        n, sentences = len(texts), map(photo_scores.different_sentences, texts)
        out[question] = {
            "n": n,
            "tokens": sum(len(loaded.prompter.ids(text)) for text in texts) / n,
            "long_enough": sum(count >= enough for count in sentences) / n,
            "nothing_twice": sum(count < 2 for count in repeated) / n,
            "no_loop": sum(count < 3 for count in repeated) / n,
            "examples": texts[:20],
        }
    return out


def plain(loaded: LoadedPair, base: Path, folder: Path, n: int) -> dict[str, Any]:
    """Return how much training raised the loss on the base's own answers to held-out plain prompts.

    base: A folder of transformers. folder: Where its answers are kept.
    """
    model: Any = loaded.models.target.vlm.model
    tokenizer = AutoTokenizer.from_pretrained(base)
    prompts = photo_writer.plain_prompts()[: min(n, TEST_PROMPTS)]
    texts = photo_writer.plain_answers(base, folder, prompts, tokenizer)
    untrained = AutoModelForCausalLM.from_pretrained(base, dtype=model.dtype).to(model.device)
    before = chat_loss(LanguageModel(untrained.eval(), "base").decoder, tokenizer, texts)
    after = chat_loss(loaded.models.target.vlm.decoder, tokenizer, texts)
    return {"n": len(texts), "base": before, "trained": after, "rise": after / before - 1}


def evaluate(loaded: LoadedPair, data: Path, base: Path, folder: Path, n: int) -> dict[str, Any]:
    """Return all of the above for a target: `n` held-out photographs, a fifth of the rest."""
    photos = read(data)[1][:n]
    report = {"captions": captions(loaded, photos), "questions": questions(loaded, photos)}
    classes = read_things(data)
    if classes:
        report["things"] = things(loaded, classes, max(1, n // 5))
    report["long"] = long_answers(loaded, photos[: max(1, n // 8)])
    report["plain"] = plain(loaded, base, folder, max(1, n // 5))
    return report


def lines(report: dict[str, Any]) -> list[str]:
    texts, questions, chat = report["captions"], report["questions"], report["plain"]
    out = [
        (
            f"captions     CIDEr {texts['cider']:.3f}, BLEU-4 {texts['bleu_4']:.3f},"
            f" {texts['distinct']} different, {texts['photographs']} photographs; CIDEr with"
            f" another's {texts['cider_swapped']:.3f}"
        ),
        f"questions    {100 * questions['exact']:.1f} % of {questions['n']} exact",
    ]
    out += [
        f"  {kind:10} {100 * k['exact']:5.1f} % of {k['n']:4}, commonest answer"
        f" {100 * k['majority']:.1f} %"
        for kind, k in questions["kinds"].items()
    ]
    out += [
        f"things       {100 * k['named']:.1f} % of {k['n']} named, {name.replace('_', ' ')}"
        for name, k in report.get("things", {}).items()
    ]
    out += [
        f"long         {k['tokens']:.0f} tokens, {100 * k['long_enough']:.0f} % with"
        f" {LONG[question]} different sentences, {100 * k['nothing_twice']:.0f} % with nothing"
        f" twice, {100 * k['no_loop']:.0f} % without a loop: {question}"
        for question, k in report["long"].items()
    ]
    return [
        *out,
        f"plain chat   loss {100 * chat['rise']:+.1f} % on {chat['n']} answers of the base",
    ]
