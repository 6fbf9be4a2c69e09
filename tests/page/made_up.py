"""Made-up races, and the real page over them: valid records and invented figures, no model.

`race_records` returns the records of all lanes in the order in which a race would emit them.
"""

import base64
import math
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from gradio.utils import get_upload_folder
from msgspec.structs import replace

from specvl_demo import records
from specvl_demo.core.tree import shape_of
from specvl_demo.methods import base
from specvl_demo.places import EXAMPLES
from specvl_demo.question import Question
from specvl_demo.records import (
    AskedQuestion,
    End,
    LikelyToken,
    Prefix,
    Record,
    Round,
    Span,
    Thumbnail,
    Token,
    Tree,
    ViewSeen,
    fold,
)
from specvl_demo.report.remarks import Remarks, race_remarks
from specvl_demo.ui.page import catalog
from specvl_demo.ui.page.app import build_page, launch_settings
from specvl_demo.ui.page.handlers import PageHandlers
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.queue import Queue
from specvl_demo.ui.serve.uploads import Uploads
from tests.page.fake_page import BEGIN, Event, ThreadWorker

TEXT = (
    "There are five things in this picture. At the top left there is a large red star, and to the"
    " right of it stands a small blue circle. In the middle of the picture I can see a green arrow."
    " At the bottom left there is a small yellow heart, and next to it a large purple moon. The"
    " ground is white. "
)
WORDS = re.findall(r"\s?\w+|[^\w\s]", TEXT)
WRONG = [" green", " large", " the", " circle", " and", " top", " two", " square"]
ROWS = COLS = 8
PICTURE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAM0lEQVR4nGP89esXAzbAwsD"
    "AcEdPD8JRuXQJLsGEVTk+CUY0O4wTHjEwMJxdIEe5UXAAAIyLDtqHUYKRAAAAAElFTkSuQmCC"
)


def vocabulary(word: str) -> int:
    """A made-up id, the same for the same word."""
    return sum(ord(c) * 31**i for i, c in enumerate(word)) % 30_000


def race_records(
    methods: Sequence[str], n_tokens: int, seed: int = 0, pictures: int = 1
) -> Iterator[Record]:
    """Return a race's records in fair turns: the lane whose clock is furthest behind goes on."""
    rng = random.Random(seed)
    lanes = [_Lane(name, rng, n_tokens, pictures) for name in methods]
    for lane in lanes:
        yield lane.begin
    while any(not lane.over for lane in lanes):
        lane = min((at for at in lanes if not at.over), key=lambda at: at.clock)
        yield lane.step()
        if lane.over:
            yield lane.end()


