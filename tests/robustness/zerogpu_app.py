"""A ZeroGPU Space's worker here: the real `spaces` package with its packing, its scheduler and its
move to CUDA mocked. It serves a tiny pair that does not ship.

Prints one JSON line for each of three lent calls, the second of which is stopped, and one for a
call that wants a drafter which was not prepared. Also runs with a CPU build of torch, whose missing
CUDA entry points are filled in.

    python -m tests.robustness.zerogpu_app FOLDER
"""

import asyncio
import json
import multiprocessing
import os
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ |= {"SPACES_ZERO_GPU": "1", "SPACES_ZERO_DEVICE_API_URL": "http://127.0.0.1:9"}
os.environ["ZEROGPU_OFFLOAD_DIR"] = f"{sys.argv[1]}/packed"

import torch

if torch.version.cuda is None:
    torch.version.cuda = "13.0"
    torch._C._cuda_init = lambda: None
    torch.cuda._is_in_bad_fork = bool  # asked in another process, so it must pickle

from specvl_demo.ui.serve import zerogpu

zerogpu.import_spaces()

import spaces.zero  # noqa: E402
import spaces.zero.torch as zero  # noqa: E402
from spaces.zero import client  # noqa: E402
from spaces.zero.torch import patching  # noqa: E402

from specvl_demo import pairs  # noqa: E402
from specvl_demo.decoders import calibration  # noqa: E402
from specvl_demo.media import MediaFile  # noqa: E402
from specvl_demo.pairs import Checkpoint, PairSpec, machine  # noqa: E402
from specvl_demo.question import Question  # noqa: E402
from specvl_demo.ui.serve import workers  # noqa: E402
from specvl_demo.ui.serve.jobs import Job  # noqa: E402
from specvl_demo.ui.serve.queue import Queue  # noqa: E402
from tests.shared.pocketlike import save_pair  # noqa: E402

PAIR = "tiny"
released = []


def lend() -> None:
    """Answer for the Space's scheduler, and bring packed tensors back where they were."""
    ticket = SimpleNamespace(allowToken="t", nvidiaIndex=0, nvidiaUUID="GPU-0", idle=True)
    client.schedule = lambda **asked: ticket
    client.allow = lambda token: None
    client.release = lambda *a, **k: released.append(k)
    client.startup_report = lambda: None
    zero.init = lambda uuid: None
    zero.size = lambda: 0

    def move(callback: object = None) -> None:
        for pack in patching.tensor_packs:
            data, first = Path(pack.path()).read_bytes(), 0
            for tensor, size, aligned in [*sum(pack.batches, []), *pack.big_tensors]:
                raw = torch.frombuffer(bytearray(data[first : first + size]), dtype=torch.uint8)
                whole = torch.empty(0, dtype=tensor.dtype)
                whole.set_(raw.untyped_storage(), 0, tensor.shape, tensor.stride())
                for fake in pack.fakes[tensor]:
                    fake.data = whole
                first += aligned
        for fake, original in list(patching.cuda_aliases.items()):
            if original is not None:
                fake.data = original

    zero.move = move


async def call(queue: Queue, method: str = "chain", stop_after: int | None = None) -> None:
    """One call; stop_after: rounds after which a visitor presses Stop."""
    lanes = (("ar", {}), (method, {}))
    shown = (MediaFile("examples/scene.png"),)
    job = Job(PAIR, lanes, Question("what is this", shown, max_new_tokens=400))
    kinds = []
    errors = []
    stages = []
    async for run, events in queue.events(job):
        kinds += [event["k"] for event in events]
        errors += [event["text"] for event in events if event["k"] == "error"]
        stages += [event["stage"] for event in events if event["k"] == "status"]
        if stop_after and kinds.count("round") >= stop_after:
            queue.stop(run.id)
            stop_after = None
    rounds = kinds.count("round")
    said = {"rounds": rounds, "last": kinds[-1], "errors": errors, "released": len(released)}
    said["stages"] = stages
    print(json.dumps(said), flush=True)  # noqa: T201


def main() -> None:
    """Start the worker as a Space does, then call it. Steps have fixed shapes, as on a GPU."""
    calibration._drawback_of_fixed = calibration._why_graphs_not_worth = lambda *_: None
    lend()
    machine.gpus = lambda: (machine.Gpu("emulated", 24 * 10**9, (9, 0)),)
    folder = save_pair(Path(sys.argv[1]))
    one, other = (Checkpoint(str(folder / name), 1e6, "", True) for name in ("target", "drafter"))
    tiny = PairSpec(PAIR, PAIR, "llava", one, {"small": other})
    pairs.find = lambda _: tiny
    queue = Queue(workers.make_worker(PAIR), 16, 500, 5)
    spaces.zero.startup()
    if not patching.tensor_packs:
        raise RuntimeError("nothing was packed")
    for stop_after in (None, 2, None):
        asyncio.run(call(queue, stop_after=stop_after))
    asyncio.run(call(queue, "eagle2"))
    # A lent call's process waits for the next call, holding this one's output open; and it leaves
    # threads behind that nobody ends.
    for process in multiprocessing.active_children():
        process.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
