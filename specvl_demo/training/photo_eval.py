"""How well a photo target answers, on photographs and prompts that it was never trained on; greedy answers.

Captions (CIDEr, BLEU-4, and CIDEr when every photograph has another's answer), questions made from captions
(exact, by kind, with the share of each kind's commonest answer beside), things named (held-out classes;
trained classes on another crop), plain chat (loss on the base's own answers), and how much long answers
repeat themselves.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from specvl_demo.training import photo_writer, train_photo
from specvl_demo.training.photo_data import TEST_CROP, Photo, Thing, read, read_things, view
from specvl_demo.training.photo_tasks import ANSWER, ASK, TEST_PROMPTS, held_out
from specvl_demo.vlm.efficientnet_lite import register
from specvl_demo.world import photo_questions, photo_scores

CAPTION = "Describe the picture."
NAME = "What is this?"
LONG = ("Describe the picture in detail.", "Write a short story about this picture.")


class Answerer:
    """Greedy answers of a target in batches, and its loss on given answers."""

    def __init__(self, model: LlavaForConditionalGeneration, processor: LlavaProcessor) -> None:
        model.model.vision_tower.to(memory_format=torch.channels_last)
        self.model, self.tokenizer = model, processor.tokenizer
        self.language, self.head = model.model.language_model, model.lm_head
        self.table = model.get_input_embeddings().weight

    @torch.inference_mode()
    def look(self, pictures: Sequence[tuple[Path, int]], batch: int = 20) -> Tensor:
        """Visual rows [N, rows, D] of (path, view) pairs."""
        tower, rows = self.model.model.vision_tower, []
        for k in range(0, len(pictures), batch):
            some, size = pictures[k : k + batch], tower.config.image_size
            pixels = torch.stack([view(Image.open(p), v, p.name, size) for p, v in some])
            pixels = pixels.to(self.table.dtype, memory_format=torch.channels_last)
            rows.append(tower(pixels).last_hidden_state)
        return torch.cat(rows)

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids

    @torch.inference_mode()
    def answer(self, rows: Tensor, questions: Sequence[str], most: int, batch: int = 100) -> list[str]:
        """Greedy answers to one question a photograph, given its visual rows."""
        head, eos, out = self._ids(ASK), self.tokenizer.eos_token_id, []
        for k in range(0, len(questions), batch):
            tails = [self._ids("\n" + q + ANSWER) for q in questions[k : k + batch]]
            pads = [max(map(len, tails)) - len(tail) for tail in tails]
            shown = [
                torch.cat([self.table[[eos] * pad + head], visual.to(self.table.dtype), self.table[tail]])
                for pad, visual, tail in zip(pads, rows[k : k + batch], tails, strict=True)
            ]
            made = self.model.generate(
                inputs_embeds=torch.stack(shown),
                attention_mask=torch.tensor([[0] * pad + [1] * (len(shown[0]) - pad) for pad in pads]),
                max_new_tokens=most,
                do_sample=False,
                eos_token_id=eos,
                pad_token_id=eos,
            )
            out += [self.tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in made]
        return out


@torch.inference_mode()
def chat_loss(
    language: PreTrainedModel,
    head: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    chats: Sequence[tuple[str, str]],
) -> float:
    """Mean loss a token of given answers to plain prompts, in nats."""
    total = n = 0.0
    for question, answer in chats:
        asked, said = (
            tokenizer(t, add_special_tokens=False).input_ids for t in (ASK + question + ANSWER, answer)
        )
        hidden = language(input_ids=torch.tensor([asked + said])).last_hidden_state
        logits = head(hidden[0, len(asked) - 1 : -1]).float()
        total += torch.nn.functional.cross_entropy(logits, torch.tensor(said), reduction="sum").item()
        n += len(said)
    return total / n


def named(thing: Thing, answer: str) -> bool:
    """Whether an answer says the class or its plain name: its last word (`grey fox`: fox)."""
    return thing.name.lower().split()[-1] in re.findall(r"[a-z0-9'-]+", answer.lower()) or (
        thing.name.lower() in answer.lower()
    )


def captions(answerer: Answerer, photos: Sequence[Photo], rows: Tensor) -> dict[str, Any]:
    """CIDEr and BLEU-4, and CIDEr of answers that belong to another photograph."""
    told = answerer.answer(rows, [CAPTION] * len(photos), 30)
    references = [p.captions for p in photos]
    return {
        "photographs": len(photos),
        "cider": photo_scores.cider(told, references),
        "bleu_4": photo_scores.bleu_4(told, references),
        "cider_swapped": photo_scores.cider([*told[1:], *told[:1]], references),
        "distinct": len(set(told)),
        "examples": [
            {"photograph": p.path.name, "told": t, "person": p.captions[0]}
            for p, t in zip(photos, told, strict=True)
        ],
    }


def questions(answerer: Answerer, photos: Sequence[Photo], rows: Tensor, seed: int = 9) -> dict[str, Any]:
    """Exact answers by kind: one question a photograph, of whatever kinds its captions support."""
    index = photo_questions.WordIndex([p.captions for p in photos])
    rng = random.Random(seed)
    asked, places = [], []
    for i, photo in enumerate(photos):
        for one in photo_questions.ask(photo.captions, rng, 1, index):
            asked.append(one)
            places.append(i)
    told = answerer.answer(rows[places], [q.question for q in asked], 8)
    kinds: dict[str, list[bool]] = defaultdict(list)
    truths: dict[str, Counter[str]] = defaultdict(Counter)
    for q, t in zip(asked, told, strict=True):
        kinds[q.kind].append(t.lower().strip(" .") == q.answer.lower().strip(" ."))
        truths[q.kind][q.answer] += 1
    return {
        "n": len(asked),
        "exact": sum(map(sum, kinds.values())) / max(1, len(asked)),
        "kinds": {
            k: {"n": len(v), "exact": sum(v) / len(v), "majority": truths[k].most_common(1)[0][1] / len(v)}
            for k, v in sorted(kinds.items())
        },
        "examples": [
            {"photograph": photos[i].path.name, "question": q.question, "told": t, "truth": q.answer}
            for i, q, t in zip(places, asked, told, strict=True)
        ],
    }


def things(answerer: Answerer, all_things: Sequence[Thing], n: int) -> dict[str, Any]:
    """Things named: of classes never trained, and of trained ones on a crop that was never seen."""
    held = held_out(len(all_things))
    out: dict[str, Any] = {}
    for key, group, number in (
        ("held_out_classes", [t for t in all_things if t.index in held], 0),
        ("held_out_crops", [t for t in all_things if t.index not in held], TEST_CROP),
    ):
        chosen = random.Random(4).sample(group, min(n, len(group)))
        told = answerer.answer(answerer.look([(t.path, number) for t in chosen]), [NAME] * len(chosen), 14)
        right = [named(t, a) for t, a in zip(chosen, told, strict=True)]
        out[key] = {"n": len(chosen), "named": sum(right) / max(1, len(chosen))}
        out[key]["wrong"] = [
            {"thing": t.name, "told": a} for t, a, r in zip(chosen, told, right, strict=True) if not r
        ]
    return out


def long_answers(answerer: Answerer, rows: Tensor, most: int = 120) -> dict[str, Any]:
    """Length and share of distinct three-word sequences of descriptions and stories."""
    out: dict[str, Any] = {}
    for question in LONG:
        told = answerer.answer(rows, [question] * len(rows), most)
        lengths = [len(answerer.tokenizer(t).input_ids) for t in told]
        out[question] = {
            "n": len(told),
            "tokens": sum(lengths) / len(lengths),
            "distinct": sum(map(photo_scores.distinct, told)) / len(told),
            "least_distinct": min(map(photo_scores.distinct, told)),
            "examples": told[:10],
        }
    return out


def plain(answerer: Answerer, base: Path, folder: Path, n: int) -> dict[str, Any]:
    """How much the loss on the base's own answers to held-out plain prompts rose by the training.

    base: the untrained language model, a folder of transformers. folder: where its answers are kept.
    """
    told = train_photo.plain_answers(
        base, folder, photo_writer.plain_prompts()[: min(n, TEST_PROMPTS)], answerer.tokenizer
    )
    untrained = AutoModelForCausalLM.from_pretrained(base, dtype=answerer.table.dtype).eval()
    before = chat_loss(untrained.model, untrained.lm_head, answerer.tokenizer, told)
    after = chat_loss(answerer.language, answerer.head, answerer.tokenizer, told)
    return {"n": len(told), "base": before, "trained": after, "rise": after / before - 1}


def evaluate(
    target: Path, data: Path, base: Path, folder: Path, n: int, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """All of the above for a target's folder: `n` held-out photographs, a fifth as many of the rest."""
    register()
    model = LlavaForConditionalGeneration.from_pretrained(target, dtype=dtype).eval()
    answerer = Answerer(model, LlavaProcessor.from_pretrained(target))
    photos = read(data)[1][:n]
    rows = answerer.look([(p.path, 0) for p in photos])
    report = {"captions": captions(answerer, photos, rows), "questions": questions(answerer, photos, rows)}
    classes = read_things(data)
    if classes:
        report["things"] = things(answerer, classes, max(1, n // 5))
    report["long"] = long_answers(answerer, rows[: max(1, n // 20)])
    report["plain"] = plain(answerer, base, folder, max(1, n // 5))
    return report


def lines(report: dict[str, Any]) -> list[str]:
    told, asked, chat = report["captions"], report["questions"], report["plain"]
    out = [
        f"captions     CIDEr {told['cider']:.3f}, BLEU-4 {told['bleu_4']:.3f}, {told['distinct']} different, "
        f"{told['photographs']} photographs; CIDEr with another's {told['cider_swapped']:.3f}",
        f"questions    {100 * asked['exact']:.1f} % of {asked['n']} exact",
    ]
    out += [
        f"  {kind:10} {100 * k['exact']:5.1f} % of {k['n']:4}, commonest answer {100 * k['majority']:.1f} %"
        for kind, k in asked["kinds"].items()
    ]
    out += [
        f"things       {100 * k['named']:.1f} % of {k['n']} named, {name.replace('_', ' ')}"
        for name, k in report.get("things", {}).items()
    ]
    out += [
        f"long         {k['tokens']:.0f} tokens, {100 * k['distinct']:.0f} % distinct triples: {question}"
        for question, k in report["long"].items()
    ]
    return [*out, f"plain chat   loss {100 * chat['rise']:+.1f} % on {chat['n']} answers of the base"]
