"""Nothing of a visitor's question stays in the process that computed it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from PIL import Image

from specvl_demo import pairs
from specvl_demo.core.types import Prompt
from specvl_demo.media import MediaFile
from specvl_demo.pairs import Checkpoint, PairSpec
from specvl_demo.question import Question
from specvl_demo.serving import loader
from specvl_demo.ui.serve import decoding
from specvl_demo.ui.serve.jobs import Job
from tests.pocketlike import save_pair


@pytest.mark.parametrize("left", [False, True])
def test_no_prompt_is_left_when_a_run_is_over(
    left: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of one that ended nor of one whose visitor left in the middle."""
    Image.new("RGB", (64, 64), "red").save(tmp_path / "a.png")
    target = Checkpoint(str(save_pair(tmp_path) / "target"), 1e6, "", True)
    made = loader.load(PairSpec("light", "light", "llava", target, {}), [])
    monkeypatch.setattr(pairs, "find", lambda _: made.pair)
    monkeypatch.setattr(loader, "load", lambda *_, **__: made)
    lanes = (("ar", {}), ("ngram", {}))
    shown = (MediaFile(str(tmp_path / "a.png")),)
    job = Job("light", lanes, Question("what is this", shown, max_new_tokens=6))
    running = decoding.Engine()(job, bool)
    kinds = []
    for event in running:
        kinds.append(event["k"])
        if left and event["k"] == "round":
            break
    running.close()
    assert "round" in kinds and "error" not in kinds
    gc.collect()
    assert not [one for one in gc.get_objects() if type(one) is Prompt]
