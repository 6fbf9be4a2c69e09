"""The page's scripts outside a browser (`node --test tests/js`), held to what the program says of
the same records.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from specvl_demo import records
from specvl_demo.places import EXAMPLES
from specvl_demo.records import LaneRecords, Record
from specvl_demo.report import metrics, remarks, trace
from tests.robustness.test_traces_fuzz import HOSTILE, mutant, recorded
from tests.unit.test_report import cut, races, timed

ROOT = Path(__file__).resolve().parents[2]


def node() -> str | None:
    """A JavaScript engine: the one the browser tests bring, or the system's."""
    try:
        import playwright
    except ImportError:
        return shutil.which("node")
    brought = Path(playwright.__file__).parent / "driver" / "node"
    return str(brought) if brought.exists() else shutil.which("node")


def flat(race: tuple[LaneRecords, ...]) -> list[Record]:
    return [record for lane in race for record in (lane.begin, *lane.rounds, lane.end) if record]


def told_of(race: tuple[LaneRecords, ...]) -> dict[str, object]:
    """Return a race's records, and what the program says of its two lanes."""
    return {
        "text": "".join(records.dumps(record) + "\n" for record in flat(race)),
        "records": [msgspec.to_builtins(record) for record in flat(race)],
        "compared": remarks.comparison(race),
        "depths": metrics.accepted_by_depth(race[1].rounds),
    }


def traces() -> list[tuple[str, bool]]:
    """Return traces, damaged ones for the most part, and whether each is sound."""
    texts = [mutant(seed) for seed in range(400)]
    texts += [data.decode("utf-8", "replace") for data in HOSTILE.values()]
    texts += ["\n".join(map(json.dumps, race)) for race in recorded()]
    texts += [path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.trace.jsonl")]
    return [(text, not trace.inspect_text(text)[1]) for text in texts]


@pytest.mark.skipif(node() is None, reason="needs a JavaScript engine: node, or playwright's own")
def test_the_pages_scripts_say_what_the_program_says(tmp_path: Path) -> None:
    """And what the page sends of a race is enough to compare its lanes: the comparison is that of
    the whole trace.
    """
    lane, ar = timed()
    still = LaneRecords(lane.begin, lane.rounds)
    lists = [(ar, lane), (ar, cut(lane, 3)), (ar, still), *((ar, lane) for lane, ar in races())]
    for name, value in {"races": [told_of(race) for race in lists], "traces": traces()}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(msgspec.to_builtins(value)))
    done = subprocess.run(
        [str(node()), "--test", *map(str, sorted((ROOT / "tests" / "js").glob("*.test.js")))],
        env=os.environ | {"SPECVL_FIXTURES": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    for texts in json.loads((tmp_path / "briefs.json").read_text()):
        whole, brief, written = (trace.inspect_text(text) for text in texts)
        assert not (whole[1] or brief[1] or written[1])
        begin = brief[0][0].begin
        assert not begin.notes.media and not begin.prompt
        comparisons = [remarks.comparison(lanes) for lanes, _ in (whole, brief, written)]
        assert comparisons[0] == comparisons[1] == comparisons[2]
