"""Follow-up questions that continue from a conversation's cache, compared with the same computed
afresh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from specvl_demo.core.engine import Lane, SharedPrefill, race
from specvl_demo.core.prefix_cache import PrefixCache
from specvl_demo.core.similarity_map import similarity_map
from specvl_demo.core.tree import DraftTree, chain, shape_of
from specvl_demo.core.types import NOTHING, Capture, Prompt, Verdict
from specvl_demo.methods.base import Models, assemble, choose
from specvl_demo.methods.heads.features import FeatureDrafter
from specvl_demo.records import Begin, Round
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.target import VLMSession, VLMTarget
from tests.conftest import ask, noisy, tiny_llava, tiny_prompt
from tests.heads import begun, built, random_module

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
"""May draft differently in a follow-up: guided pruning gets fewer rows; DREAM's first query, which
has no keys, attends to all features of the prompt it was computed with.
"""
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
    cache: PrefixCache | None,
    settings: dict[str, dict[str, object]] = METHODS,
) -> tuple[list[int], list[Round], Begin]:
    request = ask(models.target, replace(prompt, cache=cache), max_new_tokens=10)
    lane = Lane(method, assemble(choose(method, settings[method]), models), SharedPrefill(request))
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


@pytest.mark.parametrize(
    ("method", "pictures"), [*((method, 2) for method in METHODS), ("chain", 0), ("hivis", 0)]
)
def test_a_follow_up_says_what_a_fresh_start_says(pair: Models, method: str, pictures: int) -> None:
    prompt, cache = tiny_prompt(pictures), PrefixCache()
    for turn in range(3):
        told, written, _ = run(pair, method, prompt, None)
        found, remembered, _ = run(pair, method, prompt, cache)
        assert found == told
        if method not in OTHERWISE or not turn:
            # Drafts too: same trees round by round.
            assert [r.tree.tokens for r in remembered] == [r.tree.tokens for r in written]
        prompt = more(prompt, found)


def test_only_what_is_new_is_computed(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, prompt = PrefixCache(), tiny_prompt(1)
    said, _, _ = run(models, "chain", prompt, cache)
    target = Watched(models.target.vlm, monkeypatch)
    small = Watched(models.drafters["small"], monkeypatch)
    run(models, "chain", more(prompt, said), cache)
    assert target.looks == small.looks == 0
    # The last token of the answer and the question but its last: the answer's other rows are there
    # already.
    assert target.rows[0] == 4
    # A drafter has not seen what the last round accepted.
    assert 4 <= small.rows[0] <= 4 + 6
    target.hook.remove()
    small.hook.remove()


def test_a_race_and_its_similarity_map_look_at_a_picture_once(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, target = tiny_prompt(1), Watched(models.target.vlm, monkeypatch)
    shared = SharedPrefill(ask(models.target, prompt))
    lanes = [Lane(name, assemble(choose(name), models), shared) for name in ("ar", "ngram")]
    said = [
        record.tokens for record in race(lanes) if isinstance(record, Round) and record.lane == "ar"
    ]
    ids = [token.id for tokens in said for token in tokens]
    assert (
        similarity_map(shared, ids).shape == (len(ids), int(prompt.visual.sum()))
        and target.looks == 1
    )
    target.hook.remove()


def test_what_is_kept_fits_exactly(models: Models) -> None:
    cache, prompt = PrefixCache(), tiny_prompt(1)
    said, _, _ = run(models, "chain", prompt, cache)
    kept = cache[models.target.vlm, ()]
    rows = len(prompt) + len(said) - 1
    assert (
        kept.prefix.keys.shape[2] == kept.hidden.shape[0] == kept.prefix.stream.cache.room == rows
    )
    keys = kept.prefix.keys[0, 0]
    assert torch.where(keys < 0, prompt.ids.max(), keys)[: len(prompt)].amax() == prompt.ids.max()
    assert (
        keys[len(prompt) - 1 :].tolist() == [int(prompt.ids[-1]), *said][: rows - len(prompt) + 1]
    )
    drafted = cache[models.drafters["small"], "multimodal"]
    assert drafted.stream.cache.room == drafted.keys.shape[2] <= rows


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_reads_only_what_is_new(
    pair: Models, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the first forward of a follow-up: of what the last round accepted, and of the
    question.
    """
    cache, prompt = PrefixCache(), tiny_prompt(2)
    said, written, _ = run(pair, kind, prompt, cache)
    fed = len(said) - len(written[-1].tokens)
    backend = type(pair.drafters[kind])
    rows: list[int] = []
    forward = backend.forward

    def counted(self: object, call: object) -> torch.Tensor:
        rows.append(call.x.shape[1])
        return forward(self, call)

    monkeypatch.setattr(backend, "forward", counted)
    follow = more(prompt, said)
    run(pair, kind, follow, cache)
    assert rows[0] == len(follow) - len(prompt) - fed


