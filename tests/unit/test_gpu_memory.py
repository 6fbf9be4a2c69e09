"""Memory of a GPU that there is none of: how weights come there, and how its faults are told."""

from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from transformers import PreTrainedModel, modeling_utils

from specvl_demo.core.faults import lacks_memory, loses_device
from specvl_demo.pairs.fitting import LoadPlan
from specvl_demo.vlm import loading, outlines
from tests.shared.refusals import refuses


@pytest.fixture
def library(monkeypatch) -> MagicMock:
    """The class by which the library loads a model, which loads nothing."""
    made = MagicMock()
    made.from_pretrained.return_value = MagicMock(hf_device_map={}), None
    for name, stand_in in (("auto_class", made), ("outline_model", None), ("refuse_misfits", None)):
        monkeypatch.setattr(outlines, name, lambda *_, made=stand_in: made)
    return made


def test_the_library_reserves_no_memory_for_all_weights_at_once(library: MagicMock, monkeypatch):
    """Inside one block, what is freed when matrices are joined could not be given back."""
    reserve = MagicMock()
    loaded = library.from_pretrained.return_value

    def from_pretrained(*_: object, **__: object) -> object:
        modeling_utils.caching_allocator_warmup()
        return loaded

    library.from_pretrained.side_effect = from_pretrained
    assert "caching_allocator_warmup" in PreTrainedModel._load_pretrained_model.__code__.co_names
    monkeypatch.setattr(modeling_utils, "caching_allocator_warmup", reserve)
    loading.load_model(Path(), LoadPlan("bfloat16", "cuda:0"), "a model")
    assert modeling_utils.caching_allocator_warmup is reserve and not reserve.called


def test_a_model_that_several_gpus_do_not_hold_is_not_left_to_main_memory(library: MagicMock):
    plan = LoadPlan("bfloat16", "cuda:0", {0: 9, 1: 9})
    loading.load_model(Path(), plan, "a model")
    given = library.from_pretrained.call_args.kwargs
    assert (given["device_map"], given["max_memory"]) == ("auto", plan.split)
    library.from_pretrained.return_value = MagicMock(hf_device_map={"layer": "cpu"}), None
    refuses("a model does not fit on 2 GPUs", loading.load_model, Path(), plan, "a model")


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
