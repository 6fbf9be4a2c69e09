"""Questions about a photograph, made by rules from its captions.

Four kinds after COCO-QA (Ren, Kiros and Zemel 2015): what, what colour, how many, where; and yes or
no. A question is asked only if the captions support one answer: stated at least twice, or once and
nowhere contradicted. For `no`, no caption may contain the thing, a synonym, or its kind.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Noun:
    """A word that may be asked about, and every word that would make `no` unsafe."""

    one: str
    many: str
    group: str
    unsafe: frozenset[str]


WORDS: dict[str, Any] = json.loads(Path(__file__).with_name("photo_words.json").read_text("utf-8"))
"""nouns: what may be asked about, its plural, other words for it, and the group whose general words
include it; forms: more words for these nouns; colours, numbers, places, doing, acted, objects: what
answers say."""
COLOURED = ("animal", "wear", "thing", "vehicle")
"""Groups of nouns whose colour is asked."""
COLOUR: dict[str, str] = {**{c: c for c in WORDS["colours"]}, **WORDS["other colours"]}
NUMBERS: dict[str, str] = WORDS["numbers"]
NOUNS = {
    one: Noun(
        one,
        n["many"],
        n["group"],
        frozenset({one, n["many"], *n["others"], *WORDS["general"][n["group"]]}),
    )
    for one, n in WORDS["nouns"].items()
}
FORM: dict[str, str] = {form: n.one for n in NOUNS.values() for form in (n.one, n.many)} | WORDS[
    "forms"
]
PLACES: dict[str, str] = WORDS["places"]
PLACED = (
    r"\b(?:in|on|through|along|at|into|across|over|down) (?:(?:the|a|an|some) )?(?:[a-z]+"
    r" )?([a-z]+)"
)
DOING, OBJECTS, MASS = WORDS["doing"], WORDS["objects"], WORDS["mass"]
ANSWERS = (
    *("Yes.", "No.", "One."),
    *(f"{word.capitalize()}." for word in (*NUMBERS.values(), *WORDS["colours"])),
    *(f"{place}." for place in PLACES.values()),
    *(f"{doing.capitalize()}." for doing in DOING),
    *(f"A{'n' if thing[0] in 'aeiou' else ''} {thing}." for thing in (*OBJECTS, *NOUNS)),
)


@dataclass(frozen=True)
class Question:
    kind: str
    question: str
    answer: str


def same(said: str, answer: str) -> bool:
    """Whether a short answer is this one, whatever its case and its full stop."""
    return said.lower().strip(" .") == answer.lower().strip(" .")


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9-]+", text.lower())


def article(noun: str) -> str:
    """Return the noun with `a` or `an`, if it takes one."""
    return noun if noun in MASS else ("an " if noun[0].lower() in "aeiou" else "a ") + noun


def _mentions(captions: Sequence[str]) -> Counter[str]:
    """Return in how many captions each noun occurs."""
    # dict.fromkeys, not a set: the order of nouns must not depend on the process.
    return Counter(
        n for c in captions for n in dict.fromkeys(FORM[w] for w in words(c) if w in FORM)
    )


class WordIndex:
    """How often each noun occurs: `no` is asked about things that are frequent elsewhere."""

    def __init__(self, photos: Sequence[Sequence[str]]) -> None:
        counts = Counter(n for captions in photos for n, k in _mentions(captions).items() if k >= 2)
        self.nouns = [n for n in counts if n in NOUNS] or list(NOUNS)
        self.weights = [counts.get(n, 1) ** 0.75 for n in self.nouns]

    def absent(self, captions: Sequence[str], rng: random.Random) -> str | None:
        """Return a noun that is surely not in the photograph, if one of twelve tries is."""
        there = {w for c in captions for w in words(c)}
        tried = rng.choices(self.nouns, self.weights, k=12)
        return next((noun for noun in tried if not NOUNS[noun].unsafe & there), None)

    def only(
        self, captions: Sequence[str], others: Sequence[str], rng: random.Random
    ) -> str | None:
        """Return a noun that is in the first photograph and surely not in the second."""
        there = {w for c in others for w in words(c)}
        seen = [n for n, k in sorted(_mentions(captions).items()) if k >= 2 and n not in MASS]
        seen = [n for n in seen if n in NOUNS and not NOUNS[n].unsafe & there]
        return rng.choice(seen) if seen else None


def _supported(found: dict[str, Counter[str]], least: int) -> Iterator[tuple[str, str]]:
    """Yield subjects with the one answer that nothing contradicts."""
    for subject, answers in found.items():
        if len(answers) == 1 and (mentions := next(iter(answers.items())))[1] >= least:
            yield subject, mentions[0]


def colour(captions: Sequence[str]) -> Iterator[Question]:
    """Yield the colour of a thing, if it is stated directly and no other colour is."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for caption in captions:
        w = words(caption)
        for a, b, before in zip(w, w[1:], ["", *w], strict=False):
            if a in COLOUR and b in FORM and NOUNS[FORM[b]].group in COLOURED:
                mixed = before in ("and", "light", "dark") or before in COLOUR
                found[FORM[b]]["mixed" if mixed else COLOUR[a]] += 1
    for subject, answer in _supported(found, 1):
        if answer != "mixed":
            yield Question("colour", f"What colour is the {subject}?", f"{answer.capitalize()}.")


