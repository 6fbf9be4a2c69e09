"""Who computes for this page: one process beside it, actors of a cluster, or a GPU that a Space lends.

Given what was asked for at the start and the environment, makes the one worker behind the queue.
"""

from __future__ import annotations

from dataclasses import dataclass

from specvl_demo import registry
from specvl_demo.ui.serve import zerogpu
from specvl_demo.ui.serve.queue import Worker


@dataclass(frozen=True)
class Cluster:
    """How many runs are computed at once and where. count above 1, or an address, takes Ray.

    gpus_each: what each worker takes; None: one where this machine has any.
    """

    count: int = 1
    address: str | None = None
    gpus_each: float | None = None


def make(pair: str, cluster: Cluster) -> Worker:
    if zerogpu.wanted():
        import spaces  # noqa: PLC0415 - only there; it must come before anything that touches CUDA

        return zerogpu.ZeroGpuWorker(pair, spaces.GPU)
    if cluster.count > 1 or cluster.address is not None:
        from specvl_demo.ui.serve.cluster import RayWorkers  # noqa: PLC0415

        gpus = cluster.gpus_each
        if gpus is None:
            gpus = 1.0 if registry.detect().gpus else 0.0
        return RayWorkers(cluster.count, pair, cluster.address, gpus)
    from specvl_demo.ui.serve.process_worker import ProcessWorker  # noqa: PLC0415

    return ProcessWorker(pair)
