"""The worker of a ZeroGPU Space: a GPU is lent for one run, to a forked child of this process.

Loads the pair that such a Space serves here once, as ZeroGPU requires, with all drafters that a
lent call may need, and computes each job inside one lent call, in which nothing is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any, cast

from specvl_demo import pairs
from specvl_demo.pairs import PairSpec, Role, fitting, on_disk, placing
from specvl_demo.pairs.machine import detect_machine, on_zerogpu
from specvl_demo.records import End
from specvl_demo.serving import choosing
from specvl_demo.ui import messages
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.queue import Event, Worker

MAX_S = 60
"""Seconds of a lent call. Visitors without an account have two minutes a day, and `spaces` counts
the requested time 1.5 times for half a card (`large`), and twice for a whole one (`xlarge`).
"""
START_S = 10.0
LANE_S = 3.0
LAUNCH_S = 0.01
CARD_BYTES_PER_S = 0.9e12
"""# choice: half of the RTX PRO 6000's data sheet, and 10 ms to launch a step's kernels one by one;
derived, not measured.
"""
ROUND = 1.5
"""# choice: AR steps that a round of a method costs, if nothing of its draft is accepted."""


def import_spaces() -> None:
    """Set up a ZeroGPU Space by importing `spaces`; must be called before CUDA is first used. No
    effect anywhere else.

    `spaces` cannot be imported once CUDA was initialised. Its emulation of CUDA is per thread, so
    transformers must not load weights in its own threads.
    """
    if on_zerogpu():
        os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
        import spaces  # noqa: F401, PLC0415 - installed only there


def max_token_s(pair: PairSpec) -> float:
    """Return the estimated maximum of seconds per token of the pair on the lent card."""
    drafters = max((checkpoint.params for checkpoint in pair.drafters.values()), default=0.0)
    read = fitting.DTYPE_BYTES["bfloat16"] * (pair.target.params + drafters)
    return ROUND * (LAUNCH_S + read / CARD_BYTES_PER_S)


def estimate_lease_s(job: Job, each_s: float) -> int:
    """Return the seconds to request, `each_s` a token: fewer start sooner and cost less of a
    visitor's daily share; the Space ends a run that outlasts them, which keeps what it had.
    """
    lane_s = LANE_S + each_s * job.question.max_new_tokens
    return round(min(MAX_S, START_S + lane_s * max(1, len(job.lanes))))


def fit_to_lease(job: Job, each_s: float) -> Job:
    """Return the job with as many tokens as MAX_S has room for."""
    left_s = (MAX_S - START_S) / max(1, len(job.lanes)) - LANE_S
    n = min(job.question.max_new_tokens, max(1, int(left_s / each_s)))
    return replace(job, question=replace(job.question, max_new_tokens=n))


def load_worker(pair_id: str, lend: Callable[..., Any]) -> ZeroGpuWorker:
    """Return the worker of a pair that is loaded now, so that a forked child inherits it."""
    from specvl_demo.ui.serve.job_runner import JobRunner  # noqa: PLC0415 - torch only where it computes

    pair = pairs.find(pair_id)
    runner = JobRunner()
    roles = fitting_drafters(pair)
    runner.load_pair(pair, roles, lambda _: None)

    def lent(job: Job) -> Iterator[Event]:
        # Nothing is kept: the next question could not find it.
        yield from runner.events(job, bool)

    return ZeroGpuWorker(pair_id, lend, lent, max_token_s(pair), roles)


def fitting_drafters(pair: PairSpec) -> list[Role]:
    """Return the roles loaded with the target: as many as fit, in the pair's order."""
    machine = detect_machine()
    roles = list[Role]()
    for role in on_disk.loadable_drafters(pair):
        if placing.place(pair, machine, roles=[*roles, role]).ok:
            roles.append(role)
    return roles


class ZeroGpuWorker(Worker):
    """A worker whose jobs run in lent calls. Its pair is loaded at the start; others are refused.

    lend: Makes a lent call of the generator function `compute`; `spaces.GPU` if it is installed.
    each_s: Seconds per token. roles: Of the loaded drafters, None for any.
    """

    def __init__(
        self,
        pair: str,
        lend: Callable[..., Any],
        compute: Callable[[Job], Iterator[Event]],
        each_s: float,
        roles: Collection[Role] | None = None,
    ) -> None:
        self._pair = pair
        self._each_s = each_s
        self._roles = roles
        self._stopped: set[str] = set()
        # A plain generator function, since coroutines are not lent a GPU.
        self._lent = lend(duration=lambda job: estimate_lease_s(job, each_s))(compute)

    def stop(self, run: str) -> None:
        self._stopped.add(run)

    kill = stop
    """The Space ends a run that outlasts its estimate."""

    def close(self) -> None:
        """Do nothing: nothing is held between calls."""

    def events(self, run: str, job: Job) -> Iterator[Event]:
        """Yield what a lent call computes."""
        if refused := self._lending_refusal(job):
            yield messages.error_event(refused)
            return
        n_asked = job.question.max_new_tokens
        job = fit_to_lease(job, self._each_s)
        n = job.question.max_new_tokens
        calls = self._lent(job)
        cut = n < n_asked
        try:
            for event in calls:
                yield event
                if cut and event["k"] == "end" and cast("End", event["record"]).stop == "length":
                    told = messages.ONLY_SO_MANY.format(n=n, asked=n_asked, seconds=MAX_S)
                    yield messages.error_event(told)
                    cut = False
                if run in self._stopped:
                    break
        finally:
            calls.close()
            self._stopped.discard(run)

    def _lending_refusal(self, job: Job) -> str | None:
        """Return why no GPU is lent for this job, in a sentence; called before one is lent."""
        if job.pair != self._pair:
            return messages.ONLY_THIS_PAIR.format(pair=self._pair)
        if job.options != fitting.AS_IT_FITS:
            return messages.ONLY_THESE_WEIGHTS
        if self._roles is None:
            return None
        try:
            roles = choosing.roles_of(job.choices())
        except ValueError as fault:
            return str(fault)
        if missing := set(roles) - set(self._roles):
            named = ", ".join(pairs.ROLES[role] for role in sorted(missing))
            return messages.ONLY_THESE_DRAFTERS.format(roles=named)
        return None
