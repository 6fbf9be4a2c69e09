"""The small VLM as drafter: after many rounds it returns the same as a fresh one for the
same text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specvl_demo.core.engine import Lane, Parts, SharedPrefill, race
from specvl_demo.core.types import Prompt, Start
from specvl_demo.core.verification import Strict
from specvl_demo.decoders.output_head import LogProbabilities, OutputHead
from specvl_demo.methods.policies import (
    BestFirst,
    BestFirstSettings,
    Chain,
    ChainSettings,
    RankedTree,
)
from specvl_demo.methods.small_vlm import SmallVLM
from specvl_demo.methods.views import FullView, TextView
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.target import VLMTarget
from tests.conftest import IMAGE, VOCAB, ask, tiny_llava, tiny_prompt
from tests.heads import decode

POLICIES = {
    "chain": lambda: Chain(ChainSettings(4)),
    "tree": RankedTree,
    "best-first": lambda: BestFirst(BestFirstSettings(12, 4, 3)),
}


class Even:
    """Equal weights; records what it is given to learn."""

    def __init__(self) -> None:
        self.learnt: list[tuple[Tensor, Tensor, list[int]]] = []

    def begin(self, start: Start, views: Sequence[str]) -> None:
        self.views = tuple(views)

    def mix(self, logp: Tensor) -> Tensor:
        return logp.exp().mean(0).log()

    def update(self, logp: Tensor, logits: Tensor, tokens: Sequence[int]) -> None:
        self.learnt.append((logp.clone(), logits.clone(), list(tokens)))

    def notes(self) -> Mapping[str, Any]:
        return {"views": list(self.views)}


def fresh_logp(vlm: VLM, prompt: Prompt, answer: Sequence[int], views: int) -> Tensor:
    """Return [V], the output of an equal mixture of the same views after prompt and answer, by the
    library's forward.
    """
    ids = [*prompt.ids.tolist(), *answer]
    said = []
    for text_only in (False, True)[:views]:
        kept = [i for i in ids if i != IMAGE] if text_only else ids
        if text_only:
            first = prompt.ids.tolist().index(IMAGE)
            kept = [*ids[:first], 5, *[i for i in ids[first:] if i != IMAGE]]
        pixels = {} if text_only else {"pixel_values": prompt.inputs["pixel_values"]}
        with torch.no_grad():
            logits = vlm.model(input_ids=torch.tensor([kept]), **pixels).logits[0, -1]
        logits[IMAGE] = -torch.inf
        said.append(logits.softmax(-1))
    return torch.stack(said).mean(0).log()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("views", [1, 2])
def test_after_every_round_it_stands_where_a_fresh_one_would(
    target: VLMTarget, small: VLM, policy: str, views: int
) -> None:
    prompt, mixer = tiny_prompt(2), Even()
    drafter = SmallVLM(small, (FullView(), TextView((5,)))[:views], mixer if views > 1 else None)
    heard: list[Tensor] = []
    extend = drafter.extend
    drafter.extend = lambda tokens, parents: heard.append(extend(tokens, parents)) or heard[-1]
    parts = Parts("m", "m", True, {}, drafter, POLICIES[policy](), Strict())
    lane = Lane("l", parts, SharedPrefill(ask(target, prompt)))
    lane.begin()
    answer: list[int] = []
    while not lane.done:
        heard.clear()
        round_ = lane.step()
        if heard:  # the last round may have no room to draft
            expected = fresh_logp(small, prompt, answer, views)
            assert torch.allclose(heard[0][0], expected, atol=1e-3)
        answer += [token.id for token in round_.tokens]
    assert lane.totals.tau > 1.2
    if views > 1:
        assert round_.notes["views"] == ["multimodal", "text-only"]


def test_a_mixer_learns_accepted_positions_and_the_first_mismatch(
    target: VLMTarget, small: VLM
) -> None:
    mixer, gamma = Even(), 2
    drafter = SmallVLM(small, (FullView(), TextView((5,))), mixer)
    _, rounds = decode(target, drafter, Chain(ChainSettings(gamma)), tiny_prompt(1))
    drafted = [r for r in rounds[:-1] if r.n_drafted == gamma]
    assert {r.n_accepted for r in drafted} >= {0, 1, gamma}
    for round_, (logp, logits, tokens) in zip(drafted, mixer.learnt, strict=False):
        positions = min(round_.n_accepted + 1, gamma)
        assert logp.shape == (2, positions, VOCAB) and logits.shape == (positions, VOCAB)
        assert tokens == [t.id for t in round_.tokens][:positions]
        # The target's own choice there, and the mixture's: what was drafted.
        assert logits.argmax(-1).tolist() == tokens
        mixed = logp.exp().mean(0).argmax(-1).tolist()
        assert mixed == round_.tree.tokens[1 : positions + 1]


def test_views_are_recorded_where_they_spoke(target: VLMTarget, small: VLM) -> None:
    drafter = SmallVLM(small, (FullView(), TextView((5,))), Even())
    parts = Parts("m", "m", True, {}, drafter, Chain(ChainSettings(3)), Strict())
    begin, *rounds, _ = race([Lane("l", parts, SharedPrefill(ask(target, tiny_prompt(1))))])
    assert [s.view for s in begin.seen] == ["multimodal", "text-only"]
    full, text = begin.seen
    assert full.index == list(range(begin.n_prompt - 1)) and -1 in text.index and text.n < full.n
    for round_ in (one for one in rounds if one.views is not None):
        assert set(round_.views) == {"multimodal", "text-only"}
        for lists in round_.views.values():
            assert len(lists) == len(round_.tokens)
            # A full chain's last node is never fed, so no view spoke there.
            assert [bool(c) for c in lists] == [i < round_.n_drafted for i in range(len(lists))]


def test_placeholders_and_foreign_ids_are_never_drafted(llava: torch.nn.Module) -> None:
    """A drafter in love with the picture placeholder, with a smaller vocabulary than its target."""
    target = VLMTarget(VLM(llava, "t"))
    model = tiny_llava(layers=1, seed=5, vocab=VOCAB - 20)
    with torch.no_grad():
        model.get_input_embeddings().weight[IMAGE] *= 40
    drafter, prompt = SmallVLM(VLM(model, "d"), (FullView(),)), tiny_prompt(1, vocab=VOCAB - 20)
    policy = BestFirst(BestFirstSettings(20, 6, 3))
    _, rounds = decode(target, drafter, policy, prompt, max_new_tokens=40)
    tokens = {token for round_ in rounds for token in round_.tree.tokens[1:]}
    assert IMAGE not in tokens and max(tokens) < VOCAB - 20


def test_a_target_that_says_what_the_drafter_cannot_read(llava: torch.nn.Module) -> None:
    """The target emits ids beyond the drafter's table; drafting continues."""
    target = VLMTarget(VLM(llava, "t"))
    drafter = SmallVLM(VLM(tiny_llava(layers=1, seed=5, vocab=40), "d"), (FullView(),))
    chain, prompt = Chain(ChainSettings(3)), tiny_prompt(0, vocab=40)
    said, _ = decode(target, drafter, chain, prompt, max_new_tokens=30)
    assert max(said) >= 40 and len(said) == 30


