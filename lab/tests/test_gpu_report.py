"""`python -m lab.gpu` on a machine without a GPU: the same parts, in tiny sizes."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from lab.gpu import document, isolated, parts, steps
from lab.gpu.isolated import Aside, Message, Part, Setting, Started
from specvl_demo.decoders.huggingface import HFDecoder
from tests.shared import zoo
from tests.shared.server import run_python


@pytest.mark.slow
@pytest.mark.timeout(1300)
def test_the_gpu_report_has_every_part_and_no_fault(tmp_path: Path):
    out = tmp_path / "out.json"
    run_python("-m", "lab.gpu", "--tiny", "--minutes", "20", "--out", out, timeout=1230)
    record = json.loads(out.read_text(encoding="utf-8"))
    assert [each["part"] for each in record["parts"] if each["fault"]] == []
    assert set(parts.PARTS) <= {each["part"] for each in record["parts"]}
    races = [row for each in record["parts"] for row in each["rows"] if "lossless" in row]
    assert {"ar", "chain", "sage", "tabed", "dream", "hivis", "hf-assisted"} <= {
        row["method"] for row in races
    }
    exact = [row for row in races if row["lossless"] and row.get("gap_nats") is None]
    assert exact and all(row["identical_to_ar"] and "range of 1" in row for row in exact)
    assert "tokens/s" in document.short(record)


def parts_that_fail(_: Setting, without: frozenset[str]) -> Iterator[Message]:
    for name in ("first", "dies", "last"):
        if name not in without:
            yield Started(name)
            if name == "dies":
                os._exit(7)
            yield {"method": name}
            yield Aside("another", {"of": name})
    if "last" not in without:
        raise ValueError("it broke\nat the end")


def parts_that_hang(_: Setting, without: frozenset[str]) -> Iterator[Message]:
    yield {"method": "before"}
    time.sleep(60)


@pytest.mark.slow
def test_what_ends_a_process_ends_only_its_step(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(isolated, "QUIET_S", 15.0)
    failing = [Part("fails", parts_that_fail), Part("hangs", parts_that_hang)]
    *_, outcomes = isolated.run(failing, Setting(tmp_path, False), 90.0, lambda text: None)
    fails, another, hangs = outcomes
    assert [row["method"] for row in fails.rows[:3]] == ["first", "dies", "last"]
    assert "code 7" in fails.rows[1]["fault"] and "code 7" in (fails.fault or "")
    assert fails.rows[2].get("fault") in (None, "ValueError: it broke at the end")
    assert another.rows == [{"of": "first"}, {"of": "last"}]
    assert hangs.rows == [{"method": "before"}] and "too long" in (hangs.fault or "")


def test_every_row_has_the_acceptance_length_of_its_table(monkeypatch):
    """Also after others, and in the process that goes on when one has ended."""
    lengths: list[float] = []
    monkeypatch.setattr(parts.models, "set_tau", lambda *given: lengths.append(given[-1]))
    monkeypatch.setattr(parts.choosing, "supported_methods", lambda pair: parts.LANES)
    for way in ("race", "exact", "peer", "watched"):
        monkeypatch.setattr(parts.Asking, way, lambda *_, **__: lengths.pop())
    for step in (*parts.steps_of_shape("", parts.HEADS, parts.PEERS), *parts.steps_compiled()):
        if step.name in (*parts.LANES, *parts.PEERS, parts.COMPILED):
            length = step.table.partition("at τ ")[2][:3]
            assert list(step.rows(MagicMock())) == [float(length or parts.TAU)], step.table


def test_the_page_is_its_record():
    record = json.loads(document.PAGE.with_suffix(".json").read_text(encoding="utf-8"))
    assert document.PAGE.read_text(encoding="utf-8") == document.text(record)


def test_the_whole_report_takes_six_minutes_at_most():
    assert "left out" not in isolated.planned([*parts.PARTS.values()], 360)


def test_the_page_tells_where_no_step_is_exact_and_how_far_times_are_apart():
    row = {"exactness": "equal up to rounding (bfloat16)", "spread": 0.25}
    table = document.table([row])
    assert row["exactness"] in table and "0.25" in table


def test_a_step_reads_the_layers_the_head_and_the_cache():
    model = zoo.build("llava")[0]
    decoder = HFDecoder(model)
    (cost,) = steps.costs(decoder, "t", steps.Bounds(1e9, 1e12), 50, (1,), repeats=2)
    cached = 2 * zoo.LAYERS * 2 * 16 * 51 * 4  # keys and values, layers, heads, width, rows, bytes
    assert cost["bytes"] == decoder.n_weights * 4 + cached
    assert cost["bound_ms"] == pytest.approx(cost["bytes"] / 1e9 * 1e3)
