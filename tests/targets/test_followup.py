"""Follow-up questions that go on from what a conversation left behind, against the same computed afresh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from specvl_demo.assemble import Models, assemble
from specvl_demo.core.engine import Lane, Shared, race
from specvl_demo.core.memory import Memory, common
from specvl_demo.core.tree import DraftTree, chain, shape_of
from specvl_demo.core.types import Capture, Drafted, Drafter, Encoded, Prompt, Session, Start, Verdict
from specvl_demo.methods import choose
from specvl_demo.records import Begin, Round
from specvl_demo.targets.target import VLMTarget
from specvl_demo.targets.vlm import VLM
from tests.conftest import ask, noisy, tiny_prompt
from tests.drafters.support import built, drafter_of, random_module

METHODS = {
    "ar": {},
    "chain": {},
    "tabed": {"views": "multimodal+text-only+pooled", "weights": "kld"},
    "sage": {"growth": "online"},
    "specvlm": {"guided": True},
    "lvspec": {"guided": False},
    "ngram": {},
    "eagle2": {"policy": "chain"},
    "hivis": {"policy": "chain"},
    "dream": {"policy": "chain", "keep": 1.0},
}
OTHERWISE = ("specvlm", "dream")
"""May draft otherwise in a follow-up: guided pruning hears fewer rows; DREAM's first query, which has nothing
to see, sees all features of the prompt it was computed with."""
HEADS = ("eagle2", "hivis", "dream")


def more(prompt: Prompt, said: list[int], question: tuple[int, ...] = (11, 12, 13, 14)) -> Prompt:
    """The next prompt of a conversation."""
    ids = torch.cat((prompt.ids, torch.tensor([*said, *question])))
    visual = torch.cat((prompt.visual, torch.zeros(len(ids) - len(prompt), dtype=torch.bool)))
    inputs = {**prompt.inputs, "input_ids": ids[None], "attention_mask": torch.ones(1, len(ids))}
    return replace(prompt, ids=ids, visual=visual, inputs=inputs)


def run(
    models: Models,
    method: str,
    prompt: Prompt,
    memory: Memory | None,
    name: str = "q",
    settings: dict[str, dict[str, object]] = METHODS,
) -> tuple[list[int], list[Round], Begin]:
    request = ask(models.target, prompt, memory=memory, id=name, max_new_tokens=16)
    lane = Lane(method, assemble(choose(method, settings[method]), models), Shared(request))
    begin, *rounds, _ = race([lane])
    return [t.id for r in rounds for t in r.tokens], rounds, begin


class Watched:
    """Rows that a decoder is given, and how often a vision tower runs."""

    def __init__(self, vlm: VLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        self.looks = 0
        forward = vlm.decoder.forward

        def counted(call: object) -> torch.Tensor:
            self.rows.append(call.x.shape[1])
            return forward(call)

        def look(*_: object) -> None:
            self.looks += 1

        monkeypatch.setattr(vlm.decoder, "forward", counted)
        self.hook = vlm.model.base_model.vision_tower.register_forward_hook(look)


@pytest.fixture(scope="module", params=["lean", "hf"])
def pair(request: pytest.FixtureRequest, llava: torch.nn.Module, models: Models) -> Models:
    if request.param == "hf":
        target = VLMTarget(VLM(llava, "target", backend="hf"))
        models = replace(
            models, target=target, drafters={"small": VLM(noisy(llava, 0.05), "d", backend="hf")}
        )
    heads = {kind: built(random_module(kind), kind, models.target.decoder) for kind in HEADS}
    return replace(models, drafters={**models.drafters, **heads})


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pictures", [0, 1, 2])
def test_a_follow_up_says_what_a_fresh_start_says(pair: Models, method: str, pictures: int) -> None:
    prompt, memory = tiny_prompt(pictures), Memory()
    for turn in range(3):
        told, written, _ = run(pair, method, prompt, None)
        found, remembered, _ = run(pair, method, prompt, memory, f"turn {turn}")
        assert found == told
        if method not in OTHERWISE or not turn:
            # Drafts too: same trees round by round.
            assert [r.tree.tokens for r in remembered] == [r.tree.tokens for r in written]
        prompt = more(prompt, found)


def test_only_what_is_new_is_computed(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, prompt = Memory(), tiny_prompt(1)
    said, _, _ = run(models, "chain", prompt, memory, "first")
    target = Watched(models.target.vlm, monkeypatch)
    small = Watched(models.drafters["small"], monkeypatch)
    run(models, "chain", more(prompt, said), memory, "second")
    assert target.looks == small.looks == 0
    # The last token of the answer and the question but its last: the answer's other rows are there already.
    assert target.rows[0] == 4
    # A drafter has not seen what the last round accepted.
    assert 4 <= small.rows[0] <= 4 + 6
    target.hook.remove()
    small.hook.remove()


def test_what_is_kept_fits_exactly(models: Models) -> None:
    memory, prompt = Memory(), tiny_prompt(1)
    said, _, _ = run(models, "chain", prompt, memory)
    past = memory.past(())
    rows = len(prompt) + len(said) - 1
    assert len(past.ids) == past.hidden.shape[0] == past.cache.cache.room == past.cache.length == rows
    assert past.ids.tolist() == [*prompt.ids.tolist(), *said][:rows]
    (drafted,) = memory.drafted.values()
    assert drafted.cache.cache.room == len(drafted.contexts[0].ids) + len(drafted.said)


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_reads_only_what_is_new(pair: Models, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the first forward of a follow-up: of what the last round accepted, and of the question."""
    memory, prompt = Memory(), tiny_prompt(2)
    said, written, _ = run(pair, kind, prompt, memory, "first")
    (drafted,) = memory.drafted.values()
    fed = len(said) - len(written[-1].tokens)
    assert drafted.said.tolist() == [int(prompt.ids[-1]), *said][:fed]
    backend = drafted.cache.backend
    rows: list[int] = []
    forward = type(backend).forward

    def counted(self: object, call: object, *more: object) -> torch.Tensor:
        rows.append(call.x.shape[1])
        return forward(self, call, *more)

    monkeypatch.setattr(type(backend), "forward", counted)
    follow = more(prompt, said)
    run(pair, kind, follow, memory, "second")
    assert rows[0] == len(follow) - len(prompt) - fed


