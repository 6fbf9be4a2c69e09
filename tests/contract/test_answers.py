"""What methods note of their rounds, and what a round costs, on tiny random models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from specvl_demo.core.engine import Lane, SharedPrefill, race
from specvl_demo.core.tree import shape_of
from specvl_demo.methods.base import Models, assemble, choose
from specvl_demo.records import Begin, Round
from specvl_demo.vlm.target import VLMTarget
from tests.conftest import EOS, ask, tiny_prompt
from tests.heads import built, random_module

MTCP = "multimodal+text-only+caption+pooled"
PROMPTS = {
    "picture": tiny_prompt(seed=1),
    "two pictures": tiny_prompt(2, seed=2),
    "text": tiny_prompt(0, 12, seed=3),
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "tabed mtcp": ("tabed", {"views": MTCP, "weights": "kld"}),
    "tabed beam 2": ("tabed", {"policy": "beam", "beams": 2}),
    "sage online": ("sage", {"growth": "online", "first": "entropy", "max_nodes": 10}),
}


class Waits(TorchDispatchMode):
    """Counts numbers that the host reads and choices by a mask, whose number it must know."""

    n = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.name()
        by_mask = name.startswith(("aten::index.", "aten::index_put")) and any(
            arg is not None and arg.dtype == torch.bool for arg in args[1]
        )
        reads = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal")
        self.n += by_mask or name.startswith(reads)
        return function(*args, **(kwargs or {}))


class Reads(TorchFunctionMode):
    """Counts, as waits, whole tensors that are read and choices by a list, which no dispatch shows.

    The class of tensors itself is not changed: torch would then take every tensor for a sequence.
    """

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        by_list = function is torch.Tensor.__getitem__ and any(
            isinstance(one, list) for one in (args[1] if isinstance(args[1], tuple) else (args[1],))
        )
        self._waits.n += by_list or function is torch.Tensor.tolist
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("method", "most"),
    [
        *(("ar", 2), ("chain", 4), ("tabed", 4), ("tree", 5), ("sage", 5)),
        *(("eagle2", 4), ("hivis", 4), ("dream", 4)),
    ],
)
def test_a_round_waits_for_the_device_a_few_times_only(
    method: str, most: int, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In half precision, as on a GPU: without a look at near ties."""
    monkeypatch.setattr(VLMTarget, "_recomputes", False)
    waits = Waits()
    step = Lane.step

    def watched(lane: Lane) -> Any:
        with waits, Reads(waits):
            return step(lane)

    monkeypatch.setattr(Lane, "step", watched)
    kinds = ("eagle2", "hivis", "dream")
    heads = {kind: built(random_module(kind), kind, models.target.decoder) for kind in kinds}
    both = Models(models.target, {**models.drafters, **heads}, models.words)
    shared = SharedPrefill(ask(models.target, PROMPTS["picture"]))
    records = list(race([Lane(method, assemble(choose(method), both), shared)]))
    n_rounds = sum(isinstance(record, Round) for record in records)
    assert n_rounds >= 2 and n_rounds < waits.n <= most * n_rounds, waits.n / n_rounds


@pytest.mark.parametrize("case", ["tabed mtcp", "sage", "specvlm"])
def test_what_the_drafter_saw_is_told(case: str, answers: Callable[..., Any]) -> None:
    method, settings = CASES.get(case, (case, {}))
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


def test_notes_of_tabed(answers: Callable[..., Any]) -> None:
    rounds = [r for r in answers("tabed", PROMPTS["picture"])[1] if isinstance(r, Round)]
    assert rounds[0].notes["weights"] == {"multimodal": 0.5, "text-only": 0.5}
    assert all(sum(r.notes["weights"].values()) == pytest.approx(1) for r in rounds)
    counted = 0
    for r in rounds:
        assert r.notes["counted"] == counted
        # accepted positions and the first mismatch; a full block of 5 has no draft distribution at
        # its end
        counted += min(r.n_accepted + 1, 5)
        # the last round may have room for the target's token only; then nobody was asked
        assert set(r.views or r.notes["weights"]) == {"multimodal", "text-only"}
    assert rounds[0].views
    assert any(r.notes["weights"]["multimodal"] != 0.5 for r in rounds[1:])


def test_notes_of_sage(answers: Callable[..., Any]) -> None:
    rounds = [r for r in answers("sage", PROMPTS["picture"])[1] if isinstance(r, Round)]
    assert rounds[0].notes["static"] and rounds[0].notes["alpha"] == 0.5
    for r in rounds[1:]:
        notes = r.notes
        assert 0 <= notes["alpha"] <= 1 and 3 <= notes["depth"] <= notes["cap"] <= 8
        assert notes["width"] == pytest.approx(2 + (1 - notes["alpha"]) * 8, abs=1e-2)
        assert notes["n_nodes"] == len(r.tree.tokens) <= 64
        assert max(shape_of(tuple(r.tree.parent)).depth) <= notes["depth"]


def test_lvspec_relaxes_counts_and_says_which(answers: Callable[..., Any]) -> None:
    """Fully loose and deep drafts: tokens that the target itself would not emit are accepted, and
    marked as relaxed.
    """
    ids, records = answers("lvspec", PROMPTS["picture"], {"loose": 1.0, "drop_image": 0.9})
    rounds = [r for r in records if isinstance(r, Round)]
    assert not records[0].lossless
    relaxed = [
        (r, t, n)
        for r in rounds
        for t, n in zip(r.tokens, r.path[1:], strict=False)
        if t.origin == "relaxed"
    ]
    assert relaxed and records[-1].totals.n_relaxed == len(relaxed)
    for r, token, node in relaxed:
        assert token.id == r.tree.tokens[node] and token.id != EOS
        assert node in r.notes["relaxed_nodes"] and node in r.notes["loosened"]
    for r in rounds:
        assert len(r.notes["relevance"]) == len(r.notes["nodes"])


@torch.inference_mode()
def test_captions_are_the_drafters_own_greedy_words(models: Any) -> None:
    """The same as the library's generate on <prompt up to the picture> <question>, for each of two
    pictures."""
    from specvl_demo.methods.captions import OwnCaptions

    small, prompt = models.drafter("small"), PROMPTS["picture"]
    encoded = small.encode(prompt)
    ask = (8, 9, 10)
    said = OwnCaptions(ask, stop=frozenset({EOS}), banned=(3,), length=6)(encoded, small)
    stop = prompt.spans[0].stop
    ids = torch.tensor([[*prompt.ids[:stop].tolist(), *ask]])
    generated = small.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        pixel_values=prompt.inputs["pixel_values"],
        max_new_tokens=6,
        do_sample=False,
        suppress_tokens=[3],
        pad_token_id=0,
    )[0, ids.shape[1] :].tolist()
    expected = generated[: generated.index(EOS)] if EOS in generated else generated
    assert said == [expected] and expected


@torch.inference_mode()
def test_runs_are_captioned_together_as_alone(models: Any) -> None:
    from dataclasses import replace

    from specvl_demo.methods.captions import OwnCaptions

    small, prompt = models.drafter("small"), PROMPTS["two pictures"]
    encoded = small.encode(prompt)
    # A text token between the pictures makes two runs of them.
    gap = prompt.spans[1].start
    visual = encoded.visual.clone()
    visual[gap] = False
    apart = replace(encoded, visual=visual)
    captions = OwnCaptions((8, 9, 10), stop=frozenset({EOS}), length=5)
    both = captions(apart, small)
    first = replace(apart, visual=visual & (torch.arange(len(visual)) < gap))
    assert len(both) == 2 and both[0] == captions(first, small)[0]
