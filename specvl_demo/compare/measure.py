"""Methods compared on one machine: interleaved repeats, medians, spread, limits.

The methods run one after the other on the same case, in an order that shifts with every repeat.
`limit` is the speedup if only the models' forwards took time; `efficiency`, the forwards' share of
the rounds, is how much of it was reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from specvl_demo.compare import forwards, provenance, questions
from specvl_demo.compare.peers import PEERS, Library
from specvl_demo.compare.questions import Use
from specvl_demo.core.engine import Request
from specvl_demo.core.sampling import Sampling
from specvl_demo.methods.base import Choice
from specvl_demo.pairs import PairSpec, Role
from specvl_demo.question import Question
from specvl_demo.records import gather
from specvl_demo.report import answers as folds
from specvl_demo.report.answers import HF_GENERATE, Repeat
from specvl_demo.serving import choosing, session
from specvl_demo.serving.loader import Loaded

Tell = Callable[[str, float], None]
"""Called with the current activity and the share that is done, 0 to 1."""

Load = Callable[[Sequence[Role]], Loaded]
"""Loads the pair with drafters of these roles."""
GREEDY = Sampling()


@dataclass(frozen=True)
class BenchOptions:
    """The options of a comparison.

    choices: `ar` first. data: A file in place of the pair's own questions. prompts: How many.
    peers: Also run the library's assisted generation.
    """

    pair: PairSpec
    choices: Sequence[Choice]
    repeats: int
    max_new_tokens: int
    prompts: int
    load: Load
    tell: Tell = lambda text, share: None
    peers: bool = False
    data: str | None = None

    @property
    def roles(self) -> list[Role]:
        return choosing.roles_of(self.choices)

    def cases(self, use: Use = "evaluate") -> list[Question]:
        """Return the user's own questions if given, else the pair's."""
        if self.data is not None:
            return questions.of_file(self.data, self.prompts, self.pair.n_frames)
        return questions.of_pair(self.pair, use)[: self.prompts]


def requests(
    loaded: Loaded, cases: Iterable[Question], max_new_tokens: int, sampling: Sampling = GREEDY
) -> Iterator[Request]:
    """Yield the cases as requests, each with the next seed, one at a time, for their pictures."""
    for at, case in enumerate(cases):
        question = replace(
            case,
            max_new_tokens=max_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed + at,
        )
        yield session.request(loaded, question, detail="light")


def answers(options: BenchOptions) -> dict[str, Any]:
    """Run every method on the shipped cases, or on the user's own, and the library's ways."""
    roles, peers = options.roles, [HF_GENERATE]
    if options.peers:
        peers = list(PEERS)
        if "small" in choosing.roles_here(options.pair) and "small" not in roles:
            roles.append("small")
    return bench(options.load(roles), options.cases(), options, peers)


def bench(
    loaded: Loaded,
    cases: Sequence[Question],
    options: BenchOptions,
    peers: Sequence[str] = (HF_GENERATE,),
) -> dict[str, Any]:
    """Return `machine, settings, rows`, as `bench --json` prints them."""
    watch, choices, repeats = provenance.Watch(), options.choices, options.repeats
    questions = list(requests(loaded, cases, options.max_new_tokens))
    session.warm(loaded, questions[0], choices)
    library = Library(loaded.models, peers, choices)
    for name in peers:
        library.answer(name, questions[0])
    measured, total = [Repeat() for _ in range(repeats)], repeats * len(questions)
    turns: list[Choice | str] = [*choices, *library.running]
    for done, (number, at) in enumerate(product(range(repeats), range(len(questions)))):
        about = f"repeat {number + 1} of {repeats}, case {at + 1} of {len(questions)}"
        options.tell(about, done / total)
        for way in folds.round_robin(turns, number):
            if isinstance(way, Choice):
                (lane,) = gather(forwards.run(loaded, way, questions[at]))
                measured[number].answers[way.method.name].append(folds.Answer.of(lane))
            elif (answer := library.answer(way, questions[at])) is not None:
                measured[number].answers[way].append(answer)
    settings = {
        "pair": loaded.pair.id,
        "cases": [case.id for case in cases],
        "max_new_tokens": options.max_new_tokens,
        "repeats": repeats,
        "sampling": "greedy",
        "methods": {choice.method.name: choice.settings for choice in choices},
        "peers": list(peers),
    }
    machine = {**provenance.collect(loaded), **watch.read()}
    rows = folds.rows(
        measured,
        [choice.method.name for choice in choices],
        [case.kind for case in cases],
        [case.reference for case in cases],
    )
    for name, note in library.notes.items():
        rows.append({**folds.shared(measured, name), "note": note, "held_back_by": None})
    return {"machine": machine, "settings": settings, "rows": rows}