def number(captions: Sequence[str]) -> Iterator[Question]:
    """Yield how many there are: a stated number, or one if it is always mentioned as one."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for caption in captions:
        w = words(caption)
        for i, a in enumerate(w):
            follow = [x for x in w[i + 1 : i + 4] if x in FORM]
            if a in NUMBERS and follow and NOUNS[FORM[follow[0]]].many == follow[0]:
                found[FORM[follow[0]]][NUMBERS[a]] += 1
    text = " ".join(" ".join(words(c)) for c in captions)
    for subject, answer in _supported(found, 2):
        many = NOUNS[subject].many
        yield Question("number", f"How many {many} are there?", f"{answer.capitalize()}.")
    for subject, k in _mentions(captions).items():
        if k < 4 or subject not in NOUNS or NOUNS[subject].group not in ("animal", "person"):
            continue
        many = NOUNS[subject].many
        if not re.search(rf"\b({many}|group|several|two|other|another|people|both)\b", text):
            yield Question("number", f"How many {many} are there?", "One.")


def _agreed(mentions: Counter[str]) -> str | None:
    """Return what two people state, if nothing else is stated as often."""
    best = mentions.most_common(2)
    alone = bool(best) and best[0][1] >= 2 and (len(best) == 1 or best[1][1] < best[0][1])
    return best[0][0] if alone else None


def where(captions: Sequence[str]) -> Iterator[Question]:
    """Yield where someone is: a place stated by two people, with no other stated as often."""
    places: Counter[str] = Counter()
    for caption in captions:
        places.update({m for m in re.findall(PLACED, caption.lower()) if m in PLACES})
    place, subject = _agreed(places), _subject(captions)
    if subject and place:
        yield Question("where", f"Where is the {subject}?", f"{PLACES[place]}.")


def _subject(captions: Sequence[str]) -> str | None:
    """Return the photograph's subject: an animal or a person named in at least three captions."""
    for noun, k in _mentions(captions).most_common():
        if k >= 3 and noun in NOUNS and NOUNS[noun].group in ("animal", "person"):
            return noun
    return None


def what(captions: Sequence[str]) -> Iterator[Question]:
    """Yield what someone does, to which object, and which animal or person is shown."""
    subject = _subject(captions)
    if not subject:
        return
    texts = [" ".join(words(c)) for c in captions]
    doing: Counter[str] = Counter()
    for t in texts:
        # Activities in the form of the question, or as `runs` or `run`.
        forms = {**{doing: doing for doing in DOING}, **WORDS["present"]}
        doing.update({form for word, form in forms.items() if re.search(rf"\b{word}\b", t)})
    if agreed := _agreed(doing):
        yield Question("what", f"What is the {subject} doing?", f"{agreed.capitalize()}.")
    for verb in WORDS["acted"]:
        acted = rf"\b{verb} (?:a|an|the|his|her|its) (?:[a-z]+ ){{0,2}}?({'|'.join(OBJECTS)})\b"
        objects = {m[1] for t in texts if (m := re.search(acted, t))}
        if len(objects) == 1:
            told = f"{article(objects.pop()).capitalize()}."
            yield Question("what", f"What is the {subject} {verb}?", told)
    animals = {n for n in _mentions(captions) if n in NOUNS and NOUNS[n].group == "animal"}
    if animals == {subject}:
        told = f"{article(subject).capitalize()}."
        yield Question("what", "What animal is in the picture?", told)


def yesno(captions: Sequence[str], rng: random.Random, index: WordIndex) -> Iterator[Question]:
    """Yield whether something is there: one thing that is and one that surely is not."""
    seen = [n for n, k in sorted(_mentions(captions).items()) if k >= 2 and n in NOUNS]
    absent = index.absent(captions, rng)
    if seen and absent:
        for noun, answer in ((rng.choice(seen), "Yes."), (absent, "No.")):
            yield Question("yesno", f"Is there {article(noun)} in the picture?", answer)


def ask(captions: Sequence[str], rng: random.Random, n: int, index: WordIndex) -> list[Question]:
    """Return at most `n` questions about a photograph, one of each kind before a second."""
    made = {
        "what": list(what(captions)),
        "colour": list(colour(captions)),
        # Most photographs show one of something, so it is asked less often, or `One.` would always
        # be a good guess.
        "number": [q for q in number(captions) if q.answer != "One." or rng.random() < 0.4],
        "where": list(where(captions)),
        "yesno": list(yesno(captions, rng, index)),
    }
    for found in made.values():
        rng.shuffle(found)
    kinds = [k for k in made if made[k]]
    rng.shuffle(kinds)
    chosen: list[Question] = []
    while kinds and len(chosen) < n:
        kind = kinds.pop(0)
        chosen.append(made[kind].pop())
        if made[kind] and kind != "yesno":
            kinds.append(kind)
    return chosen
