"""The kinds of visitors of a soak, good and bad, each judged by what it must get.

An answer whose records add up and in which lossless methods equal the plain one; a sentence for people; or
nothing, because the visitor left. Given one visit to a page and a source of chance.
"""

from __future__ import annotations

import asyncio
import io
import random
import re
import struct
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from specvl_demo.bench.visitor import Turned, Visitor, read
from specvl_demo.methods import METHODS
from specvl_demo.records import validate_trace
from specvl_demo.report.metrics import Lane

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MOST_FAULTS_KEPT = 20
BUSY = re.compile(r"busy|queue is full", re.IGNORECASE)
"""A refusal because too many ask at once."""
OURS = re.compile(r"Traceback|object at 0x|TypeError|KeyError|AttributeError|NoneType")
"""What never stands in a sentence for a visitor."""


class Wrong(Exception):
    """A visitor did not get what it must; the message says what came."""


@dataclass
class Tally:
    """What became of the visitors."""

    kinds: Counter[str] = field(default_factory=Counter)
    served: int = 0
    refused: int = 0
    busy: int = 0
    stopped: int = 0
    left: int = 0
    failed: int = 0
    identical: int = 0
    tokens: int = 0
    rounds_after_stop: int = 0
    faults: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        """Count a failure and keep what it was, as long as there are few."""
        self.failed += 1
        if len(self.faults) < MOST_FAULTS_KEPT:
            self.faults.append(text[:400])


@dataclass
class Visit:
    """What one visitor has to work with."""

    visitor: Visitor
    rng: random.Random
    tally: Tally
    pair: str
    methods: list[str]

    async def asked(self, **changes: Any) -> dict[str, Any]:
        """A random question that can be answered."""
        rng = self.rng
        files = [await self.file() for _ in range(rng.choice((0, 0, 1, 1, 2)))]
        chosen = rng.sample(self.methods, rng.randint(1, min(3, len(self.methods))))
        # Loose verifiers are defined for greedy decoding alone, and the page says so.
        greedy = rng.random() < 0.6 or not all(METHODS[name].lossless for name in chosen)
        asked = {
            "pair": self.pair,
            "question": rng.choice(QUESTIONS),
            "methods": chosen,
            "media": files,
            "max_new_tokens": rng.randint(4, 48),
            "temperature": 0.0 if greedy else rng.uniform(0.3, 1.5),
            "top_p": 1.0 if greedy else rng.uniform(0.5, 1.0),
            "seed": rng.randrange(2**31),
        }
        return asked | changes

    async def file(self) -> dict[str, str]:
        """A shipped picture or clip, or a drawn scene, uploaded."""
        if self.rng.random() < 0.4:
            drawn = await self.visitor.server("scene", {"seed": self.rng.randrange(10**6)})
            if "path" not in drawn:
                raise Wrong(f"no scene was drawn: {drawn.get('problem')}")
            return {"path": drawn["path"], "name": drawn["name"]}
        path = self.rng.choice([*EXAMPLES.glob("*.png"), *EXAMPLES.glob("*.webm")])
        return await self.visitor.upload(path.name, path.read_bytes())

    def refusal(self, events: list[dict[str, Any]]) -> str | None:
        """The sentence of a run that was refused; Wrong where it is not one for people."""
        said = next((event["text"] for event in events if event["k"] == "error"), None)
        if said is not None and (OURS.search(said) or not said.strip()):
            raise Wrong(f"a sentence that is none: {said!r}")
        return said


QUESTIONS = (
    "Describe the picture.",
    "What is this?",
    "How many objects are there?",
    "What colour is the star? 🟥",
    "ما هذا؟",
    "<b>Is</b> there a ${circle}?",
)


