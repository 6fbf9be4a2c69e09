"""What methods note of their rounds, and what a round costs, on tiny random models."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specvl_demo.core.engine import Lane, SharedPrefill, race
from specvl_demo.methods.base import Models, build_parts, choose
from specvl_demo.records import Begin, Round
from specvl_demo.vlm.target import VLMTarget
from tests.shared.heads import built
from tests.shared.tiny import EOS, ask, tiny_prompt

PROMPTS = {"picture": tiny_prompt(seed=1), "two pictures": tiny_prompt(2, seed=2)}


class Waits(TorchDispatchMode):
    """Counts numbers that the host reads and choices by a mask, whose number it must know."""

    n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        by_mask = name.startswith(("aten::index.", "aten::index_put")) and any(
            arg is not None and arg.dtype == torch.bool for arg in args[1]
        )
        reads = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal")
        self.n += by_mask or name.startswith(reads)
        return func(*args, **(kwargs or {}))


class Reads(TorchFunctionMode):
    """Counts, as waits, whole tensors that are read and choices by a list, which no dispatch shows.

    The class of tensors itself is not changed: torch would then take every tensor for a sequence.
    """

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_list = func is torch.Tensor.__getitem__ and any(
            isinstance(one, list) for one in (args[1] if isinstance(args[1], tuple) else (args[1],))
        )
        self._waits.n += by_list or func is torch.Tensor.tolist
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("method", "most"),
    [
        *(("ar", 2), ("chain", 4), ("tabed", 4), ("tree", 5), ("sage", 5)),
        *(("eagle2", 4), ("hivis", 4), ("dream", 4)),
    ],
)
def test_a_round_seldom_waits_for_the_device(method: str, most: int, models: Any, monkeypatch):
    """In half precision, as on a GPU: without a look at near ties."""
    monkeypatch.setattr(VLMTarget, "recomputes", False)
    waits = Waits()
    step = Lane.step

    def watched(lane: Lane) -> Any:
        with waits, Reads(waits):
            return step(lane)

    monkeypatch.setattr(Lane, "step", watched)
    kinds = ("eagle2", "hivis", "dream")
    heads = {kind: built(kind, models.target.decoder) for kind in kinds}
    both = Models(models.target, {**models.drafters, **heads}, models.words)
    shared = SharedPrefill(ask(models.target, PROMPTS["picture"]))
    records = list(race([Lane(method, build_parts(choose(method), both), shared)]))
    n_rounds = sum(isinstance(record, Round) for record in records)
    assert n_rounds >= 2 and n_rounds < waits.n <= most * n_rounds, waits.n / n_rounds


@pytest.mark.parametrize("method", ["tabed", "sage", "specvlm"])
def test_a_record_says_what_each_view_of_the_drafter_saw(method: str, answers: Callable[..., Any]):
    settings = {"views": "multimodal+text-only+caption+pooled"} if method == "tabed" else {}
    begin = answers(method, PROMPTS["two pictures"], settings)[1][0]
    assert isinstance(begin, Begin)
    seen = {view.view: view for view in begin.seen}
    visual = range(begin.spans[0].start, begin.spans[-1].stop)
    kept = {name: sum(i in visual for i in view.index) for name, view in seen.items()}
    if method == "tabed":
        words = {name: view.words for name, view in seen.items() if view.words}
        # the fixture's token_texts spells ids; 5 is its newline, 6 and 7 stand before a caption
        assert words["text-only"] == "5 "
        assert words["caption"].startswith("6 7 ") and len(words["caption"].split()) > 2
        assert words.keys() == {"text-only", "caption"}
        assert kept == {"multimodal": 18, "text-only": 0, "caption": 0, "pooled": 8}
    else:
        assert kept["pruned"] == {"sage": 3, "specvlm": 1}[method]
        assert all(
            i not in visual or begin.spans[0].start <= i < begin.n_prompt
            for i in seen["pruned"].index
        )


@torch.inference_mode()
def test_captions_are_the_drafters_own_greedy_words(models: Any):
    """The library's generate on <prompt up to the picture> <question>, for each picture."""
    from specvl_demo.methods.views import CAPTION_TOKENS, CaptionView

    small, prompt = models.drafter("small"), PROMPTS["picture"]
    encoded = small.encode(prompt)
    ask = (8, 9, 10)
    said = CaptionView((), ask, frozenset({EOS}), banned=(3,)).write_captions(encoded, small)
    stop = prompt.spans[0].stop
    ids = torch.tensor([[*prompt.ids[:stop].tolist(), *ask]])
    generated = small.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=prompt.inputs["pixel_values"],
        max_new_tokens=CAPTION_TOKENS,
        do_sample=False,
        suppress_tokens=[3],
        pad_token_id=0,
    )[0, ids.shape[1] :].tolist()
    expected = generated[: generated.index(EOS)] if EOS in generated else generated
    assert said == [expected] and expected
