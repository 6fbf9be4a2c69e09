"""Programs that import other libraries before this one, also where these fail by themselves."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.page.conftest import ROOT

FIRST = (
    "import transformers",
    "with suppress(ImportError): from transformers import AutoProcessor",
    "with suppress(ImportError, RuntimeError): import torchvision",
)


@pytest.mark.slow
@pytest.mark.parametrize("first", FIRST)
def test_processors_can_be_imported_whatever_was_imported_before(first: str) -> None:
    """A torchvision whose operators do not load fails until this package is imported."""
    code = (
        f"from contextlib import suppress\n{first}\nimport specvl_demo\n"
        "from transformers import AutoProcessor, LlavaForConditionalGeneration"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
