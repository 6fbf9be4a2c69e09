"""Every lossless row of the method table answers as the target alone does, greedy and sampled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from specvl_demo import records
from specvl_demo.core.types import Prompt, Sampling
from specvl_demo.methods import METHODS, Method
from specvl_demo.records import Round
from specvl_demo.targets.target import VLMTarget
from tests.conftest import tiny_prompt

SAMPLED = Sampling(0.8, top_p=0.95, seed=3)


def served(method: Method) -> bool:
    """Whether the tiny models can run it: heads have tests of their own."""
    return method.drafter in ("none", "small", "self", "ngram")


ROWS = [name for name, method in METHODS.items() if method.lossless and served(method)]
MORE = {
    "custom, best first": ("custom", {"policy": "best-first", "nodes": 14, "width": 4, "loops": 3}),
    "custom, the target drafts": ("custom", {"drafter": "self", "policy": "static-tree"}),
    "custom, long chain": ("custom", {"gamma": 11}),
}
CASES = {name: (name, {}) for name in ROWS if name != "ar"} | MORE
PROMPTS = {"one picture": tiny_prompt(1), "two pictures": tiny_prompt(2, seed=1), "text": tiny_prompt(0)}


def gap_at(target: VLMTarget, prompt: Prompt, told: list[int], found: list[int]) -> str:
    """Where two answers part, and how close the target's call was there."""
    place = next((i for i, (a, b) in enumerate(zip(told, found, strict=False)) if a != b), len(told))
    ids = torch.tensor([[*prompt.ids.tolist(), *told[:place]]])
    inputs = {"pixel_values": prompt.inputs["pixel_values"]} if prompt.visual.any() else {}
    with torch.no_grad():
        top = target.vlm.model(input_ids=ids, **inputs).logits[0, -1].topk(2).values
    return f"the answers part at token {place}, where the target's best two logits are {top.tolist()}"


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_all_rows_say_what_the_target_says(
    answers: Callable[..., tuple[list[int], list[records.Record]]],
    target: VLMTarget,
    prompt: str,
    sampling: Sampling,
) -> None:
    asked = PROMPTS[prompt]
    told, _ = answers("ar", asked, sampling=sampling)
    assert len(told) >= 10
    for case, (method, settings) in CASES.items():
        found, written = answers(method, asked, settings, sampling=sampling)
        assert found == told, f"{case}: {gap_at(target, asked, told, found)}"
        records.validate_trace(written)


def test_something_is_accepted(answers: Callable[..., tuple[list[int], list[records.Record]]]) -> None:
    """Equal answers would prove nothing if every draft were rejected."""
    for case, (method, settings) in CASES.items():
        _, written = answers(method, PROMPTS["two pictures"], settings, max_new_tokens=40)
        accepted = sum(r.n_accepted for r in written if isinstance(r, Round))
        assert accepted >= (1 if method == "ngram" else 5), case


@pytest.mark.parametrize("pictures", [0, 1, 2])
def test_the_plain_lane_says_what_generate_says(
    answers: Callable[..., tuple[list[int], list[records.Record]]], target: VLMTarget, pictures: int
) -> None:
    prompt = tiny_prompt(pictures)
    with torch.no_grad():
        out = target.vlm.model.generate(**prompt.inputs, max_new_tokens=24, do_sample=False)
    assert answers("ar", prompt)[0] == out[0, len(prompt) :].tolist()
