"""The kinds of visitors of a soak, good and bad, each judged by what it must get: an answer whose
records add up and in which lossless methods equal AR; a sentence for people; or nothing.
"""

from __future__ import annotations

import asyncio
import io
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from specvl_demo.media.files import CLIP_FORMATS, HEAD_BYTES, PICTURE_FORMATS, sniff_format
from specvl_demo.methods.base import METHODS
from specvl_demo.places import EXAMPLES
from specvl_demo.records import validate_trace
from tests.shared import corpus
from tests.shared.visitor import Turned, Visitor, read, sentence

MAX_FAULTS_KEPT = 20
BUSY = re.compile(r"busy|queue is full", re.IGNORECASE)
"""A refusal because too many ask at once."""
OURS = re.compile(r"Traceback|object at 0x|TypeError|KeyError|AttributeError|NoneType")
"""What never stands in a sentence for a visitor."""
QUESTIONS = (
    "Describe the picture.",
    "What colour is the star? 🟥",
    "ما هذا؟",
    "<b>Is</b> it ${circle}?",
)
CLIPS = {Path(name).suffix for name in corpus.CODECS}
OUTCOMES = ("served", "refused", "busy", "stopped", "left")


class Wrong(Exception):
    """A visitor did not get what it must; the message says what came."""


@dataclass
class Tally:
    """What became of the visitors."""

    kinds: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    identical: int = 0
    tokens: int = 0
    rounds_after_stop: int = 0
    failed: int = 0
    faults: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        """Count a failure and keep what it was, as long as there are few."""
        self.failed += 1
        if len(self.faults) < MAX_FAULTS_KEPT:
            self.faults.append(text[:400])


@dataclass
class Visit:
    """What one visitor has to work with. until: when the time is over, of the monotonic clock."""

    visitor: Visitor
    rng: random.Random
    tally: Tally
    pair: str
    methods: list[str]
    until: float

    async def asked(self, **changes: Any) -> dict[str, Any]:
        """A random question that can be answered."""
        rng = self.rng
        files = [await self.file() for _ in range(rng.choice((0, 0, 1, 1, 2)))]
        chosen = rng.sample(self.methods, rng.randint(1, min(3, len(self.methods))))
        # Loose verifiers are defined for greedy decoding alone, and the page says so.
        greedy = rng.random() < 0.6 or not all(METHODS[name].lossless for name in chosen)
        return {
            "pair": self.pair,
            "question": rng.choice(QUESTIONS),
            "methods": chosen,
            "media": files,
            "max_new_tokens": rng.randint(4, 48),
            "temperature": 0.0 if greedy else rng.uniform(0.3, 1.5),
            "top_p": 1.0 if greedy else rng.uniform(0.5, 1.0),
            "seed": rng.randrange(2**31),
        } | changes

    async def file(self) -> dict[str, str]:
        """A picture or a clip of this visitor's own, or a shipped one, uploaded."""
        rng = self.rng
        made = rng.random()
        if made < 0.5:  # in a thread, as what follows: the server waits for no client for long
            name, content = await asyncio.to_thread(picture, rng)
        elif made < 0.75:
            name, codec = rng.choice(list(corpus.CODECS.items()))
            content = await asyncio.to_thread(corpus.clip, name, codec, rng.randint(8, 60))
        else:
            path = rng.choice([*EXAMPLES.glob("*.png"), *EXAMPLES.glob("*.webm")])
            name, content = path.name, path.read_bytes()
        return await self.visitor.upload(name, content)

    async def run(self, asked: Any) -> tuple[list[dict[str, Any]], str | None]:
        """A race's events, and the sentence of a refusal; Wrong where people cannot read it."""
        async with aclosing(self.visitor.ask(asked)) as running:
            events = [event async for event in running]
        said = sentence(events)
        if said is not None and (OURS.search(said) or not said.strip()):
            raise Wrong(f"a sentence that is none: {said!r}")
        if said is not None and BUSY.search(said):
            raise Turned(said)
        return events, said


def picture(rng: random.Random) -> tuple[str, bytes]:
    """Name and content of a picture that nobody else has: shapes on a coloured ground."""
    size = rng.randint(48, 1024), rng.randint(48, 1024)
    image = Image.new("RGB", size, tuple(rng.randbytes(3)))
    draw = ImageDraw.Draw(image)
    for _ in range(rng.randint(1, 12)):
        across, down = (sorted(rng.choices(range(side), k=2)) for side in size)
        shape = rng.choice((draw.rectangle, draw.ellipse))
        shape((across[0], down[0], across[1], down[1]), fill=tuple(rng.randbytes(3)))
    kind = rng.choice(("PNG", "JPEG", "WEBP"))
    image.save(content := io.BytesIO(), kind)
    return f"own.{kind.lower()}", content.getvalue()


