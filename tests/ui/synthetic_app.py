"""The real page over a made-up worker: what the browser tests drive where no model is needed.

python tests/ui/synthetic_app.py --port P --folder F [--rate R], with the repository in PYTHONPATH;
R times as fast as the made-up clocks.
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path

from PIL import Image, ImageDraw
from synthetic import race_records

from specvl_demo import records
from specvl_demo.report.declared import declarations
from specvl_demo.ui.behaviour import Behaviour
from specvl_demo.ui.desk import Desk
from specvl_demo.ui.jobs import MOST_FILES, MOST_TEXT
from specvl_demo.ui.page import MOST_BYTES, build, launch_settings

METHODS = ("ar", "tabed", "sage", "lvspec")


class SyntheticWorker:
    """Plays made-up races on their own clocks."""

    def __init__(self, rate: float) -> None:
        self.rate, self.stopped = rate, set()

    def start(self, run, job, put) -> None:
        threading.Thread(target=self._play, args=(run, job, put), daemon=True).start()

    def _play(self, run, job, put) -> None:
        put({"k": "status", "stage": "prefill"})
        spent: dict[str, float] = {}
        rounds: dict[str, list] = {}
        methods = [name for name, _ in job.lanes]
        for record in race_records(methods, min(job.max_new_tokens, 600), job.seed, max(1, len(job.media))):
            kind = type(record).__name__.lower()
            if kind == "round":
                time.sleep(max(0.0, record.clock_s - spent.get(record.lane, 0.0)) / self.rate)
                spent[record.lane] = record.clock_s
                rounds.setdefault(record.lane, []).append(record)
                if run in self.stopped:
                    break
            put({"k": kind, "record": record})
        if run in self.stopped:
            for name in methods:
                put(
                    {"k": "end", "record": records.End(name, "cancelled", records.fold(rounds.get(name, [])))}
                )
        put({"k": "done"})

    def stop(self, run) -> None:
        self.stopped.add(run)

    def close(self) -> None:
        pass


def catalog(folder: Path) -> dict:
    picture = folder / "scene.png"
    image = Image.new("RGB", (384, 384), "white")
    draw = ImageDraw.Draw(image)
    draw.ellipse((30, 40, 120, 130), fill=(214, 40, 40))
    draw.rectangle((250, 60, 310, 120), fill=(45, 90, 220))
    draw.polygon([(190, 330), (140, 240), (240, 240)], fill=(40, 160, 60))
    image.save(picture)
    trace = folder / "example.trace.jsonl"
    records.write(trace, race_records(("ar", "tabed"), 80))
    lossy = folder / "lossy.trace.jsonl"
    records.write(lossy, race_records(("ar", "sage", "lvspec"), 80, seed=3))
    url = lambda path: f"gradio_api/file={path}"  # noqa: E731
    media = [{"path": str(picture), "url": url(picture), "name": "scene.png", "kind": "image"}]
    params = [
        {
            "key": "gamma",
            "kind": "int",
            "default": 5,
            "min": 1,
            "max": 16,
            "title": "Block length γ",
            "help": "Tokens drafted in a round.",
        },
        {
            "key": "rule",
            "kind": "choice",
            "default": "grid",
            "choices": ["grid", "kld"],
            "title": "Weight rule",
            "help": "How weights are learnt.",
        },
        {
            "key": "batched",
            "kind": "bool",
            "default": True,
            "title": "One batch",
            "help": "All views in one forward.",
        },
    ]
    return {
        "version": "test",
        "machine": "no machine",
        "pairs": [
            {
                "id": "synthetic",
                "title": "Made-up pair",
                "available": True,
                "help": "Invented records.",
                "reason": "",
                "scenes": True,
                "methods": {"ar": True, "tabed": True, "sage": True, "lvspec": True},
            },
            {
                "id": "huge",
                "title": "Huge pair",
                "available": False,
                "help": "",
                "reason": "Needs 160 GB.",
                "scenes": False,
                "methods": {},
            },
        ],
        "methods": [
            {
                "name": "ar",
                "title": "Autoregressive",
                "lossless": True,
                "help": "The plain model.",
                "params": [],
                "charts": [],
            },
            {
                "name": "tabed",
                "title": "TABED",
                "lossless": True,
                "help": "An ensemble of views.",
                "params": params,
                "charts": declarations("tabed"),
            },
            {
                "name": "sage",
                "title": "SAGE",
                "lossless": True,
                "help": "An adaptive tree.",
                "params": params[:1],
                "charts": declarations("sage"),
            },
            {
                "name": "lvspec",
                "title": "LVSpec",
                "lossless": False,
                "help": "Loose verification.",
                "params": [],
                "charts": declarations("lvspec"),
            },
        ],
        "examples": [
            {
                "id": "scene",
                "title": "A scene",
                "why": "All objects",
                "thumb": url(picture),
                "media": media,
                "question": "What is in the picture?",
                "methods": ["tabed"],
                "trace": url(trace),
                "machine": "a test machine",
            },
            {
                "id": "lossy",
                "title": "Relaxed",
                "why": "A relaxed method",
                "thumb": url(picture),
                "media": media,
                "question": "Describe everything.",
                "methods": ["sage", "lvspec"],
                "trace": url(lossy),
                "machine": "a test machine",
            },
        ],
        "defaults": {"methods": ["tabed"], "sampling": {}},
        "limits": {
            "files": MOST_FILES,
            "bytes": MOST_BYTES,
            "question": MOST_TEXT,
            "picture_types": [".png", ".jpg", ".jpeg", ".webp"],
            "clip_types": [".mp4", ".webm", ".mov"],
        },
        "scene": {
            "kinds": ["circle", "square"],
            "colours": {"red": "#d62828", "blue": "#2d5adc"},
            "sizes": ["small", "large"],
            "places": [f"place {i}" for i in range(9)],
            "grounds": {"white": "#fafafa", "navy": "#14193c"},
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    folder = options.folder.resolve()
    known = catalog(folder)
    files = [folder / name for name in ("scene.png", "example.trace.jsonl", "lossy.trace.jsonl")]
    desk = Desk(SyntheticWorker(options.rate))
    page = build(Behaviour(lambda: known, desk, [folder], lambda _: folder / "scene.png", files))
    page.launch(server_name="127.0.0.1", server_port=options.port, quiet=True, **launch_settings())


if __name__ == "__main__":
    main()