class _Lane:
    def __init__(self, method: str, rng: random.Random, n_tokens: int, pictures: int) -> None:
        self.method, self.rng, self.n = method, rng, n_tokens
        self.clock, self.at, self.rounds = 0.0, 0, []
        n_visual = ROWS * COLS * pictures
        spans = [
            Span("image", i, 0, 4 + i * ROWS * COLS, 4 + (i + 1) * ROWS * COLS, ROWS, COLS)
            for i in range(pictures)
        ]
        n_prompt = 4 + n_visual + 12
        seen = (
            [ViewSeen("multimodal", n_prompt, list(range(n_prompt)))] if method == "tabed" else []
        )
        if method in ("sage", "lvspec"):
            index = [i for i in range(n_prompt) if not 4 <= i < 4 + n_visual or i % 5 == 0]
            seen = [ViewSeen("pruned", len(index), index)]
        self.begin = replace(
            BEGIN,
            lane=method,
            method=method,
            title=base.find(method).title,
            lossless=method != "lvspec",
            models={"target": "made up", "drafter": None if method == "ar" else "made up"},
            max_new_tokens=max(n_tokens, 128),
            device="none",
            prompt="What is in the picture?",
            n_prompt=n_prompt,
            n_visual=n_visual,
            spans=spans,
            vision_s=0.004,
            prefill_s=0.02,
            draft_prefill_s=0.0 if method == "ar" else 0.006,
            seen=seen,
            charts=list(base.choose(method).charts),
            notes=AskedQuestion(
                media=[Thumbnail(f"picture {i}", [PICTURE]) for i in range(pictures)]
            ),
        )

    @property
    def over(self) -> bool:
        return self.at >= self.n

    def word(self, i: int) -> str:
        return WORDS[i % len(WORDS)]

    def step(self) -> Round:
        rng, texts, parent, path, tokens = self.rng, [self.word(self.at - 1)], [-1], [0], []
        room = self.n - self.at
        n_accepted = 0 if self.method == "ar" else min(rng.choice([0, 1, 2, 3, 3, 4, 5]), room - 1)
        for i in range(n_accepted):
            relaxed = self.method == "lvspec" and rng.random() < 0.2
            texts.append(rng.choice(WRONG) if relaxed else self.word(self.at + i))
            parent.append(path[-1])
            path.append(len(texts) - 1)
            tokens.append(
                Token(vocabulary(texts[-1]), texts[-1], "relaxed" if relaxed else "draft")
            )
        if self.method != "ar":
            size = {"tabed": 6, "dream": 64}.get(self.method, 22)
            if n_accepted < 5:
                texts.append(rng.choice(WRONG))
                parent.append(path[-1])
            while len(texts) < size:
                texts.append(rng.choice(WRONG))
                parent.append(
                    len(texts) - 2 if self.method == "tabed" else rng.randrange(len(texts) - 1)
                )
        last = self.word(self.at + n_accepted)
        tokens.append(Token(vocabulary(last), last, "target"))
        depth = shape_of(tuple(parent)).depth
        logp = [None] + [
            round(-0.2 - 0.9 * rng.random() - (0 if i in path else 1.2), 4)
            for i in range(1, len(texts))
        ]
        tree = Tree(
            [vocabulary(t) for t in texts],
            parent,
            texts,
            logp,
            [None if x is None else x - 0.1 for x in logp],
        )
        draft = 0.0 if self.method == "ar" else 0.0012 * max(depth)
        verify = 0.009 + 0.0003 * len(texts) + 0.001 * rng.random()
        self.clock += draft + verify + 0.0003 + 0.0002
        notes = {"attention": [self._heat() for _ in tokens]}
        if self.method == "tabed":
            w = 0.5 + 0.4 * math.sin(len(self.rounds) / 6)
            notes["weights"] = {"multimodal": round(w, 2), "text": round(1 - w, 2)}
        if self.method == "sage":
            alpha = 0.5 + 0.4 * math.sin(len(self.rounds) / 4)
            notes |= {
                "alpha": round(alpha, 3),
                "drafted_depth": max(depth),
                "drafted_width": 2,
                "depth": 3 + round(5 * alpha),
                "width": 2 + round(8 * (1 - alpha)),
            }
        if self.method == "lvspec":
            nodes = list(range(1, len(texts)))
            notes |= {
                "relevance": [round(rng.random(), 3) for _ in nodes],
                "nodes": nodes,
                "loosened": nodes[::2],
                "cut": 0.5,
            }
        views = None
        if self.method == "tabed":
            views = {
                name: [self._likely(t.text) for t in tokens] for name in ("multimodal", "text")
            }
        out = Round(
            lane=self.method,
            index=len(self.rounds),
            tokens=tokens,
            tree=tree,
            path=path,
            draft_s=draft,
            verify_s=verify,
            commit_s=0.0003,
            other_s=0.0002,
            clock_s=self.clock,
            candidates=[self._likely(t.text, first=t.origin != "relaxed") for t in tokens],
            views=views,
            notes=notes,
        )
        self.rounds.append(out)
        self.at += len(tokens)
        return out

    def end(self) -> End:
        return End(self.method, "length", fold(self.rounds), 400_000_000)

    def _likely(self, text: str, first: bool = True) -> list[LikelyToken]:
        top = self.rng.uniform(0.4, 0.95)
        others = self.rng.sample([w for w in WRONG if w != text], 4)
        rest = [
            LikelyToken(vocabulary(w), w, round((1 - top) * 0.5 ** (i + 1), 4))
            for i, w in enumerate(others)
        ]
        mine = LikelyToken(vocabulary(text), text, round(top, 4))
        return (
            [mine, *rest]
            if first
            else [LikelyToken(rest[0].id, rest[0].text, round(top, 4)), mine, *rest[1:]]
        )

    def _heat(self) -> str:
        x, y = self.rng.uniform(0, COLS), self.rng.uniform(0, ROWS)
        n = self.begin.n_visual
        near = (
            math.exp(-((i % COLS - x) ** 2 + (i // COLS % ROWS - y) ** 2) / 5) for i in range(n)
        )
        return base64.b64encode(bytes(int(255 * v) for v in near)).decode()


BUSY = 77
"""The seed of a run, and tokens of a bench, while other programs keep the machine busy."""
DOUBTFUL = 78
"""The seed of a run of whose answer the target is not sure."""
LONG = 600
"""Tokens of a run that does not end by itself while a test looks."""


def event(record: Record | Remarks) -> Event:
    return {"k": type(record).__name__.lower(), "record": record}


def altered(record: Record, job: Job) -> Record:
    """A record as this question has it."""
    seed = job.question.sampling.seed
    if isinstance(record, records.Begin):
        exact = "exact" if job.options.dtype == "bfloat16" else ""
        given = list(job.question.prefix)
        prefix = Prefix(given, "given ") if given else record.prefix
        return replace(
            record, dtype=job.options.dtype or record.dtype, exactness=exact, prefix=prefix
        )
    if isinstance(record, Round) and seed == BUSY:
        return replace(record, notes=record.notes | {"load": 0.9})
    if isinstance(record, End) and seed == BUSY:
        return replace(record, load=0.9)
    if isinstance(record, End) and seed == DOUBTFUL:
        return replace(record, confidence=records.Confidence("guessing", 0.31, 0.27))
    return record


def races(rate: float, pace: float | None) -> Callable[..., Iterator[Event]]:
    """An engine of made-up races on their clocks, `rate` times as fast, or by rounds a second."""

    def compute(job: Job, ended: Callable[[], bool], tell: Any) -> Iterator[Event]:
        yield {"k": "status", "stage": "prefill"}
        methods, asked = [name for name, _ in job.lanes], job.question
        if job.timed:
            yield from apart(methods, job, ended)
            return
        # A run that a test wants to find still running lasts, however busy the machine.
        speed = 0.2 if asked.max_new_tokens == LONG else rate
        spent = {}
        made = []
        n, seed, pictures = asked.max_new_tokens, asked.sampling.seed, max(1, len(asked.media))
        for plain in race_records(methods, n, seed, pictures):
            record = altered(plain, job)
            if isinstance(record, Round):
                lasted = max(0.0, record.clock_s - spent.get(record.lane, 0.0)) / speed
                time.sleep(1 / pace if pace else lasted)
                spent[record.lane] = record.clock_s
                if ended():
                    break
            made.append(record)
            yield event(record) | {"at": time.time() * 1000}
        for lane in records.gather_lanes(made):
            if lane.end is None:
                made.append(End(lane.begin.lane, "cancelled", fold(lane.rounds)))
                yield event(made[-1])
        yield event(race_remarks(records.gather_lanes(made)))

    return compute


STOPPED: list[Question] = []
"""Questions of benches that lasted until somebody stopped them."""


def apart(methods: list[str], job: Job, ended: Callable[[], bool]) -> Iterator[Event]:
    """A question of a bench: lane after lane, until it is stopped. The second one of a long bench
    ends only so, the first time.
    """
    asked = job.question
    lasts = asked.max_new_tokens == LONG and asked.sampling.seed == 1 and asked not in STOPPED
    for name in methods:
        for record in race_records([name], min(asked.max_new_tokens, 40), asked.sampling.seed):
            if isinstance(record, End) and asked.max_new_tokens == BUSY:
                record = replace(record, load=0.9)
            yield event(record)
        time.sleep(0.1)
        while lasts and not ended():
            time.sleep(0.1)
        if ended():
            STOPPED.append(asked)
            return


def described(folder: Path) -> dict:
    """The real catalog, its first pair declared served, and two examples with made-up races."""
    offers = catalog.build_catalog("pocket")
    pair = offers["pairs"][0]
    pair |= {"available": True, "methods": dict.fromkeys(pair["methods"], True)}
    for pair in offers["pairs"]:
        pair["first"] = ["tabed"]
    offers["examples"] = [
        example(folder, "scene", "What is in the picture?", ("tabed",), 0),
        example(folder, "lossy", "Describe everything.", ("sage", "lvspec"), 3),
    ]
    return offers


def example(folder: Path, name: str, question: str, lanes: tuple[str, ...], seed: int) -> dict:
    picture = EXAMPLES / "scene.png"
    trace = folder / f"{name}.trace.jsonl"
    made = list(race_records(("ar", *lanes), 80, seed))
    records.write_trace(trace, made)
    item = {
        "path": str(picture),
        "url": f"gradio_api/file={picture}",
        "name": "scene.png",
        "kind": "image",
    }
    return {
        "id": name,
        "pair": "pocket",
        "title": name,
        "why": f"why {name}",
        "media": [item],
        "question": question,
        "methods": list(lanes),
        "trace": f"gradio_api/file={trace}",
        "compared": msgspec.to_builtins(race_remarks(records.gather_lanes(made))),
        "gains": [1.5],
        "machine": "a test machine",
        "recorded": {"when": "2026-01-02", "processor": "a processor"},
    }


def serve(port: int, folder: Path, rate: float, pace: float | None) -> None:
    """Serve the page over these races."""
    made = [folder / f"{name}.trace.jsonl" for name in ("scene", "lossy")]
    files = [*made, *catalog.example_files()]
    folders = [Path(get_upload_folder()), folder, EXAMPLES]
    queue = Queue(ThreadWorker(races(rate, pace)))
    handlers = PageHandlers(described(folder), queue, Uploads(folders[0]), folders, files)
    page = build_page(handlers)
    settings = launch_settings(page, handlers)
    page.launch(server_name="127.0.0.1", server_port=port, quiet=True, **settings)
