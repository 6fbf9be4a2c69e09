"""Methods compared on one machine: interleaved repeats, spread, limits.

The methods run one after the other on the same case, in an order that shifts with every repeat.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

from specvl_demo.compare import provenance
from specvl_demo.compare.peers import LibraryPeers
from specvl_demo.compare.report import (
    Answer,
    Answers,
    report_of,
    round_robin,
    shared_figures,
)
from specvl_demo.methods.base import Choice
from specvl_demo.options import GREEDY, Sampling
from specvl_demo.pairs.machine import MachineLoad
from specvl_demo.question import Question
from specvl_demo.records import JsonObject
from specvl_demo.serving import session
from specvl_demo.serving.loaded import LoadedPair

Tell = Callable[[str, float], None]
"""Called with the current activity and the share that is done, 0 to 1."""


def run_bench(
    loaded: LoadedPair,
    cases: Sequence[Question],
    choices: Sequence[Choice],
    repeats: int,
    max_new_tokens: int,
    peers: Sequence[str],
    tell: Tell = lambda text, share: None,
    sampling: Sampling = GREEDY,
) -> JsonObject:
    """Return the report of `bench --json`. choices: AR first. peers: The library's own ways, which
    run only if nothing is asked of sampling.
    """
    load = MachineLoad()
    cases = [replace(case, max_new_tokens=max_new_tokens, sampling=sampling) for case in cases]
    peers = peers if sampling == GREEDY else ()
    questions = [session.make_request(loaded, case, full=False) for case in cases]
    session.warm_up(loaded, questions[0], choices)
    library = LibraryPeers(loaded.models, peers, choices)
    for name in peers:
        library.decode_answer(name, questions[0])
    measured: list[Answers] = [defaultdict(list) for _ in range(repeats)]
    total = repeats * len(questions)
    turns: list[Choice | str] = [*choices, *library.running]
    for done, (number, at) in enumerate(product(range(repeats), range(len(questions)))):
        tell(f"repeat {number + 1} of {repeats}, case {at + 1} of {len(questions)}", done / total)
        for way in round_robin(turns, number):
            if isinstance(way, Choice):
                (lane,) = session.run_lanes(loaded, questions[at], [way])
                measured[number][way.method.name].append(Answer.of_lane(lane))
            elif (answer := library.decode_answer(way, questions[at])) is not None:
                measured[number][way].append(answer)
    machine = provenance.collect_facts(loaded) | provenance.disturbance(load.others_share() or 0.0)
    machine["seconds"] = load.seconds
    report = report_of(machine, loaded.pair.id, cases, choices, measured, repeats, peers)
    for name, note in library.notes.items():
        report["rows"].append({**shared_figures(measured, name), "note": note})
    return report
