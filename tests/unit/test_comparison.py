"""How the comparison of a race's lanes reaches the page: with an example, or for the trace that the
page sends; a live race ends with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from specvl_demo.places import EXAMPLES
from specvl_demo.records import End, LaneRecords
from specvl_demo.report import remarks, trace
from specvl_demo.ui.page import catalog
from specvl_demo.ui.page.handlers import Behaviour, Caller
from specvl_demo.ui.serve.queue import Event, Queue, Run
from specvl_demo.ui.serve.uploads import Uploads

SCENE = EXAMPLES / "scene.trace.jsonl"


@pytest.fixture(scope="module")
def lanes() -> list[LaneRecords]:
    found, problems = trace.inspect(SCENE)
    assert not problems
    return found


def ends(lanes: list[LaneRecords], n: int, *last: Event) -> list[End]:
    """The ends that a run of these lanes sends, of which the worker has sent so many."""
    run = Run(lanes=len(lanes))
    for lane in lanes:
        for record in (lane.begin, *lane.rounds):
            run.add({"k": record.__struct_config__.tag, "record": record})
    for event in [*({"k": "end", "record": lane.end} for lane in lanes[:n]), *last]:
        run.add(event)
    return [event["record"] for event in run.events if event["k"] == "end"]


def test_a_race_whose_worker_was_lost_ends_its_lanes_with_what_they_had(
    lanes: list[LaneRecords],
) -> None:
    lost: tuple[Event, ...] = ({"k": "error", "text": "lost"}, {"k": "done"})
    whole, cut = ends(lanes, 1, *lost)
    assert whole == lanes[0].end
    assert (cut.stop, cut.message) == ("error", "lost") and cut.totals == lanes[1].end.totals
    assert ends(lanes, 2, *lost) == [lane.end for lane in lanes]


def test_examples_and_uploaded_traces_are_compared_as_they_are(
    lanes: list[LaneRecords], tmp_path: Path
) -> None:
    """What is no trace, or was not uploaded, has a sentence instead. No upload is kept."""
    shown = {one["id"]: one["compared"] for one in catalog.examples()["examples"]}
    assert shown["scene"] == msgspec.to_builtins(remarks.comparison(lanes))
    uploads = Uploads(tmp_path)
    behaviour, caller = Behaviour({}, Queue(None), uploads, [tmp_path]), Caller(client="c")

    def compared(content: str) -> dict[str, Any]:
        path = tmp_path / "sent" / "race.trace.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
        uploads.release("c", 0, [str(path)])
        found = behaviour.compared(str(path), caller)
        assert not path.exists()
        return found

    text = SCENE.read_text(encoding="utf-8")
    assert compared(text) == shown["scene"]
    for other in ("", "{}", text.replace('"n_tokens":', '"n_tokens":1')):
        assert "problem" in compared(other)
    for foreign in (None, [text], str(SCENE)):
        assert "problem" in behaviour.compared(foreign, caller) and SCENE.exists()