@pytest.mark.parametrize("kind", HEADS)
@torch.inference_mode()
def test_a_head_goes_on_as_if_the_question_were_its_answer(models: Models, kind: str) -> None:
    """A follow-up's prefill beside the same tokens taken round by round, as accepted ones are."""
    target, prompt = models.target, tiny_prompt(1)
    head = built(random_module(kind), kind, target.decoder)
    encoded = target.encode(prompt)

    def begun(encoded: Encoded, before: Drafted | None = None) -> tuple[Drafter, Session]:
        drafter = drafter_of(head)
        prefill = target.prefill(encoded, drafter.capture)
        asked = ask(target, encoded.made_of)
        start = Start(
            prompt=encoded.made_of,
            encoded=encoded,
            prefill=prefill,
            encode=lambda eyes: encoded,
            target_decoder=target.decoder,
            vocabulary=target.vocabulary,
            sampling=asked.sampling,
            max_new_tokens=40,
            max_nodes=20,
            before=before,
        )
        drafter.begin(start)
        return drafter, target.open(prefill, 40, 20)

    tokens = [int(prompt.ids[-1]), *range(20, 32)]
    steady, session = begun(encoded)
    for at in range(0, len(tokens) - 1, 3):
        fed = tokens[at : at + 3]
        for i, token in enumerate(fed):
            steady.extend(torch.tensor([token]), (i - 1,))
        tree = DraftTree(torch.tensor(fed), chain(2), rows=(0, 1, 2))
        scores = session.score(tree)
        if at == 6:
            drafted = steady.past(torch.tensor(tokens[:7]))
        session.commit([0, 1, 2])
        steady.commit(tree, Verdict([0, 1, 2], tokens[at + 1 : at + 4], [False] * 2, [0] * 3), scores)
    follow = more(prompt, tokens[1:9], tuple(tokens[9:]))
    again, _ = begun(target.encode(follow, encoded), drafted)
    assert len(drafted.said) == 6
    for i, token in enumerate((tokens[-1], 40, 41)):
        one, other = (drafter.extend(torch.tensor([token]), (i - 1,)) for drafter in (steady, again))
        torch.testing.assert_close(one, other, atol=2e-4, rtol=2e-4)