def test_two_lanes_encode_for_the_drafter_once_and_both_pay(target: VLMTarget, small: VLM) -> None:
    shared = SharedPrefill(ask(target, tiny_prompt(1)))
    calls = []
    eyes = VLM(small.model, "d")
    encode = eyes.encode
    eyes.encode = lambda prompt: calls.append(1) or replace(encode(prompt), seconds=5.0)
    drafter, policy = SmallVLM(eyes, (FullView(),)), Chain(ChainSettings(2))
    parts = Parts("m", "m", True, {}, drafter, policy, Strict())
    begins = [lane.begin() for lane in [Lane(name, parts, shared) for name in "ab"]]
    assert len(calls) == 1
    assert all(5.0 < begin.draft_prefill_s < 6.0 for begin in begins)


def test_it_wants_views_and_a_mixture_for_several(small: VLM) -> None:
    with pytest.raises(ValueError, match="at least one view"):
        SmallVLM(small, ())
    with pytest.raises(ValueError, match="need a mixture"):
        SmallVLM(small, (FullView(), TextView((5,))))


@torch.inference_mode()
@pytest.mark.parametrize("banned", [(), (3, 9)])
def test_a_draft_vocabulary_says_what_normalizing_over_all_ids_would(
    small: VLM, banned: tuple[int, ...]
) -> None:
    """Ids without a row, banned ones and those beyond the size have no probability."""
    ids = torch.tensor([9, 3, 1, 20, 4, 17, 2, 30, 11, 8, 25, 6])
    narrow = OutputHead(small.decoder.output_rows(ids), small.decoder.vocab, ids)
    hidden, size = torch.randn(2, 3, small.decoder.width), 28
    wide = narrow(hidden)[..., :size].float()
    wide[..., list(banned)] = -torch.inf
    said = LogProbabilities(narrow, size, banned, ids.device)(hidden)
    torch.testing.assert_close(said, wide.log_softmax(-1))
    assert said.shape[-1] == size and (said.isfinite().sum(-1) == 11 - len(banned)).all()
