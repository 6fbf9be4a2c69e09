"""llama.cpp as an independent baseline, where its Python binding is installed.

It runs the language model under the photo pair: the same architecture, but without what was trained
on photographs, so it answers only questions without a picture, in its own words. Its speed is what
is compared. Its files are made once from the package's GGUF file, by its own quantizer, and kept in
the cache.
"""

from __future__ import annotations

import ctypes
import os
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from specvl_demo.core.engine import Request
from specvl_demo.pairs import PairSpec, base_weights
from specvl_demo.report.answers import LLAMA_CPP_8, LLAMA_CPP_16, Answer

FORMATS = {LLAMA_CPP_16: ("F16", 1), LLAMA_CPP_8: ("Q8_0", 7)}
"""The format of the weights of each row: its name, and its number in llama.cpp's `llama_ftype`."""


def runs(pair: PairSpec) -> bool:
    """Whether there is a binding, and a language model that it can load."""
    return pair.target.base is not None and find_spec("llama_cpp") is not None


def note(name: str) -> str:
    return (
        f"llama.cpp runs the pair's language model in {FORMATS[name][0]}, untrained on photographs:"
        " compared on the questions without a picture, whose answers are its own."
    )


def binding() -> Any:
    return import_module("llama_cpp")


class LlamaCpp:
    """The language model in one format."""

    def __init__(self, name: str) -> None:
        file = _file(*FORMATS[name])
        threads = torch.get_num_threads()
        self._model = binding().Llama(
            str(file), n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        self._eos = self._model.token_eos()

    def answer(self, request: Request) -> Answer | None:
        """Return a greedy answer to the same token ids; None to a question with pictures."""
        if bool(request.prompt.visual.any()):
            return None
        ids, times = [], []
        started = time.perf_counter()
        for token in self._model.generate(request.prompt.ids.tolist(), temp=0.0):
            ids.append(int(token))
            times.append(time.perf_counter())
            if token == self._eos or len(ids) == request.max_new_tokens:
                break
        first_s = times[0] - started
        return Answer(ids, first_s, first_s, times[-1] - times[0], len(ids) - 1)


def _file(title: str, number: int) -> Path:
    """Return the model's file in a format, made from the package's 4-bit one if missing."""
    library, source = binding(), base_weights.checked_gguf()
    kept = source.with_name(source.name.replace("Q4_1", title))
    if not kept.is_file():
        with base_weights.fresh_folder() as folder:
            how = library.llama_model_quantize_default_params()
            how.ftype, how.allow_requantize = number, True
            made = folder / kept.name
            paths = os.fsencode(source), os.fsencode(made)
            if library.llama_model_quantize(*paths, ctypes.byref(how)):
                raise ValueError(f"llama.cpp could not make {kept.name} from {source}.")
            made.replace(kept)
    return kept
