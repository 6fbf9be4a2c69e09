"""What happens behind the page: runs, Stop, parameters of a method, drawn scenes, answers for programs.

Given what can be chosen, a desk that computes, and the folders in which visitors' files may lie.
Knows nothing of layout, nothing of models.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from specvl_demo.records import Record, validate_trace
from specvl_demo.report.metrics import Lane
from specvl_demo.ui import words
from specvl_demo.ui.desk import BEAT_S, Desk, Run, refusal
from specvl_demo.ui.jobs import Job, read_job

Catalog = dict[str, Any]


class Behaviour:
    """The page's handlers.

    panel: what can be set on (pair, method, settings). draw: draws a scene from a description (None: any)
    into a file and says what it drew. folders: where files of visitors and examples lie. files: what else a
    page may fetch.
    """

    def __init__(
        self,
        catalog: Catalog,
        panel: Callable[[str, str, Mapping[str, Any]], dict[str, Any]],
        desk: Desk,
        folders: Sequence[Path],
        draw: Callable[[Any], tuple[Path, dict[str, Any]]],
        files: Sequence[Path] = (),
    ) -> None:
        self.catalog = catalog
        self.files = list(files)
        self._panel = panel
        self._desk = desk
        self._folders = list(folders)
        self._draw = draw

    async def run(self, asked: Any, visit: str | None = None) -> AsyncIterator[str]:
        """A race for what a page asked; a request that cannot be served ends in one sentence.

        visit: whose conversation it belongs to, until `leave`.
        """
        try:
            job = replace(self._job(asked), visit=visit)
        except ValueError as fault:
            yield Run().pack(refusal(str(fault)))
            return
        async with aclosing(self._desk.stream(job)) as stream:
            async for batch in stream:
                yield batch

    async def answer(self, asked: Any, baseline: bool) -> AsyncIterator[list[Lane] | None]:
        """None every BEAT_S, last the lanes of a whole race, for a program.

        ValueError with the sentence that a page would show.
        """
        records: list[Record] = []
        told = 0.0
        async with aclosing(self._desk.events(self._job(asked, baseline))) as running:
            async for _, events in running:
                for event in events:
                    if event["k"] == "error":
                        raise ValueError(event["text"])
                    if "record" in event:
                        records.append(event["record"])
                if time.monotonic() - told > BEAT_S:
                    told = time.monotonic()
                    yield None
        yield [Lane(*lane) for lane in validate_trace(records).values()]

    def stop(self, run: Any) -> None:
        """The visitor's Stop; unknown runs are nobody's."""
        if isinstance(run, str):
            self._desk.stop(run)

    def leave(self, visit: str) -> None:
        """A page was closed."""
        self._desk.forget(visit)

    def batches(self, run: Any) -> list[str]:
        """All that was sent of a run, for a page that missed some."""
        return self._desk.batches(run) if isinstance(run, str) else []

    def panel(self, asked: Any) -> dict[str, Any]:
        """What can be set on a method with the parts asked for; {'problem': sentence} where it is unknown."""
        asked = asked if isinstance(asked, Mapping) else {}
        settings = asked.get("settings")
        try:
            return self._panel(
                str(asked.get("pair")),
                str(asked.get("method")),
                settings if isinstance(settings, Mapping) else {},
            )
        except ValueError as fault:
            return {"problem": str(fault)}

    def scene(self, description: Any) -> dict[str, Any]:
        """A drawn scene as a file that a question may then use; {'problem': sentence} where it cannot be."""
        try:
            path, scene = self._draw(description)
        except ValueError as fault:
            return {"problem": str(fault)}
        except OSError:
            return {"problem": words.DISK_FULL}
        return {"path": str(path), "url": f"gradio_api/file={path}", "name": path.name, "scene": scene}

    def _job(self, asked: Any, baseline: bool = True) -> Job:
        pairs = [pair["id"] for pair in self.catalog["pairs"] if pair["available"]]
        names = [method["name"] for method in self.catalog["methods"]]
        return read_job(asked, pairs, names, self._folders, baseline)
