"""On a ZeroGPU Space `spaces` comes first, and its real wrappers lend a device call by call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specvl_demo.ui.serve import zerogpu

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


def test_spaces_is_imported_before_anything_asks_for_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`spaces` refuses to start once CUDA was initialised, so it comes before a look at the
    machine; anywhere else it is not imported."""
    (tmp_path / "spaces.py").write_text(
        "import os, sys\n"
        "print('spaces comes', file=sys.stderr)\n"
        "torch = sys.modules.get('torch')\n"
        "assert torch is None or not torch.cuda.is_initialized()\n"
        "assert os.environ['HF_DEACTIVATE_ASYNC_LOAD'] == '1'\n"
        "import specvl_demo.pairs.machine\n"
        "def detect(): sys.exit('imported first')\n"
        "specvl_demo.pairs.machine.detect = detect\n"
    )
    env = {**os.environ, "SPACES_ZERO_GPU": "true", "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "app.py", "--pair", "nobody"]
    done = subprocess.run(
        words, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2 and "nobody" in done.stderr and "spaces comes" in done.stderr
    monkeypatch.delenv("SPACES_ZERO_GPU", raising=False)
    monkeypatch.delitem(sys.modules, "spaces", raising=False)
    zerogpu.prepare()
    assert "spaces" not in sys.modules


def test_the_real_package_lends_three_calls_that_load_nothing_and_all_are_released(
    tmp_path: Path,
) -> None:
    """The second is stopped by its visitor; a fourth wants a drafter that was not prepared, and is
    refused before a GPU is lent. Scheduler and move to CUDA are mocked; see `zerogpu_app`.
    """
    pytest.importorskip("spaces", reason="needs the package spaces, see [dev] in pyproject.toml")
    words = [sys.executable, "-m", "tests.robustness.zerogpu_app", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    first, stopped, third, refused = (
        json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")
    )
    assert not first["errors"] + stopped["errors"] + third["errors"], (
        done.stderr[-3000:] + done.stdout[-3000:]
    )
    assert [call["released"] for call in (first, stopped, third)] == [1, 2, 3]
    assert {call["last"] for call in (first, stopped, third)} == {"done"}
    assert stopped["rounds"] < first["rounds"] == third["rounds"]
    assert not {"loading"} & {*first["stages"], *stopped["stages"], *third["stages"]}
    assert refused["released"] == 3 and "EAGLE-2 head" in refused["errors"][0]