def test_visual_tokens_once_chosen_stay_chosen(pair: Models) -> None:
    """A head with half of the picture among its queries says what the target says all the same."""
    prompt, memory = tiny_prompt(2), Memory()
    half = {"dream": {"keep": 0.5}}
    first, _, before = run(pair, "dream", prompt, memory, "first", half)
    follow = more(prompt, first)
    found, _, begin = run(pair, "dream", follow, memory, "second", half)
    assert found == run(pair, "ar", follow, None)[0]
    chosen, grown = before.seen[0].index, begin.seen[0].index
    assert grown == [*chosen, *range(len(prompt) - 1, len(follow) - 1)] and len(chosen) < len(prompt) - 1


def test_another_picture_an_edited_question_and_another_model_start_afresh(
    models: Models, small: VLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tiny_prompt(1)

    def looks(
        follow: Callable[[list[int]], Prompt], pair: Models = models
    ) -> tuple[int, list[int], list[int]]:
        memory = Memory()
        said, _, _ = run(models, "ar", prompt, memory, "first")
        with monkeypatch.context() as patch:
            watched = Watched(pair.target.vlm, patch)
            found, _, _ = run(pair, "ar", follow(said), memory, "second")
            watched.hook.remove()
        return watched.looks, watched.rows, [*found, *run(pair, "ar", follow(said), None)[0]]

    other = replace(prompt, inputs={**prompt.inputs, "pixel_values": prompt.inputs["pixel_values"] + 1})
    count, _, both = looks(lambda said: more(other, said))
    assert count == 1 and both[: len(both) // 2] == both[len(both) // 2 :]
    changed = prompt.ids.clone()
    changed[-3] += 1
    edited = replace(prompt, ids=changed, inputs={**prompt.inputs, "input_ids": changed[None]})
    count, rows, both = looks(lambda said: more(edited, said))
    # The picture holds, the text from the change on does not.
    assert count == 0 and rows[0] >= len(both) // 2 and both[: len(both) // 2] == both[len(both) // 2 :]
    count, _, both = looks(lambda said: more(prompt, said), replace(models, target=VLMTarget(small)))
    assert count == 1 and both[: len(both) // 2] == both[len(both) // 2 :]


def test_a_loose_answer_does_not_displace_the_targets(models: Models) -> None:
    memory, prompt = Memory(), tiny_prompt(1)
    asked = ask(models.target, prompt, memory=memory, id="race", max_new_tokens=12)
    shared = Shared(asked)
    names = ("ar", "lvspec")
    for _ in race([Lane(n, assemble(choose(n, METHODS[n]), models), shared) for n in names]):
        pass
    told = run(models, "ar", prompt, None)[0][:12]
    rows = len(memory.past(()).ids)
    assert memory.past(()).ids.tolist() == [*prompt.ids.tolist(), *told][:rows]


def test_inner_layers_are_kept_for_heads_that_read_them(models: Models) -> None:
    target, prompt, wants = models.target, tiny_prompt(1), Capture(layers=(0, 1))
    encoded = target.encode(prompt)
    begun = target.prefill(encoded, wants)
    session = target.open(begun, 8, 4, wants, remember=True)
    session.score(DraftTree(torch.tensor([int(prompt.ids[-1]), 20, 21, 22]), shape_of((-1, 0, 0, 2))))
    session.commit([0, 2, 3])
    past = session.past("r", torch.cat((prompt.ids, torch.tensor([21, 22]))))
    follow = more(prompt, [21, 22, 23])
    again = target.encode(follow, encoded)
    found, fresh = target.prefill(again, wants, past), target.prefill(target.encode(follow), wants)
    assert torch.allclose(found.hidden, fresh.hidden, atol=1e-4)
    for i in wants.layers:
        assert torch.allclose(found.layers[i], fresh.layers[i], atol=1e-4)


def test_common_beginnings() -> None:
    text = torch.tensor([1, 2, 3])
    assert [common(text, torch.tensor(other)) for other in ([1, 2, 3, 4], [1, 2], [1, 9, 3], [9], [])] == [
        3,
        2,
        1,
        0,
        0,
    ]
