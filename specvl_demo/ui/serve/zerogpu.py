"""The worker of a ZeroGPU Space: a GPU is lent for one run, to a forked child of this process.

Given the pair that such a Space serves, loads it here once, as ZeroGPU requires, with all drafters
that a lent call may need, and computes each job inside one lent call, in which nothing is loaded.
Has no effect anywhere else: `wanted` detects such a Space. Knows nothing of how a run is computed.
"""

from __future__ import annotations

import base64
import contextvars
import json
import os
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any, cast

from specvl_demo import pairs
from specvl_demo.core.faults import cause, loses_device
from specvl_demo.pairs import PairSpec, Role
from specvl_demo.pairs.machine import detect
from specvl_demo.records import End
from specvl_demo.serving import availability, choosing
from specvl_demo.ui import messages
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.queue import Event, refusal
from specvl_demo.ui.serve.workers import SAID

MOST_S, MOST_ANONYMOUS_S = 120, 80
"""Seconds of a lent call. Visitors without an account have two minutes a day, and `spaces` counts
1.5 times the requested time for the half card (`large`) that it lends.
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


def wanted() -> bool:
    """Whether this is a ZeroGPU Space."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


def prepare() -> None:
    """Set up a ZeroGPU Space; must be called before CUDA is first used. No effect anywhere else.

    `spaces` cannot be imported once CUDA was initialised. Its emulation of CUDA is per thread, so
    transformers must not load weights in its own threads.
    """
    if wanted():
        os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
        import spaces  # noqa: F401, PLC0415 - installed only there


def token_s(pair: PairSpec) -> float:
    """Return the estimated maximum of seconds per token of the pair on the lent card."""
    drafters = max((checkpoint.params for checkpoint in pair.drafters.values()), default=0.0)
    read = availability.DTYPE_BYTES["bfloat16"] * (pair.target.params + drafters)
    return ROUND * (LAUNCH_S + read / CARD_BYTES_PER_S)


def estimate(job: Job, each_s: float, most_s: float = MOST_S) -> int:
    """Return the seconds to request.

    Requesting less starts sooner and costs less of a visitor's daily share; the Space ends a run
    that outlasts it, which keeps what it had. each_s: per token of its pair.
    """
    lane_s = LANE_S + each_s * job.question.max_new_tokens
    return round(min(most_s, START_S + lane_s * max(1, len(job.lanes))))


def within(job: Job, each_s: float, most_s: float) -> Job:
    """Return the job with as many tokens as these seconds have room for."""
    left_s = (most_s - START_S) / max(1, len(job.lanes)) - LANE_S
    n = min(job.question.max_new_tokens, max(1, int(left_s / each_s)))
    return replace(job, question=replace(job.question, max_new_tokens=n))


def worker(pair_id: str, lend: Callable[..., Any]) -> ZeroGpuWorker:
    """Return the worker of a pair that is loaded now, so that a forked child inherits it.

    Raises:
        ValueError: With a sentence if the pair does not run here.
    """
    from specvl_demo.ui.serve.decoding import Engine  # noqa: PLC0415 - torch only where it computes

    pair, engine = pairs.find(pair_id), Engine()
    roles = prepared(pair)
    engine.get(pair, roles, lambda _: None)

    def lent(job: Job) -> Iterator[Event]:
        # Nothing is kept: the next question could not find it.
        yield from engine(job, bool, lambda _: None)

    return ZeroGpuWorker(pair_id, lend, lent, token_s(pair), roles)


def prepared(pair: PairSpec) -> list[Role]:
    """Return the roles whose drafters are loaded with the target: as many as fit, in the pair's
    order.
    """
    here = choosing.roles_here(pair)
    machine, roles = detect(), list[Role]()
    for role in here:
        if availability.available(pair, machine, roles=[*roles, role]).ok:
            roles.append(role)
    return roles