async def race(visit: Visit) -> None:
    """A race that must be answered: whole records, lossless lanes equal to the plain one when greedy."""
    asked = await visit.asked()
    async with aclosing(visit.visitor.ask(asked)) as running:
        events = [event async for event in running]
    said = visit.refusal(events)
    if said is not None:
        if not BUSY.search(said):
            raise Wrong(said)
        visit.tally.busy += 1
        return
    lanes = [Lane(*lane) for lane in validate_trace(read(events)).values()]
    wanted = len({"ar", *asked["methods"]})
    if len(lanes) != wanted or any(
        lane.end is None or lane.end.stop not in ("eos", "length") for lane in lanes
    ):
        raise Wrong(f"a race ended as {[lane.end and lane.end.stop for lane in lanes]}")
    if any(lane.begin.notes.get("question", asked["question"]) != asked["question"] for lane in lanes):
        raise Wrong("the answer to somebody else's question")
    for lane in lanes[1:]:
        if lane.begin.lossless:
            if lane.token_ids != lanes[0].token_ids:
                raise Wrong(f"{lane.begin.method} differs from the plain answer")
            visit.tally.identical += 1
    visit.tally.tokens += sum(lane.end.totals.n_tokens for lane in lanes)
    visit.tally.served += 1


async def stop(visit: Visit) -> None:
    """Stop after some rounds: every lane that has begun ends as cancelled, within a round."""
    asked = await visit.asked(max_new_tokens=400)
    patience, run, pressed, after, ends = visit.rng.randint(0, 6), "", False, Counter(), []
    async with aclosing(visit.visitor.ask(asked)) as running:
        async for event in running:
            run = event.get("run", run)
            if event["k"] == "error":
                said = visit.refusal([event])
                if not BUSY.search(said):
                    raise Wrong(said)
                visit.tally.busy += 1
                return
            if event["k"] == "end":
                ends.append(event["record"]["stop"])
            if event["k"] == "round":
                after[event["record"]["lane"]] += pressed
                patience -= 1
            if patience < 0 and not pressed:
                pressed = True
                await visit.visitor.server("stop", run)
    if not ends or any(end not in ("cancelled", "eos", "length") for end in ends):
        raise Wrong(f"a stopped race ended as {ends}")
    visit.tally.rounds_after_stop = max(visit.tally.rounds_after_stop, *after.values(), 0)
    visit.tally.stopped += 1


async def leave(visit: Visit) -> None:
    """Close the tab somewhere in the line or in the middle of a run."""
    asked = await visit.asked(max_new_tokens=400)
    patience = visit.rng.randint(0, 12)
    async with aclosing(visit.visitor.ask(asked)) as running:
        async for _ in running:
            patience -= 1
            if patience < 0:
                break
    visit.tally.left += 1


def _arguments(asked: dict[str, Any]) -> dict[str, Any]:
    same = ("pair", "max_new_tokens", "temperature", "top_p", "seed")
    return {key: asked[key] for key in same} | {"prompt": asked["question"], "image": asked["media"]}


async def generate(visit: Visit) -> None:
    """The two endpoints of programs."""
    asked = await visit.asked()
    given = _arguments(asked)
    if visit.rng.random() < 0.5:
        told = await visit.visitor.call("generate", given | {"method": asked["methods"][0]})
        lanes = [told]
    else:
        told = await visit.visitor.call("race", given | {"methods": ",".join(asked["methods"])})
        lanes = told["lanes"]
    for one in lanes:
        if not 0 < one["n_tokens"] <= asked["max_new_tokens"] or one["n_tokens"] != len(one["token_ids"]):
            raise Wrong(
                f"{one['n_tokens']} tokens, {len(one['token_ids'])} ids, {asked['max_new_tokens']} asked"
            )
        if one["lossless"] and one.get("identical_to_ar") is False:
            raise Wrong(f"{one['method']} differs from the plain answer")
    visit.tally.tokens += sum(one["n_tokens"] for one in lanes)
    visit.tally.served += 1


async def hang_up(visit: Visit) -> None:
    """A program that asks for much and goes away."""
    given = _arguments(await visit.asked(max_new_tokens=400))
    try:
        await asyncio.wait_for(
            visit.visitor.call("generate", given | {"method": visit.methods[0]}), visit.rng.uniform(0.2, 3.0)
        )
    except asyncio.TimeoutError:
        visit.tally.left += 1
    else:
        visit.tally.served += 1


