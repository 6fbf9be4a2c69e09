"""The real page over a made-up worker: what the browser tests drive where no model is needed.

python tests/page/synthetic_app.py --port P --folder F [--rate R], with the repository in
PYTHONPATH; R times as fast as the made-up clocks.
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path

from gradio.utils import get_upload_folder
from msgspec.structs import replace
from PIL import Image, ImageDraw
from synthetic import race_records

from specvl_demo import records
from specvl_demo.report.remarks import comparison
from specvl_demo.ui.page import catalog
from specvl_demo.ui.page.app import build, launch_settings
from specvl_demo.ui.page.handlers import Behaviour
from specvl_demo.ui.serve.queue import Queue
from specvl_demo.ui.serve.uploads import Uploads

BUSY = 77
"""The seed of a run, and the tokens of a bench, during which other programs keep the machine
busy.
"""
DOUBTFUL = 78
"""The seed of a run of whose answer the target is not sure."""
LONG = 600
"""Tokens of a run that does not end by itself while a test looks."""


class SyntheticWorker:
    """Plays made-up races on their own clocks."""

    capacity = 1

    def __init__(self, rate: float, pace: float | None) -> None:
        self.rate, self.pace, self.stopped = rate, pace, set()

    def start(self, run, job, put) -> None:
        threading.Thread(target=self._play, args=(run, job, put), daemon=True).start()

    def _play(self, run, job, put) -> None:
        put({"k": "status", "stage": "prefill"})
        # A run that a test wants to find still running lasts, however busy the machine.
        rate = 0.2 if job.max_new_tokens == LONG else self.rate
        spent: dict[str, float] = {}
        rounds: dict[str, list] = {}
        methods = [name for name, _ in job.lanes]
        if job.alone:  # a question of a bench: lane after lane
            for number, name in enumerate(methods):
                for record in race_records([name], min(job.max_new_tokens, 40), job.seed):
                    record = replace(record, lane=f"{name}#{number}")
                    if isinstance(record, records.End) and job.max_new_tokens == BUSY:
                        record = replace(record, load=0.9)
                    put({"k": type(record).__name__.lower(), "record": record})
                time.sleep(0.1)
            if run not in self.stopped:
                put({"k": "forwards", "seconds": [0.1] * len(methods)})
            put({"k": "done"})
            return
        for record in race_records(methods, job.max_new_tokens, job.seed, max(1, len(job.media))):
            kind = type(record).__name__.lower()
            if kind == "begin":
                exact = "exact" if job.dtype == "bfloat16" else ""
                record = replace(record, dtype=job.dtype or record.dtype, exactness=exact)
                if job.prefix:
                    record = replace(record, prefix=records.Prefix(list(job.prefix), "given "))
            if kind == "end" and job.seed == BUSY:
                record = replace(record, load=0.9)
            if kind == "end" and job.seed == DOUBTFUL:
                record = replace(record, confidence=records.Confidence("guessing", 0.31, 0.27))
            if kind == "round":
                lasted = max(0.0, record.clock_s - spent.get(record.lane, 0.0)) / rate
                time.sleep(1 / self.pace if self.pace else lasted)
                spent[record.lane] = record.clock_s
                rounds.setdefault(record.lane, []).append(record)
                if run in self.stopped:
                    break
            put({"k": kind, "record": record, "at": time.time() * 1000})
            if kind == "begin" and job.seed == BUSY:
                put({"k": "load", "others": 0.9})
        if run in self.stopped:
            for name in methods:
                put(
                    {
                        "k": "end",
                        "record": records.End(
                            name, "cancelled", records.fold(rounds.get(name, []))
                        ),
                    }
                )
        put({"k": "done"})

    def stop(self, run) -> None:
        self.stopped.add(run)

    def close(self) -> None:
        pass


def known(folder: Path) -> dict:
    """The real catalog with its first pair declared served, and two examples with made-up recorded
    races.
    """
    picture = folder / "scene.png"
    image = Image.new("RGB", (384, 384), "white")
    draw = ImageDraw.Draw(image)
    draw.ellipse((30, 40, 120, 130), fill=(214, 40, 40))
    draw.rectangle((250, 60, 310, 120), fill=(45, 90, 220))
    draw.polygon([(190, 330), (140, 240), (240, 240)], fill=(40, 160, 60))
    image.save(picture)
    known = catalog.describe("pocket")
    pair = known["pairs"][0]
    pair |= {"available": True, "methods": dict.fromkeys(pair["methods"], True)}
    for pair in known["pairs"]:
        pair["first"] = ["tabed"]
    known["examples"] = [
        example(folder, picture, "scene", "What is in the picture?", ("tabed",), 0),
        example(folder, picture, "lossy", "Describe everything.", ("sage", "lvspec"), 3),
    ]
    return known


def example(
    folder: Path, picture: Path, name: str, question: str, lanes: tuple[str, ...], seed: int
) -> dict:
    trace = folder / f"{name}.trace.jsonl"
    made = list(race_records(("ar", *lanes), 80, seed))
    records.write(trace, made)
    shown = {
        "path": str(picture),
        "url": f"gradio_api/file={picture}",
        "name": "scene.png",
        "kind": "image",
    }
    return {
        "id": name,
        "pair": "pocket",
        "title": name,
        "why": f"why {name}",
        "thumbs": [shown["url"]],
        "media": [shown],
        "question": question,
        "methods": list(lanes),
        "trace": f"gradio_api/file={trace}",
        "compared": comparison(records.gather(made)),
        "machine": "a test machine",
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument(
        "--pace", type=float, help="rounds a second in all, whatever their clocks say"
    )
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    folder = options.folder.resolve()
    files = [folder / name for name in ("scene.png", "scene.trace.jsonl", "lossy.trace.jsonl")]
    folders = [Path(get_upload_folder()), folder]
    queue = Queue(SyntheticWorker(options.rate, options.pace))
    behaviour = Behaviour(known(folder), queue, Uploads(folders[0]), folders, files)
    page = build(behaviour)
    page.launch(
        server_name="127.0.0.1",
        server_port=options.port,
        quiet=True,
        **launch_settings(page, behaviour),
    )


if __name__ == "__main__":
    main()
