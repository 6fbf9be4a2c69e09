"""The worker of a ZeroGPU Space: a GPU is lent for one run, to a forked child of this process.

Given the pair that such a Space serves, loads it here once, as ZeroGPU wants it, and computes each
job inside one lent call. Has no effect anywhere else: `wanted` says where it is. Knows nothing of
how a run is computed.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from specvl_demo.ui import messages
from specvl_demo.ui.serve.child import SAID
from specvl_demo.ui.serve.jobs import Job
from specvl_demo.ui.serve.run import Event, refusal

MOST_S = 120
START_S = 10.0
LANE_S = 3.0
TOKEN_S = 0.05


def wanted() -> bool:
    """Whether this is a ZeroGPU Space."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


def prepare() -> None:
    """Set up a ZeroGPU Space; call it before anything else asks torch for CUDA. No effect anywhere
    else.

    `spaces` refuses to be imported once CUDA was initialised. Its emulation of CUDA is kept a
    thread, so that transformers must not load weights in threads of its own.
    """
    if wanted():
        os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
        import spaces  # noqa: F401, PLC0415 - installed only there


def estimate(job: Job) -> int:
    """Seconds to ask for. Asking for less starts sooner and costs a visitor less of the day's
    share.

    # choice: 50 ms a token for a 7B model in bfloat16 on the half card that is lent, and a start; a
    run that # outlasts it is ended by the Space, with what it had.
    """
    each = LANE_S + TOKEN_S * job.max_new_tokens
    return min(MOST_S, round(START_S + each * max(1, len(job.lanes))))


class ZeroGpuWorker:
    """A `queue.Worker` whose jobs run in lent calls. Its pair is loaded at the start; others are
    refused.

    lend: makes a lent call of a generator function, `spaces.GPU` where it is installed.
    """

    capacity = 1

    def __init__(
        self,
        pair: str,
        lend: Callable[..., Any],
        compute: Callable[[Job], Iterator[Event]] | None = None,
    ) -> None:
        self._pair = pair
        self._running: dict[str, threading.Event] = {}
        compute = compute or _computing(pair)
        # A plain generator function: coroutines are not lent a GPU.
        self._lent = lend(duration=estimate)(compute)

    def start(self, run: str, job: Job, put: Callable[[Event], None]) -> None:
        """Compute in a lent call; its events come back through `put`, from another thread."""
        refused = None
        if job.pair != self._pair:
            refused = messages.ONLY_THIS_PAIR.format(pair=self._pair)
        elif job.dtype or job.quantised:
            refused = messages.ONLY_THESE_WEIGHTS
        if refused:
            for event in refusal(refused):
                put(event)
            return
        self._running[run] = threading.Event()
        # The call is charged to the visitor whose request this is; the thread must know whose.
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run, args=(self._follow, run, job, put), daemon=True
        ).start()

    def stop(self, run: str) -> None:
        if run in self._running:
            self._running[run].set()

    def kill(self, run: str) -> None:
        """The Space ends what outlasts its estimate; until then it can only be asked."""
        self.stop(run)

    def forget(self, visit: str) -> None:
        """Nothing is kept: what a lent call made ends with its process."""

    def close(self) -> None:
        """Nothing is held between calls."""

    def _follow(self, run: str, job: Job, put: Callable[[Event], None]) -> None:
        calls = self._lent(job)
        try:
            for event in calls:
                put(event)
                if self._running[run].is_set():
                    break
        except Exception as fault:  # noqa: BLE001 - the Space speaks of quotas in exceptions of its own
            put({"k": "error", "text": messages.RUN_FAILED.format(reason=str(fault)[:SAID])})
        finally:
            calls.close()
            del self._running[run]
            put({"k": "done"})


def _computing(pair: str) -> Callable[[Job], Iterator[Event]]:
    """A generator function over models that are loaded now: a forked child inherits them."""
    from specvl_demo.ui.serve.decoding import Engine  # noqa: PLC0415 - torch only where it computes

    compute = Engine(pair)
    compute.prepare()

    def lent(job: Job) -> Iterator[Event]:
        # Kept for nobody: the next question would not find it.
        yield from compute(replace(job, visit=None), bool, lambda _: None)

    return lent