async def bad_file(visit: Visit) -> None:
    """A file that is not what it says: refused in a sentence that names it, or read rightly."""
    name, content = visit.rng.choice(sorted(BAD_FILES.items()))
    try:
        sent = await visit.visitor.upload(name, content(visit.rng))
    except Turned as said:
        if OURS.search(str(said)):
            raise
        visit.tally.refused += 1
        return
    asked = await visit.asked(media=[sent], max_new_tokens=4)
    async with aclosing(visit.visitor.ask(asked)) as running:
        events = [event async for event in running]
    said = visit.refusal(events)
    if said is None:
        raise Wrong(f"{name} was taken for a picture or a clip")
    if BUSY.search(said):
        visit.tally.busy += 1
        return
    if name not in said:
        raise Wrong(f"{name} was refused without its name: {said!r}")
    visit.tally.refused += 1


async def bad_request(visit: Visit) -> None:
    """A request that makes no sense: refused in a sentence."""
    asked = visit.rng.choice(
        [
            *(None, 5, [], "run", {}, {"pair": visit.pair}),
            await visit.asked(pair="nowhere"),
            await visit.asked(methods=["nonsense"]),
            await visit.asked(max_new_tokens=10**9),
            await visit.asked(temperature=-1),
            await visit.asked(top_p="all"),
            await visit.asked(question="x" * 100_000),
            await visit.asked(question=["a list"]),
            await visit.asked(media=[{"path": "/etc/passwd", "name": "passwd"}]),
            await visit.asked(media=[{"path": "../../app.py"}] * 3),
        ]
    )
    try:
        async with aclosing(visit.visitor.ask(asked)) as running:
            events = [event async for event in running]
    except Turned as said:  # Gradio itself looks at paths, before the page does
        if OURS.search(str(said)) or "cannot be accessed" not in str(said):
            raise
        visit.tally.refused += 1
        return
    if visit.refusal(events) is None or any(event["k"] == "begin" for event in events):
        raise Wrong(f"a senseless request was served: {str(asked)[:200]}")
    visit.tally.refused += 1


async def scene(visit: Visit) -> None:
    """The page's own functions, rightly and wrongly used."""
    drawn = await visit.visitor.server("scene", None)
    wrong = await visit.visitor.server("scene", {"objects": 7})
    if "path" not in drawn or "problem" not in wrong:
        raise Wrong(f"a scene gave {sorted(drawn)}, nonsense gave {sorted(wrong)}")
    await visit.visitor.server("panel", {"pair": visit.pair, "method": visit.rng.choice(visit.methods)})
    await visit.visitor.server("batches", "nobody's")
    await visit.visitor.server("stop", {"not": "a run"})
    visit.tally.served += 1


def _png(width: int, height: int) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(data, "PNG")
    return data.getvalue()


def _declared(width: int, height: int) -> bytes:
    """A PNG whose header declares a size that its data does not have."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = b"IDAT" + zlib.compress(b"\0" * 64)
    chunks = [
        struct.pack(">I", len(one) - 4) + one + struct.pack(">I", zlib.crc32(one)) for one in (head, body)
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + b"\0\0\0\0IEND\xaeB`\x82"


BAD_FILES: dict[str, Callable[[random.Random], bytes]] = {
    "empty.png": lambda rng: b"",
    "noise.png": lambda rng: rng.randbytes(2000),
    "noise.jpg": lambda rng: b"\xff\xd8\xff\xe0" + rng.randbytes(2000),
    "noise.mp4": lambda rng: b"\0\0\0\x18ftypmp42" + rng.randbytes(4000),
    "bomb.png": lambda rng: _declared(60_000, 60_000),
    "tall.png": lambda rng: _declared(1, 60_000),
    "text.png": lambda rng: b"<svg onload=alert(1)>" * 20,
    "cut.png": lambda rng: _png(400, 400)[: rng.randint(20, 200)],
    "cut.webm": lambda rng: (EXAMPLES / "clip.webm").read_bytes()[: rng.randint(10, 400)],
}


KINDS: dict[str, tuple[int, Callable[[Visit], Awaitable[None]]]] = {
    "race": (6, race),
    "stop": (3, stop),
    "leave": (2, leave),
    "generate": (2, generate),
    "hang up": (1, hang_up),
    "bad file": (3, bad_file),
    "bad request": (2, bad_request),
    "scene": (1, scene),
}
"""What visitors do, and how often beside each other."""
