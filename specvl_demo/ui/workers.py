"""Who computes for this page: one process beside it, actors of a cluster, or a GPU that a Space lends.

Given what was asked for at the start and the environment, makes the one worker behind the desk.
"""

from __future__ import annotations

from specvl_demo.ui import zerogpu
from specvl_demo.ui.desk import Worker


def make(pair: str, count: int = 1, address: str | None = None, gpus: float = 0.0) -> Worker:
    """The worker for a page. count above 1, or a cluster's address, takes Ray; gpus: what each one takes."""
    if zerogpu.wanted():
        import spaces  # noqa: PLC0415 - only there; it must come before anything that touches CUDA

        return zerogpu.ZeroGpuWorker(pair, spaces.GPU)
    if count > 1 or address is not None:
        from specvl_demo.ui.cluster import RayWorkers  # noqa: PLC0415

        return RayWorkers(count, pair, address, gpus)
    from specvl_demo.ui.worker import ProcessWorker  # noqa: PLC0415

    return ProcessWorker(pair)