async def race(visit: Visit, **changes: Any) -> str:
    """A race that must be answered: whole records, lanes that must be equal to AR are."""
    asked = await visit.asked(**changes)
    events, said = await visit.run(asked)
    if said is not None:
        raise Wrong(said)
    lanes = validate_trace(read(events))
    stops = [lane.end.stop if lane.end else None for lane in lanes]
    if len(lanes) != len({"ar", *asked["methods"]}) or not {*stops} <= {"eos", "length"}:
        raise Wrong(f"a race ended as {stops}")
    if {lane.begin.notes.question for lane in lanes} - {""} != {asked["question"]}:
        raise Wrong("the answer to somebody else's question")
    for lane in lanes[1:]:
        must = METHODS[lane.begin.method].lossless
        if must and lane.token_ids != lanes[0].token_ids:
            raise Wrong(f"{lane.begin.method} differs from AR")
        visit.tally.identical += must
    visit.tally.tokens += sum(len(lane.token_ids) for lane in lanes)
    return "served"


async def stop(visit: Visit) -> str:
    """Stop after some rounds: every lane that has begun ends as cancelled, within a round."""
    asked = await visit.asked(max_new_tokens=400)
    patience, run, pressed, after, ends = visit.rng.randint(0, 6), "", False, Counter[str](), []
    async with aclosing(visit.visitor.ask(asked)) as running:
        async for event in running:
            run = event.get("run", run)
            if event["k"] == "error":
                raise Turned(event["text"])
            if event["k"] == "end":
                ends.append(event["record"]["stop"])
            if event["k"] == "round":
                after[event["record"]["lane"]] += pressed
                patience -= 1
            if patience < 0 and not pressed:
                pressed = True
                await visit.visitor.server("stop_run", run)
    if not ends or not {*ends} <= {"cancelled", "eos", "length"}:
        raise Wrong(f"a stopped race ended as {ends}")
    visit.tally.rounds_after_stop = max(visit.tally.rounds_after_stop, *after.values(), 0)
    return "stopped"


async def leave(visit: Visit) -> str:
    """Close the tab somewhere in the line or in the middle of a run."""
    asked = await visit.asked(max_new_tokens=400)
    patience = visit.rng.randint(0, 12)
    async with aclosing(visit.visitor.ask(asked)) as running:
        async for _ in running:
            patience -= 1
            if patience < 0:
                break
    return "left"


async def program(visit: Visit) -> str:
    """The two endpoints of programs; one in three hangs up."""
    rng, asked = visit.rng, await visit.asked()
    same = ("pair", "max_new_tokens", "temperature", "top_p", "seed")
    given = {key: asked[key] for key in same} | {"prompt": asked["question"]}
    clips = [file for file in asked["media"] if Path(file["name"]).suffix in CLIPS]
    given |= {"image": [file for file in asked["media"] if file not in clips], "video": clips}
    single = rng.random() < 0.5
    more = {"method": asked["methods"][0]} if single else {"methods": ",".join(asked["methods"])}
    call = visit.visitor.call("generate" if single else "race", given | more)
    if rng.random() < 0.3:
        try:
            await asyncio.wait_for(call, rng.uniform(0.2, 3.0))
        except asyncio.TimeoutError:
            return "left"
        return "served"
    told = await call
    for one in [told] if single else told["lanes"]:
        if not 0 < one["n_tokens"] == len(one["token_ids"]) <= asked["max_new_tokens"]:
            raise Wrong(
                f"{one['n_tokens']} tokens, {len(one['token_ids'])} ids, {asked['max_new_tokens']}"
            )
        if METHODS[one["method"]].lossless and one.get("identical_to_ar") is False:
            raise Wrong(f"{one['method']} differs from AR")
        visit.tally.tokens += one["n_tokens"]
    return "served"


async def bad_file(visit: Visit) -> str:
    """A file that is not what it says: refused in a sentence that names it."""
    case = visit.rng.choice(refused_files())
    try:
        sent = await visit.visitor.upload(case.name, case.data)
    except Turned as said:
        if OURS.search(str(said)):
            raise
        return "refused"
    _, said = await visit.run(await visit.asked(media=[sent], max_new_tokens=4))
    if said is None:
        raise Wrong(f"{case.name} of {case.family} was taken for a picture or a clip")
    return "refused"


@cache
def refused_files() -> list[corpus.Case]:
    """Small files of the attack corpus that must be refused as pictures and as clips, under names
    that travel unchanged."""
    plain = re.compile(r"[\w.-]+")
    other = {"image": CLIP_FORMATS, "video": PICTURE_FORMATS}
    return [
        case
        for case in corpus.cases()
        if case.ends == "refused" and plain.fullmatch(case.name) and len(case.data) < 10**6
        if sniff_format(case.data[:HEAD_BYTES]) not in other[case.sent_as]
    ]


KINDS: dict[str, tuple[int, Callable[[Visit], Awaitable[str]]]] = {
    "race": (6, race),
    "stop": (3, stop),
    "leave": (2, leave),
    "program": (3, program),
    "bad file": (3, bad_file),
}
"""What visitors do, and how often; each says what became of it, one of OUTCOMES."""
