"""Every family built once: target, drafter, prompts, and what the library itself answers."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import pytest
import torch

from specvl_demo.core.engine import Request
from specvl_demo.core.types import Prompt
from specvl_demo.methods.base import Models, build_parts, choose
from specvl_demo.question import Question
from specvl_demo.records import Record
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.prompts import PromptBuilder, VideoFrames
from specvl_demo.vlm.target import VLMTarget
from tests.shared import zoo
from tests.shared.tiny import ids_of, noisy, run_lane

TOKENS = 14
OFTEN = (
    "llava",
    "llava-onevision",
    "qwen2.5-vl",
    "qwen3-vl",
    "idefics3",
    "gemma3",
    "pixtral",
    "qwen3.5",
)
"""One family of each layout of visual tokens, and one whose layers keep a running state."""
SHOWN = {
    "nothing": tuple,
    "picture": lambda: (zoo.picture(0),),
    "two pictures": lambda: (zoo.picture(0), zoo.picture(1, 50, 80)),
    "clip": lambda: (
        VideoFrames(tuple(zoo.picture(i, 60, 60) for i in range(4)), (0.0, 0.5, 1.0, 1.5)),
    ),
}


def often(families: Iterable[str]) -> list[Any]:
    """Families as parameters of a test; those that are not in OFTEN are slow ones."""
    return [pytest.param(key, marks=[] if key in OFTEN else pytest.mark.slow) for key in families]


@dataclass(eq=False)
class Here:
    """One family, loaded as the loader would. library: the same model, untouched by this engine.
    pools: as `zoo.Family` has it.
    """

    name: str
    library: torch.nn.Module
    prompter: PromptBuilder
    target: VLMTarget
    models: Models
    pools: bool

    @cached_property
    def targets(self) -> list[VLMTarget]:
        """The target on the library's decoder, and as it is served where that is another one."""
        served = VLMTarget(VLM(self.target.vlm.model, self.name, self.prompter.special_ids))
        same = type(served.decoder) is type(self.target.decoder)
        return [self.target] if same else [self.target, served]

    def answer(
        self, method: str, shown: str, models: Models | None = None, **settings: Any
    ) -> list[Record]:
        """Records of one method, whose answer is the library's own."""
        texts, prompt = self.prompter.token_texts(), prompt_of(self, shown)
        request = Request("test", prompt, self.target, texts, max_new_tokens=TOKENS)
        parts = build_parts(choose(method, settings), models or self.models)
        records = run_lane(parts, request)
        assert ids_of(records) == reference(self, shown)[0]
        return records


@cache
def prompt_of(here: Here, shown: str) -> Prompt:
    """A question about what is shown."""
    return here.prompter.prompt(Question("what is this ?", SHOWN[shown]()))


@cache
def reference(here: Here, shown: str) -> tuple[list[int], torch.Tensor]:
    """Ids of `model.generate`, and its logits [n, V]."""
    prompt = prompt_of(here, shown)
    out = here.library.generate(
        **prompt.inputs,
        max_new_tokens=TOKENS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits)


@cache
def load(name: str) -> Here:
    recurrent = name in zoo.RECURRENT
    (library, processor), (model, _) = (zoo.build(name) for _ in "ab")
    prompter = PromptBuilder(processor, model)
    # The library's decoder as target, but for layers with a state; where the lean one can run, it
    # drafts: both kinds are held here.
    vlm = VLM(model, name, prompter.special_ids, backend="auto" if recurrent else "hf")
    noise = 0.02 if recurrent else 0.08
    small = VLM(noisy(model, noise), name + " with noise", prompter.special_ids)
    target = VLMTarget(vlm, batch_invariant=recurrent)
    models = Models(target, {"small": small}, prompter.word_ids())
    pools = not recurrent and zoo.FAMILIES[name].pools
    return Here(name, library, prompter, target, models, pools)


@pytest.fixture(params=often(zoo.FAMILIES))
def here(request: pytest.FixtureRequest) -> Here:
    return load(request.param)
