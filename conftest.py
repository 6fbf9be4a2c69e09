"""What holds for every test, those of `lab` and `recipes` too: one thread, no network, no GPU."""

import os

# One thread before torch starts its own: on a shared machine waiting threads cost more than they
# bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Recorded answers are a processor's, and all servers would load to one card: a GPU is seen only by
# the tests of `make test-gpu`, which names it.
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("SPECVL_TESTS_GPU", "")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Reset torch's threads before every test: training changes them, which slows later tests."""
    torch.set_num_threads(1)