@pytest.mark.parametrize("kind", HEADS)
@torch.inference_mode()
def test_a_head_goes_on_as_if_the_question_were_its_answer(models: Models, kind: str) -> None:
    """A follow-up's prefill compared with the same tokens taken round by round, like
    accepted ones.
    """
    target, prompt = models.target, replace(tiny_prompt(1), cache=PrefixCache())
    head = built(random_module(kind), kind, target.decoder)

    steady, again = FeatureDrafter(head), FeatureDrafter(head)
    session = begun(target, steady, prompt, 20).session
    tokens = [int(prompt.ids[-1]), *range(20, 32)]
    for at in range(0, len(tokens) - 1, 3):
        fed = tokens[at : at + 3]
        for i, token in enumerate(fed):
            steady.extend(torch.tensor([token]), (i - 1,))
        tree = DraftTree(torch.tensor(fed), chain(2), rows=(0, 1, 2))
        scores = session.score(tree)
        if at == 6:
            steady.close(torch.tensor(tokens[:7]))
        session.commit([0, 1, 2])
        steady.commit(tree, Verdict([0, 1, 2], tokens[at + 1 : at + 4], [False] * 2), scores)
    begun(target, again, more(prompt, tokens[1:9], tuple(tokens[9:])), 20)
    for i, token in enumerate((tokens[-1], 40, 41)):
        one, other = (
            drafter.extend(torch.tensor([token]), (i - 1,)) for drafter in (steady, again)
        )
        torch.testing.assert_close(one, other, atol=2e-4, rtol=2e-4)


def test_visual_tokens_once_chosen_stay_chosen(pair: Models) -> None:
    """A head with half of the picture among its queries still returns the target's answer."""
    prompt, cache = tiny_prompt(2), PrefixCache()
    half = {"dream": {"keep": 0.5}}
    first, _, before = run(pair, "dream", prompt, cache, half)
    follow = more(prompt, first)
    found, _, begin = run(pair, "dream", follow, cache, half)
    assert found == run(pair, "ar", follow, None)[0]
    chosen, grown = before.seen[0].index, begin.seen[0].index
    assert (
        grown == [*chosen, *range(len(prompt) - 1, len(follow) - 1)]
        and len(chosen) < len(prompt) - 1
    )


def test_another_picture_an_edited_question_and_another_model_start_afresh(
    models: Models, small: VLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tiny_prompt(1)

    def looks(
        follow: Callable[[list[int]], Prompt], pair: Models = models
    ) -> tuple[int, list[int], list[int]]:
        cache = PrefixCache()
        said, _, _ = run(models, "ar", prompt, cache)
        with monkeypatch.context() as patch:
            watched = Watched(pair.target.vlm, patch)
            found, _, _ = run(pair, "ar", follow(said), cache)
            watched.hook.remove()
        return watched.looks, watched.rows, [*found, *run(pair, "ar", follow(said), None)[0]]

    other = replace(
        prompt, inputs={**prompt.inputs, "pixel_values": prompt.inputs["pixel_values"] + 1}
    )
    count, _, both = looks(lambda said: more(other, said))
    assert count == 1 and both[: len(both) // 2] == both[len(both) // 2 :]
    changed = prompt.ids.clone()
    changed[-3] += 1
    edited = replace(prompt, ids=changed, inputs={**prompt.inputs, "input_ids": changed[None]})
    count, rows, both = looks(lambda said: more(edited, said))
    # The picture holds, the text from the change on does not.
    assert (
        count == 0
        and rows[0] >= len(both) // 2
        and both[: len(both) // 2] == both[len(both) // 2 :]
    )
    count, _, both = looks(
        lambda said: more(prompt, said), replace(models, target=VLMTarget(small))
    )
    assert count == 1 and both[: len(both) // 2] == both[len(both) // 2 :]


def test_inner_layers_are_kept_for_heads_that_read_them(models: Models) -> None:
    target, wants = models.target, Capture(layers=(0, 1))
    prompt = replace(tiny_prompt(1), cache=PrefixCache())
    session = target.open(target.prefill(target.encode(prompt), wants), 8, 4, wants)
    session.score(
        DraftTree(torch.tensor([int(prompt.ids[-1]), 20, 21, 22]), shape_of((-1, 0, 0, 2)))
    )
    session.commit([0, 2, 3])
    session.close(torch.tensor([int(prompt.ids[-1]), 21, 22]))
    follow = more(prompt, [21, 22, 23])
    found = target.prefill(target.encode(follow), wants)
    fresh = target.prefill(target.encode(replace(follow, cache=None)), wants)
    assert found.seconds > 0 and torch.allclose(found.hidden, fresh.hidden, atol=1e-4)
    for i in wants.layers:
        assert torch.allclose(found.layers[i], fresh.layers[i], atol=1e-4)


@pytest.mark.parametrize("before", [("ar",), ("dream",), ("ar", "dream")])
def test_exact_lanes_go_on_from_the_same_rows_whatever_was_asked_before(
    models: Models, before: tuple[str, ...]
) -> None:
    target = VLMTarget(VLM(tiny_llava().to(torch.bfloat16), "target", backend="hf"), exact=True)
    assert target.least_rows is not None
    cache, prompt, captures = (
        PrefixCache(),
        tiny_prompt(1),
        {"ar": NOTHING, "dream": Capture(layers=(0, 2))},
    )

    def opened(name: str, prompt: Prompt) -> VLMSession:
        capture = captures[name]
        begun = target.prefill(target.encode(replace(prompt, cache=cache)), capture)
        assert all(len(begun.layers[i]) == len(prompt) - 1 for i in capture.layers)
        return target.open(begun, 8, 8, capture)

    for name in before:
        session = opened(name, prompt)
        for token in (int(prompt.ids[-1]), 7, 8):
            session.score(DraftTree(torch.tensor([token]), chain(0)))
            session.commit([0])
        session.close(torch.tensor([int(prompt.ids[-1]), 7, 8, 9]))
    following = more(prompt, [7, 8, 9])
    plain, other = (opened(name, following)._stream.cache for name in captures)
    assert plain.length == other.length == len(following) - 1
    for i in range(target.decoder.n_layers):
        assert torch.equal(
            plain.layer(i)[..., : plain.length, :], other.layer(i)[..., : plain.length, :]
        )