def anonymous() -> bool:
    """Whether the visitor of this request has no account, according to the Space's proxy.

    # choice: a visitor without that information counts as one without an account.
    """
    from gradio.context import LocalContext  # noqa: PLC0415 - a refusal answers without Gradio

    request = LocalContext.request.get(None)
    token = request.headers.get("x-ip-token", "") if request is not None else ""
    try:
        payload = token.split(".")[1]
        return not json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["user"]
    except (IndexError, ValueError, KeyError, TypeError):
        return True


class ZeroGpuWorker:
    """A `queue.Worker` whose jobs run in lent calls. Its pair is loaded at the start; others are
    refused.

    Args:
        lend: Makes a lent call of a generator function, `spaces.GPU` if it is installed.
        compute: That function.
        each_s: Seconds per token.
        roles: Of the loaded drafters, None for any.
    """

    capacity = 1

    def __init__(
        self,
        pair: str,
        lend: Callable[..., Any],
        compute: Callable[[Job], Iterator[Event]],
        each_s: float,
        roles: Collection[Role] | None = None,
    ) -> None:
        self._pair, self._each_s, self._roles = pair, each_s, roles
        self._running: dict[str, threading.Event] = {}
        # A plain generator function, since coroutines are not lent a GPU.
        self._lent = lend(duration=lambda job: estimate(job, each_s))(compute)

    def start(self, run: str, job: Job, put: Callable[[Event], None]) -> None:
        """Compute in a lent call; its events come back through `put`, from another thread."""
        if refused := self._why_not(job):
            for event in refusal(refused):
                put(event)
            return
        self._running[run] = threading.Event()
        cut, n_asked = None, job.question.max_new_tokens
        if anonymous():
            job = within(job, self._each_s, MOST_ANONYMOUS_S)
        if (n := job.question.max_new_tokens) < n_asked:
            cut = messages.ONLY_SO_MANY.format(n=n, asked=n_asked, seconds=MOST_ANONYMOUS_S)
        # The call is charged to the visitor of this request, which the thread must know.
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run, args=(self._follow, run, job, put, cut), daemon=True
        ).start()

    def stop(self, run: str) -> None:
        if run in self._running:
            self._running[run].set()

    def kill(self, run: str) -> None:
        """Request the run to stop; the Space ends a run that outlasts its estimate."""
        self.stop(run)

    def close(self) -> None:
        """Do nothing: nothing is held between calls."""

    def _why_not(self, job: Job) -> str | None:
        """Return why no GPU is lent for this job, in a sentence; called before one is lent."""
        if job.pair != self._pair:
            return messages.ONLY_THIS_PAIR.format(pair=self._pair)
        if job.dtype or job.quantised:
            return messages.ONLY_THESE_WEIGHTS
        if self._roles is None:
            return None
        try:
            pair = pairs.find(job.pair)
            choices = [choosing.choose(pair, *lane, job.question.temperature) for lane in job.lanes]
        except ValueError as fault:
            return str(fault)
        if missing := set(choosing.roles_of(choices)) - set(self._roles):
            roles = ", ".join(pairs.ROLES[role] for role in sorted(missing))
            return messages.ONLY_THESE_DRAFTERS.format(roles=roles)
        return None

    def _follow(self, run: str, job: Job, put: Callable[[Event], None], cut: str | None) -> None:
        """Follow a run in a lent call.

        cut: The sentence for an answer that ends at a limit of this Space.
        """
        calls = self._lent(job)
        try:
            for event in calls:
                put(event)
                if cut and event["k"] == "end" and cast("End", event["record"]).stop == "length":
                    put({"k": "error", "text": cut})
                    cut = None
                if self._running[run].is_set():
                    break
        except Exception as fault:  # noqa: BLE001 - the Space reports quotas in exceptions of its own
            sentence = messages.DEVICE_LOST if loses_device(fault) else messages.RUN_FAILED
            put({"k": "error", "text": sentence.format(reason=cause(fault)[:SAID])})
        finally:
            calls.close()
            del self._running[run]
            put({"k": "done"})
