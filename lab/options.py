"""What the suites of the laboratory are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specvl_demo.compare import questions
from specvl_demo.compare.measure import Tell
from specvl_demo.core.engine import Request
from specvl_demo.core.sampling import Sampling
from specvl_demo.methods.base import Choice
from specvl_demo.options import GREEDY
from specvl_demo.pairs import PairSpec, Role
from specvl_demo.question import Question
from specvl_demo.serving import session
from specvl_demo.serving.loaded import LoadedPair


@dataclass(frozen=True)
class LabOptions:
    """The options of a suite.

    choices: `ar` first. load: Loads the pair with drafters of these roles. tell: Called with the
    current activity and the share that is done. data: A file in place of the pair's own questions.
    prompts: How many. heads: A folder with one for each trained head. claim: None for all.
    """

    pair: PairSpec
    choices: Sequence[Choice]
    repeats: int
    max_new_tokens: int
    prompts: int
    load: Callable[[Sequence[Role]], LoadedPair]
    tell: Tell = lambda text, share: None
    data: str | None = None
    heads: Path | None = None
    claim: str | None = None
    sampling: Sampling = GREEDY

    def cases(self) -> list[Question]:
        """Return the user's own questions if given, else those that the pair is measured with."""
        return questions.bench_questions(self.pair, self.data, self.prompts)

    def every(self) -> list[Question]:
        """Return the user's own questions if given, else `every` of the pair's."""
        return self.cases() if self.data is not None else every(self.pair)[: self.prompts]


def every(pair: PairSpec) -> list[Question]:
    """Return all of a pair's shipped questions, opened, one of each kind in turn; of the pocket
    pair only what is held out.
    """
    splits = ("evaluate",) if pair.questions == questions.POCKET else ("choose", "evaluate")
    shipped = questions.interleave_kinds(questions.shipped_questions(pair, *splits))
    return [question.read_files(pair) for question in shipped]


def requests(
    loaded: LoadedPair, cases: Iterable[Question], max_new_tokens: int, sampling: Sampling = GREEDY
) -> Iterator[Request]:
    """Yield the cases as requests, each with the next seed, one at a time, for their pictures."""
    for at, case in enumerate(cases):
        seeded = replace(sampling, seed=sampling.seed + at)
        question = replace(case, max_new_tokens=max_new_tokens, sampling=seeded)
        yield session.make_request(loaded, question, full=False)
