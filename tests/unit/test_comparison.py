"""How the comparison of a race's lanes reaches the page: with its last end, with an example, or for
the trace that the page sends.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specvl_demo.places import EXAMPLES
from specvl_demo.records import LaneRecords
from specvl_demo.report import remarks, trace
from specvl_demo.ui.page import catalog
from specvl_demo.ui.page.handlers import Behaviour, Caller
from specvl_demo.ui.serve.queue import Queue
from specvl_demo.ui.serve.run import Event, Run
from specvl_demo.ui.serve.uploads import Uploads

SCENE = EXAMPLES / "scene.trace.jsonl"


@pytest.fixture(scope="module")
def lanes() -> list[LaneRecords]:
    found, problems = trace.inspect(SCENE)
    assert not problems
    return found


def sent(lanes: list[LaneRecords], ends: int, *last: Event) -> list[Event]:
    """The ends that a run of these lanes sends, of which the worker has sent so many."""
    run = Run(lanes=len(lanes))
    for lane in lanes:
        for record in (lane.begin, *lane.rounds):
            run.put({"k": record.__struct_config__.tag, "record": record})
    for event in [*({"k": "end", "record": lane.end} for lane in lanes[:ends]), *last]:
        run.put(event)
    return [event for event in run.drain() if event["k"] == "end"]


def test_the_last_end_of_a_race_has_the_comparison(lanes: list[LaneRecords]) -> None:
    first, last = sent(lanes, 2, {"k": "done"})
    assert "compared" not in first and last["compared"] == remarks.comparison(lanes)
    assert last["compared"]["lanes"]["sage"]["agreement"]["kind"] == "same"


def test_a_race_whose_worker_was_lost_is_compared_as_far_as_it_came(
    lanes: list[LaneRecords],
) -> None:
    lost: tuple[Event, ...] = ({"k": "error", "text": "lost"}, {"k": "done"})
    first, last = sent(lanes, 1, *lost)
    assert "compared" not in first and last["record"].stop == "error"
    assert last["compared"]["cut"] == remarks.CUT
    (only,) = sent(lanes, 1)
    assert "compared" not in only


def test_examples_and_uploaded_traces_are_compared_as_they_are(
    lanes: list[LaneRecords], tmp_path: Path
) -> None:
    """What is no trace, or was not uploaded, has a sentence instead. No upload is kept."""
    shown = {one["id"]: one["compared"] for one in catalog.examples()["examples"]}
    assert shown["scene"] == remarks.comparison(lanes)
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
