"""What the photo target is taught: captions, questions, long answers, things, clips, plain chat.
Every step's rows are drawn only from (seed, step), so a resumed run gets the same ones.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from recipes import photo_questions, photo_writer
from recipes.photo_data import (
    VIEWS,
    Described,
    LookedAt,
    Photo,
    Place,
    Thing,
    read_described,
    read_looked_at,
)
from recipes.photo_model import Node, Row
from recipes.photo_questions import article
from recipes.photo_scores import Cider, different_sentences
from recipes.photo_writer import (
    ABOUT,
    ANSWER,
    ASK,
    CLIP,
    DESCRIBE,
    DIFFERENCE,
    END,
    PHRASES,
    SHORT,
    STORY,
)
from specvl_demo.vlm.photo_assembly import IMAGE

THING: list[tuple[str, str]] = [(question, form) for question, form in PHRASES["things"]]
CLOSE = "A close-up of {a}."
"""The description of a picture of one thing."""
ORDINALS = ("first", "second")
DIFFERENT = "The first picture: {} The second picture: {}"
ORDERED = ("First: {}", " Then: {}")
# Shares of rows that begin from a photograph that was described by looking, from a thing's name,
# from a scene that was looked at, from two pictures, from a clip, from no picture, and of the
# target's own answers, if there are any; the rest are photographs, with their own mixture below:
# probabilities that a visit asks for each kind of answer.
SHARES = {
    "described": 0.22,
    "thing": 0.14,
    "scene": 0.04,
    "pair": 0.02,
    "clip": 0.005,
    "plain": 0.09,
    "own": 0.18,
}
VISITS = {"question": 0.4, "next": 0.2, "turn": 0.07}
TOLD = 0.7
"""Chance that a visit to what was described asks for the story."""
QUESTIONS, NAMED = 2, 0.4
# Of a thing's visits, how many tell what is known in a second turn; of the others, how many name
# it first.
FOLLOWED, NAMED_FIRST = 0.3, 0.7
# Of the rewarded share, how much applies to scenes: with few references a good caption is rarely
# sampled, so that the others of them are taught.
REWARDED = 0.6
# A token that ends a sequence of REPEATED tokens for the second time is wrong, and after
# MAX_REPEATED of them the rest is cut; so is the end of a story of fewer SENTENCES.
REPEATED, MAX_REPEATED, SENTENCES = 4, 40, 4
TEST_PROMPTS = 200


def held_out(n: int, seed: int = 11) -> set[int]:
    """Return a fifth of the classes, whose names are never an answer in training."""
    return set(random.Random(seed).sample(range(n), n // 5))


def repeats(ids: Sequence[int]) -> list[str]:
    """Return "wrong" for each token that ends a repeated sequence, else "own", cut after a few."""
    seen: set[tuple[int, ...]] = set()
    kinds: list[str] = []
    for end in range(1, len(ids) + 1):
        last = tuple(ids[max(0, end - REPEATED) : end])
        kinds.append("wrong" if len(last) == REPEATED and last in seen else "own")
        seen.add(last)
        if kinds.count("wrong") == MAX_REPEATED:
            break
    return kinds


def agreed(captions: Sequence[str], cider: Cider) -> list[float]:
    """Return the weight of each caption of a photograph: in proportion to its CIDEr against the
    others, mean 1, since an answer can follow only one of five people (arXiv 1712.09532).
    """
    if len(captions) == 1:
        return [1.0]
    others = ((c, [*captions[:i], *captions[i + 1 :]]) for i, c in enumerate(captions))
    scores = [cider.scores([caption], rest)[0] for caption, rest in others]
    total = sum(scores)
    return [len(scores) * score / total for score in scores] if total else [1.0] * len(scores)


@lru_cache(maxsize=1)
def shuffled(n: int, seed: int, epoch: int) -> list[int]:
    """Return the order of `n` photographs in an epoch."""
    order = list(range(n))
    random.Random(f"{seed}/epoch/{epoch}").shuffle(order)
    return order


class Tasks:
    """Everything that is taught, as rows of tokens."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        photos: Sequence[Photo],
        things: Sequence[Thing],
        written: Path,
        picture_tokens: int,
        seed: int,
        reward: float = 0.0,
        process: int = 0,
        processes: int = 1,
    ) -> None:
        self.tokenizer, self.photos = tokenizer, photos
        self.picture_tokens, self.seed, self.reward = picture_tokens, seed, reward
        self.process, self.processes = process, processes
        self.image = tokenizer.convert_tokens_to_ids(IMAGE)
        held = held_out(len(things))
        self.things = [t for t in things if t.index not in held]
        self.looked_at = read_looked_at(self.things)
        paths = [*(p.path for p in photos), *(t.path for t in self.things)]
        self.described = read_described(path.name for path in paths)
        # A photograph's questions end with one that follows its description.
        with_questions = {name for name, seen in self.described.items() if seen.questions}
        self.at_length = [i for i, p in enumerate(photos) if p.path.name in with_questions]
        cider = Cider([p.captions for p in photos])
        self.agreed = [agreed(p.captions, cider) for p in photos]
        self.by_word = photo_questions.WordIndex([p.captions for p in photos])
        self._ids: dict[str, list[int]] = {}
        self._read(written)
        self.short = self._short_tokens()
        self.makers = {"pair": self.pair, "clip": self.clip}
        self.makers |= {"described": self.at_length_row} if self.at_length else {}
        self.makers |= {"thing": self.thing} if self.things else {}
        self.makers |= {"plain": self.chat} if self.plain else {}
        self.makers |= {"own": self.said} if self.own else {}

    def _read(self, written: Path) -> None:
        """Read what was written so far: by the base, what may happen next by photograph and answers
        to plain prompts; by the target, answers of which some are wrong (`own.jsonl`, in
        `drafter`'s format).
        """
        test = set(photo_writer.plain_prompts()[:TEST_PROMPTS])
        plain: dict[str, str] = {}
        self.next: dict[str, tuple[str, str]] = {}
        self.own: list[tuple[str, int, str, Node]] = []
        for path in sorted([*written.glob("next*.jsonl"), *written.glob("plain*.jsonl")]):
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                if row["kind"] == "plain" and row["key"] not in test:
                    plain[row["question"]] = row["answer"]
                elif row["kind"] == "next":
                    self.next[row["key"]] = row["question"], row["answer"]
        self.plain = sorted(plain.items())
        path = written / "own.jsonl"
        number = {p.path.name: ("train", i) for i, p in enumerate(self.photos)}
        number |= {thing.path.name: ("things", thing.index) for thing in self.things}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            row = json.loads(line)
            answer = self._with_mistakes(row["prompt"], row["answer_ids"])
            if len(row["images"]) == 1 and "wrong" in (answer.kinds or ()):
                self.own.append((*number[Path(row["images"][0]).name], row["prompt"], answer))

    def _with_mistakes(self, question: str, ids: list[int]) -> Node:
        """Return an answer of the target with what is wrong in it: repetitions, a story's end."""
        kinds = repeats(ids)
        ended = question in STORY and ids[-1] == self.tokenizer.eos_token_id
        if ended and different_sentences(self.tokenizer.decode(ids[:-1])) < SENTENCES:
            kinds[-1] = "wrong"
        return Node(ids[: len(kinds)], taught=True, kinds=kinds)

    def tokens(self, text: str) -> list[int]:
        if text not in self._ids:
            self._ids[text] = self.tokenizer(text, add_special_tokens=False).input_ids
        return list(self._ids[text])

    def _short_tokens(self) -> torch.Tensor:
        """Return every token that short answers consist of, and a thousand others as negatives."""
        others = random.Random(0).sample(range(len(self.tokenizer)), min(1000, len(self.tokenizer)))
        used = {*others, self.tokenizer.eos_token_id}
        for photo in self.photos:
            for caption in photo.captions:
                # As a separate sentence, after another, and after the words that begin a longer
                # answer.
                for text in (caption, " " + caption, " " + caption[0].lower() + caption[1:]):
                    used.update(self.tokens(text))
        by_looking = [seen.questions for seen in self.looked_at]
        by_looking += [seen.questions for seen in self.described.values()]
        for text in (answer for questions in by_looking for _, answer in questions):
            used.update(self.tokens(text))
        for text in (caption for seen in self.looked_at for caption in seen.captions):
            used.update(self.tokens(text))
        for thing in self.things:
            for form in (CLOSE, *(form for _, form in THING)):
                used.update(self.tokens(self._thing(form, thing.name)))
        forms = [DIFFERENT, *ORDERED, *(f"The {o}." for o in ORDINALS)]
        for text in (*forms, *photo_questions.ANSWERS):
            used.update(self.tokens(text))
        return torch.tensor(sorted(used))

    @staticmethod
    def _thing(form: str, name: str) -> str:
        a = article(name)
        return form.format(a=a, A=a[0].upper() + a[1:])

    def _answer(self, text: str, kind: str, weight: float = 1.0) -> Node:
        ids = [*self.tokens(text), self.tokenizer.eos_token_id]
        return Node(ids, taught=True, kind=kind, weight=weight)

    def _ask(self, question: str, *answers: Node) -> Node:
        return Node(self.tokens(question + ANSWER), children=list(answers))

    def _row(self, pictures: list[Place], nodes: list[Node]) -> Row:
        shown = [*([self.image] * self.picture_tokens), *self.tokens("\n")]
        return Row(pictures, Node([*self.tokens(ASK), *(shown * len(pictures))], children=nodes))

    def _view(self, name: str, index: int, rng: random.Random) -> Place:
        return name, index, rng.choice(VIEWS[name])

    def photo(self, index: int, rng: random.Random, sampled: str | None = None) -> Row:
        """Return one visit to a photograph: captions, sometimes questions, what may happen next, a
        second turn.

        sampled: A question whose answers are sampled from the model, in place of people's captions.
        """
        photo = self.photos[index]
        short = sampled or rng.choice(SHORT)
        told = zip(() if sampled else photo.captions, self.agreed[index], strict=False)
        answers = (self._answer(text, "caption", weight) for text, weight in told)
        nodes = [self._ask(short, *answers)]
        asked = []
        if rng.random() < VISITS["question"]:
            asked = photo_questions.ask(photo.captions, rng, QUESTIONS, self.by_word)
            nodes += [self._ask(q.question, self._answer(q.answer, "question")) for q in asked]
        written = self.next.get(photo.path.name)
        if written and rng.random() < VISITS["next"]:
            question, text = written
            nodes.append(self._ask(question, self._answer(text, "story")))
        if asked and rng.random() < VISITS["turn"]:
            # A second turn in the same conversation: the first question's answer stays as it was
            # given.
            given = (short, rng.choice(photo.captions)), (asked[0].question, asked[0].answer)
            (question, answer), last = rng.choice(given), asked[-1]
            earlier = f"{question}{ANSWER}{answer}{END}\n{ASK}{last.question}"
            nodes.append(self._ask(earlier, self._answer(last.answer, "question")))
        row = self._row([self._view("train", index, rng)], nodes)
        row.sampled = sampled is not None
        return row

    def _follow(self, answer: Node, question: str, reply: Node) -> Node:
        """Return an answer with a question that follows it in the same conversation."""
        ids = self.tokens(f"\n{ASK}{question}{ANSWER}")
        answer.children.append(Node(ids, children=[reply]))
        return answer

    def at_length_row(self, rng: random.Random) -> Row:
        """Return a photograph that was described by looking: the description, with a question that
        follows it, another question, sometimes the story. People's captions are left to `photo`,
        which rewards them.
        """
        index = rng.choice(self.at_length)
        photo = self.photos[index]
        seen = self.described[photo.path.name]
        *questions, (follow_up, reply) = seen.questions
        description = self._answer(seen.description, "long")
        description = self._follow(description, follow_up, self._answer(reply, "question"))
        nodes = [self._ask(rng.choice(DESCRIBE), description)]
        nodes += [self._ask(q, self._answer(a, "question")) for q, a in questions]
        nodes += self._story(seen, rng)
        return self._row([self._view("train", index, rng)], nodes)

    def _story(self, seen: Described, rng: random.Random) -> list[Node]:
        """Return the question for the story of a picture, in some of the visits."""
        if not seen.story or rng.random() >= TOLD:
            return []
        return [self._ask(rng.choice(STORY), self._answer(seen.story, "story"))]

    def thing(self, rng: random.Random) -> Row:
        """Return the picture of one thing: its name, sometimes a close-up; described with what is
        known of such things, or that in a second turn.
        """
        thing = rng.choice(self.things)
        questions = rng.sample(THING, 2)
        names = [self._answer(self._thing(form, thing.name), "thing") for _, form in questions]
        seen, nodes = self.described.get(thing.path.name), []
        if seen and rng.random() < FOLLOWED:
            knowledge = self._answer(seen.knowledge, "long")
            names[0] = self._follow(names[0], rng.choice(ABOUT), knowledge)
        elif seen:
            # As the short answer begins, so that there is a way to go on after it.
            named = rng.random() < NAMED_FIRST
            first = self._thing(CLOSE, thing.name) if named else seen.description
            text = f"{first} {seen.knowledge}"
            nodes = [self._ask(rng.choice(DESCRIBE), self._answer(text, "long"))]
        nodes += [self._ask(q, name) for (q, _), name in zip(questions, names, strict=True)]
        nodes += self._story(seen, rng) if seen else []
        if rng.random() < NAMED:
            close_up = self._answer(self._thing(CLOSE, thing.name), "thing")
            nodes.append(self._ask(rng.choice(SHORT), close_up))
        return self._row([self._view("things", thing.index, rng)], nodes)

    def scene(self, rng: random.Random, sampled: str | None = None) -> Row:
        """Return a picture that was looked at, never of a held-out class: captions or close-up,
        questions, sometimes the description.

        sampled: A question whose answers are sampled in place of a scene's captions.
        """
        seen: LookedAt = rng.choice(self.looked_at)
        captions = seen.captions or (self._thing(CLOSE, seen.thing.name),)
        asks = sampled is not None and bool(seen.captions)
        taught = () if asks else captions
        short = sampled if sampled and asks else rng.choice(SHORT)
        nodes = [self._ask(short, *(self._answer(c, "caption") for c in taught))]
        at_length = self.described.get(seen.thing.path.name)
        if at_length and rng.random() < NAMED:
            text = f"{at_length.description} {at_length.knowledge}"
            nodes.append(self._ask(rng.choice(DESCRIBE), self._answer(text, "long")))
        nodes += [self._ask(q, self._answer(a, "question")) for q, a in seen.questions]
        row = self._row([self._view("things", seen.thing.index, rng)], nodes)
        row.sampled = asks
        return row

    def pair(self, rng: random.Random) -> Row:
        """Return two photographs: both described, and which of them shows what."""
        chosen = rng.sample(range(len(self.photos)), 2)
        one, two = (rng.choice(self.photos[i].captions) for i in chosen)
        text = DIFFERENT.format(one, two)
        nodes = [self._ask(rng.choice(DIFFERENCE), self._answer(text, "pair"))]
        for place, i in enumerate(chosen):
            captions, others = (self.photos[k].captions for k in (i, chosen[1 - place]))
            word = self.by_word.only(captions, others, rng)
            if word:
                answer = self._answer(f"The {ORDINALS[place]}.", "question")
                nodes.append(self._ask(f"Which picture shows {article(word)}?", answer))
            told = self._answer(rng.choice(captions), "pair")
            nodes.append(self._ask(f"Describe the {ORDINALS[place]} picture.", told))
        return self._row([self._view("train", i, rng) for i in chosen], nodes)

    def clip(self, rng: random.Random) -> Row:
        """Return four frames: one photograph from changing views, or a cut between two."""
        first, second = rng.sample(range(len(self.photos)), 2)
        if rng.random() < 0.5:
            frames, text = [first] * 4, rng.choice(self.photos[first].captions)
        else:
            cut = rng.choice((1, 2, 3))
            frames = [first] * cut + [second] * (4 - cut)
            told = (rng.choice(self.photos[i].captions) for i in (first, second))
            text = "".join(form.format(one) for form, one in zip(ORDERED, told, strict=True))
        nodes = [self._ask(rng.choice(CLIP), self._answer(text, "clip"))]
        return self._row([self._view("train", i, rng) for i in frames], nodes)

    def chat(self, rng: random.Random) -> Row:
        """Return a plain prompt answered by the base itself, sometimes with a second turn."""
        question, answer = rng.choice(self.plain)
        if rng.random() < 0.2:
            earlier, said = rng.choice(self.plain)
            question = f"{earlier}{ANSWER}{said}{END}\n{ASK}{question}"
        ids = self.tokens(answer)
        if len(ids) < 85:
            ids.append(self.tokenizer.eos_token_id)
        return self._row([], [self._ask(question, Node(ids, taught=True, kind="plain"))])

    def said(self, rng: random.Random) -> Row:
        """Return an answer of the target with something wrong in it."""
        folder, index, question, answer = rng.choice(self.own)
        return self._row([self._view(folder, index, rng)], [self._ask(question, answer)])

    def rows(self, step: int, n: int) -> list[Row]:
        """Return this process's rows of a step of `n`: a photograph, the rest at random."""
        rng = random.Random(f"{self.seed}/{step}")
        # Sampled captions answer the same question, so that they can be sampled together.
        question = random.Random(f"{self.seed}/{step}/sampled").choice(SHORT)
        place = step * n
        made = []
        for i in range(n):
            kind = rng.choices((*SHARES, "photo"), (*SHARES.values(), 1 - sum(SHARES.values())))[0]
            if kind == "scene" and self.looked_at and i >= self.processes:
                sampled = question if rng.random() < self.reward * REWARDED else None
                made.append(self.scene(rng, sampled))
            elif kind in self.makers and i >= self.processes:
                made.append(self.makers[kind](rng))
            else:
                epoch, at = divmod(place + i, len(self.photos))
                index = shuffled(len(self.photos), self.seed, epoch)[at]
                sampled = question if rng.random() < self.reward else None
                made.append(self.photo(index, rng, sampled))
        return made[self.process :: self.processes]
