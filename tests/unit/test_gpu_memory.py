"""Memory of a GPU that there is none of: how weights come there, and how its faults are told."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from transformers import PreTrainedModel, modeling_utils

from specvl_demo.core.faults import lacks_memory, loses_device
from specvl_demo.pairs.fitting import LoadPlan
from specvl_demo.vlm import loading, outlines


def test_the_library_reserves_no_memory_for_all_weights_at_once(monkeypatch):
    """Inside one block, what is freed when matrices are joined could not be given back."""
    reserve = MagicMock()

    def from_pretrained(*_: object, **__: object) -> tuple[object, object]:
        modeling_utils.caching_allocator_warmup()
        return MagicMock(hf_device_map={}), None

    assert "caching_allocator_warmup" in PreTrainedModel._load_pretrained_model.__code__.co_names
    monkeypatch.setattr(modeling_utils, "caching_allocator_warmup", reserve)
    library = SimpleNamespace(from_pretrained=from_pretrained)
    for name, stand_in in (("auto_class", library), ("outline_model", None)):
        monkeypatch.setattr(outlines, name, lambda *_, made=stand_in: made)
    monkeypatch.setattr(outlines, "refuse_misfits", lambda *_: None)
    loading.load_model(Path(), LoadPlan("bfloat16", "cuda:0"), "a model")
    assert modeling_utils.caching_allocator_warmup is reserve and not reserve.called


@pytest.mark.parametrize(
    ("words", "full", "lost"),
    [
        ("CUDA error: out of memory", True, False),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True, False),
        ("CUDA error: no kernel image is available for execution on the device", False, False),
        ("CUDA error: an illegal memory access was encountered", False, True),
    ],
)
def test_only_what_ends_a_device_is_told_as_its_end(words: str, full: bool, lost: bool):
    for fault in (torch.AcceleratorError(words), RuntimeError(f"{words}\nand more")):
        assert (lacks_memory(fault), loses_device(fault)) == (full, lost)
    assert not loses_device(ValueError(words)) and lacks_memory(MemoryError())
