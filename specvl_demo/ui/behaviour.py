"""What happens behind the page: the catalog, a run, Stop, a drawn scene.

Given what can be chosen, a desk that computes, and the folders in which visitors' files may lie.
Knows nothing of layout, nothing of models.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from specvl_demo.ui.desk import Desk, failure
from specvl_demo.ui.jobs import read_job

Catalog = dict[str, Any]


class Behaviour:
    """The page's handlers.

    describe: gives the catalog, JSON-safe. draw: draws a scene from a description (None: any) into a file.
    folders: where files of visitors and examples lie. files: what a page may fetch, examples say.
    """

    def __init__(
        self,
        describe: Callable[[], Catalog],
        desk: Desk,
        folders: Sequence[Path],
        draw: Callable[[Any], Path],
        files: Sequence[Path] = (),
    ) -> None:
        self._describe = describe
        self._desk = desk
        self._folders = list(folders)
        self._draw = draw
        self.files = list(files)

    def catalog(self) -> Catalog:
        """What can be chosen here; asked once by every page."""
        return self._describe()

    async def run(self, asked: Any) -> AsyncIterator[str]:
        """A race for what a page asked; a request that cannot be served ends in one sentence."""
        known = self._describe()
        try:
            job = read_job(
                asked,
                [pair["id"] for pair in known["pairs"] if pair["available"]],
                [method["name"] for method in known["methods"]],
                self._folders,
            )
        except ValueError as fault:
            yield failure(str(fault))
            return
        async for batch in self._desk.stream(job):
            yield batch

    def stop(self, run: Any) -> None:
        """The visitor's Stop; unknown runs are nobody's."""
        if isinstance(run, str):
            self._desk.stop(run)

    def batches(self, run: Any) -> list[str]:
        """All that was sent of a run, for a page that missed some."""
        return self._desk.batches(run) if isinstance(run, str) else []

    def scene(self, description: Any) -> dict[str, str]:
        """A drawn scene as a file that a question may then use."""
        path = self._draw(description)
        return {"path": str(path), "url": f"gradio_api/file={path}", "name": path.name}
