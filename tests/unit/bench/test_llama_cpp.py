"""llama.cpp as a baseline: which questions it answers, and with which answers it is compared. Its
binding is replaced by one that repeats a token, since it is no dependency.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specvl_demo import pairs, places
from specvl_demo.bench import cases, llama_cpp, measure
from specvl_demo.bench.cases import Case
from specvl_demo.methods.base import choose
from specvl_demo.pairs import base_weights
from specvl_demo.report.answers import LLAMA_CPP_8, Answer, Repeat
from specvl_demo.serving.loader import Loaded


class Llama:
    """A binding's model that says 7 without end."""

    def __init__(self, path: str, **_: Any) -> None:
        assert Path(path).read_bytes() == b"7"

    def token_eos(self) -> int:
        return 2

    def generate(self, ids: list[int], temp: float) -> Iterator[int]:
        assert ids and temp == 0
        while True:
            yield 7


@pytest.fixture
def binding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / Path(base_weights.SMOLLM2.member).name).write_bytes(b"4")
    monkeypatch.setenv(places.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(base_weights, "checked_gguf", base_weights.gguf_file)

    class How(ctypes.Structure):
        _fields_ = [("ftype", ctypes.c_int), ("allow_requantize", ctypes.c_bool)]

    def quantize(source: bytes, made: bytes, how: Any) -> int:
        assert Path(source.decode()).is_file() and how._obj.allow_requantize
        Path(made.decode()).write_bytes(str(how._obj.ftype).encode())
        return 0

    library = SimpleNamespace(
        Llama=Llama,
        llama_model_quantize=quantize,
        llama_model_quantize_default_params=How,
    )
    monkeypatch.setattr(llama_cpp, "binding", lambda: library)


@pytest.mark.usefixtures("binding")
def test_it_answers_the_questions_without_a_picture(
    loaded: Loaded, options: measure.BenchOptions
) -> None:
    pictured = next(one for one in cases.pocket() if one.shown)
    asked = [pictured, Case("text", "What is red?", (), kind="text")]
    plain = replace(options, choices=[choose("ar")])
    report = measure.bench(loaded, asked, plain, peers=[LLAMA_CPP_8])
    ar, row = report["rows"]
    assert ar["speedup_vs_ar"] == 1.0 and row["method"] == LLAMA_CPP_8
    assert row["tokens_per_s"] > 0 and row["speedup_vs_ar"] > 0 and row["identical_to_ar"] is None
    assert "Q8_0" in row["note"] and "without a picture" in row["note"]


def test_it_is_compared_on_the_questions_it_answered() -> None:
    repeat = Repeat()
    repeat.answers |= {
        "ar": [Answer([1] * 4, 0.0, 0.1, 1.0, 4), Answer([1] * 9, 0.0, 0.1, 1.0, 9)],
        LLAMA_CPP_8: [Answer([7] * 3, 0.0, 0.1, 1.0, 2)],
    }
    repeat.cases[LLAMA_CPP_8].append(0)
    assert repeat.ratio(LLAMA_CPP_8, "ar") == 0.5


def test_it_runs_for_a_pair_that_stands_on_a_known_language_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(llama_cpp, "find_spec", lambda name: object())
    assert [llama_cpp.runs(pairs.find(pair)) for pair in ("photo", "pocket")] == [True, False]
    monkeypatch.setattr(llama_cpp, "find_spec", lambda name: None)
    assert not llama_cpp.runs(pairs.find("photo"))
