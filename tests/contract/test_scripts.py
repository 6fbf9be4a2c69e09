"""The page's scripts outside a browser (`node --test tests/js`), held to what the program says of
the same records.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from specvl_demo.records import LaneRecords, Record
from specvl_demo.report import metrics, remarks
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
        "records": [msgspec.to_builtins(record) for record in flat(race)],
        "compared": remarks.comparison(race),
        "depths": metrics.accepted_by_depth(race[1].rounds),
    }


@pytest.mark.skipif(node() is None, reason="needs a JavaScript engine: node, or playwright's own")
def test_the_pages_scripts_say_what_the_program_says(tmp_path: Path) -> None:
    lane, ar = timed()
    still = LaneRecords(lane.begin, lane.rounds)
    lists = [(ar, lane), (ar, cut(lane, 3)), (ar, still), *((ar, lane) for lane, ar in races())]
    told = msgspec.json.encode([told_of(race) for race in lists])
    (tmp_path / "races.json").write_bytes(told)
    done = subprocess.run(
        [str(node()), "--test", *map(str, sorted((ROOT / "tests" / "js").glob("*.test.js")))],
        env=os.environ | {"SPECVL_FIXTURES": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
