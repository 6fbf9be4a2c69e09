"""Methods compared on one machine: interleaved repeats, medians, spread, limits.

The methods run one after the other on the same case, in an order that shifts with every repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from specvl_demo.compare import provenance, questions
from specvl_demo.compare.page import Report, report_of
from specvl_demo.compare.peers import PEERS, Library
from specvl_demo.methods.base import Choice
from specvl_demo.pairs import PairSpec, Role
from specvl_demo.question import Question
from specvl_demo.report import answers as folds
from specvl_demo.report.answers import HF_GENERATE, Repeat
from specvl_demo.serving import choosing, session
from specvl_demo.serving.loader import Loaded

Tell = Callable[[str, float], None]
"""Called with the current activity and the share that is done, 0 to 1."""

Load = Callable[[Sequence[Role]], Loaded]
"""Loads the pair with drafters of these roles."""


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

    def cases(self) -> list[Question]:
        """Return the user's own questions if given, else the pair's."""
        if self.data is not None:
            return questions.of_file(self.data, self.prompts, self.pair.n_frames)
        return questions.of_pair(self.pair)[: self.prompts]


def answers(options: BenchOptions) -> Report:
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
) -> Report:
    """Return the report of `bench --json`."""
    watch, choices, repeats = provenance.Watch(), options.choices, options.repeats
    cases = [
        replace(case, max_new_tokens=options.max_new_tokens, temperature=0.0) for case in cases
    ]
    questions = [session.request(loaded, case, detail="light") for case in cases]
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
                (lane,) = session.answers(loaded, questions[at], [way])
                measured[number].answers[way.method.name].append(folds.Answer.of(lane))
            elif (answer := library.answer(way, questions[at])) is not None:
                measured[number].answers[way].append(answer)
    machine = {**provenance.collect(loaded), **watch.read()}
    report = report_of(machine, loaded.pair, cases, choices, measured, repeats, peers)
    for name, note in library.notes.items():
        report["rows"].append({**folds.shared(measured, name), "note": note})
    return report
