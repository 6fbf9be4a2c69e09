"""The small VLM as drafter: after many rounds it returns what a fresh one does. And its views:
what of a prompt stays, what replaces the rest, where they map.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specvl_demo.core.engine import Lane, SharedPrefill
from specvl_demo.core.types import AuxRequest, Context, Encoded, Prefill, Prompt, Vocabulary
from specvl_demo.decoders.output_head import LogProbabilities, OutputHead
from specvl_demo.methods.base import Models
from specvl_demo.methods.policies import (
    BestFirst,
    BestFirstSettings,
    Chain,
    ChainSettings,
    StaticTree,
)
from specvl_demo.methods.small_vlm import Mixer, SmallVLM
from specvl_demo.methods.views import (
    CAPTION,
    CaptionView,
    FullView,
    PooledView,
    PrunedSettings,
    PrunedView,
    TextView,
    guided_indices,
    kept_count,
)
from specvl_demo.records import Span
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.target import VLMTarget
from tests.shared.heads import decode
from tests.shared.refusals import refuses
from tests.shared.tiny import IMAGE, VOCAB, ask, parts, tiny_llava, tiny_prompt

POLICIES = {
    "chain": lambda: Chain(ChainSettings(4)),
    "tree": StaticTree,
    "best-first": lambda: BestFirst(BestFirstSettings(12, 4, 3)),
}


class Even(Mixer):
    """Records what it is given to learn."""

    def __init__(self) -> None:
        self.learnt: list[tuple[Tensor, Tensor, list[int]]] = []

    def update(self, logp: Tensor, logits: Tensor, tokens: Sequence[int]) -> None:
        self.learnt.append((logp.clone(), logits.clone(), list(tokens)))

    def round_notes(self) -> Mapping[str, Any]:
        return {"views": list(self.views)}


def fresh_logp(vlm: VLM, prompt: Prompt, answer: Sequence[int], views: int) -> Tensor:
    """Return [V], an equal mixture of the views after prompt and answer, by the library."""
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
):
    prompt, mixer = tiny_prompt(2), Even()
    drafter = SmallVLM(small, (FullView(), TextView((5,)))[:views], mixer if views > 1 else None)
    heard = []
    extend = drafter.extend
    drafter.extend = lambda tokens, parents: heard.append(extend(tokens, parents)) or heard[-1]
    lane = Lane("l", parts(drafter, POLICIES[policy]()), SharedPrefill(ask(target, prompt)))
    lane.begin()
    answer = []
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


def test_a_mixer_learns_accepted_positions_and_the_first_mismatch(target: VLMTarget, small: VLM):
    mixer, gamma = Even(), 2
    drafter = SmallVLM(small, (FullView(), TextView((5,))), mixer)
    _, rounds = decode(target, drafter, Chain(ChainSettings(gamma)), tiny_prompt(1))
    drafted = [r for r in rounds[:-1] if r.n_drafted == gamma]
    assert {r.n_accepted for r in drafted} >= {0, 1, gamma}
    for round_, (logp, logits, tokens) in zip(drafted, mixer.learnt):
        positions = min(round_.n_accepted + 1, gamma)
        assert logp.shape == (2, positions, VOCAB) and logits.shape == (positions, VOCAB)
        assert tokens == [t.id for t in round_.tokens][:positions]
        # The target's own choice there, and the mixture's: what was drafted.
        assert logits.argmax(-1).tolist() == tokens
        mixed = logp.exp().mean(0).argmax(-1).tolist()
        assert mixed == round_.tree.tokens[1 : positions + 1]


def test_placeholders_and_foreign_ids_are_never_drafted(llava: torch.nn.Module):
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


def test_drafting_goes_on_behind_a_word_that_the_drafter_cannot_read(llava: torch.nn.Module):
    """The target emits ids beyond the drafter's table; drafting continues."""
    target = VLMTarget(VLM(llava, "t"))
    drafter = SmallVLM(VLM(tiny_llava(layers=1, seed=5, vocab=40), "d"), (FullView(),))
    chain, prompt = Chain(ChainSettings(3)), tiny_prompt(0, vocab=40)
    said, _ = decode(target, drafter, chain, prompt, max_new_tokens=30)
    assert max(said) >= 40 and len(said) == 30


@torch.inference_mode()
@pytest.mark.parametrize("banned", [(), (3, 9)])
def test_a_draft_vocabulary_equals_normalizing_over_all_ids(small: VLM, banned: tuple[int, ...]):
    """Ids without a row, banned ones and those beyond the size have no probability."""
    ids = torch.tensor([9, 3, 1, 20, 4, 17, 2, 30, 11, 8, 25, 6])
    narrow = OutputHead(small.decoder.output_head_rows(ids), small.decoder.vocab, ids)
    hidden, size = torch.randn(2, 3, small.decoder.width), 28
    wide = narrow(hidden)[..., :size].float()
    wide[..., list(banned)] = -torch.inf
    said = LogProbabilities(narrow, Vocabulary(size, banned), ids.device)(hidden)
    torch.testing.assert_close(said, wide.log_softmax(-1))
    assert said.shape[-1] == size and (said.isfinite().sum(-1) == 11 - len(banned)).all()


D, C = 6, 5
TABLE = torch.randn(100, D, generator=torch.Generator().manual_seed(0))
PROJECTOR = torch.randn(C, D, generator=torch.Generator().manual_seed(1))
EYES = SimpleNamespace(
    decoder=SimpleNamespace(embed=lambda ids: TABLE[ids]),
    project=lambda features: features @ PROJECTOR,
)


def pruned(layers: tuple[int, ...] = (), **settings: object) -> PrunedView:
    return PrunedView(PrunedSettings(**settings), layers)


def prompt(layout: str, spans: tuple[Span, ...] = (), axes: int = 1) -> Encoded:
    """'t' a text token, 'v' a visual one; text ids count from 20, visual ones are all 5."""
    visual = torch.tensor([c == "v" for c in layout])
    n = len(layout)
    features = torch.randn(int(visual.sum()), C, generator=torch.Generator().manual_seed(2))
    ids = torch.where(visual, 5, torch.arange(n) + 20)
    embeds = TABLE[ids]
    embeds[visual] = features @ PROJECTOR
    positions = torch.arange(n) if axes == 1 else torch.arange(n).expand(3, -1) * 2
    return Encoded(ids, visual, embeds, positions, Prompt(ids, visual, {}, spans), features)


def image(start: int, rows: int, cols: int, kind: str = "image") -> Span:
    return Span(kind, 0, 0, start, start + rows * cols, rows, cols)


def asked(encoded: Encoded, attention: Tensor | None = None) -> Prefill:
    """The target's prefill; attention [rows, P] of layers 0 and 1, the second three times it."""
    layers = {} if attention is None else {0: attention, 1: attention * 3}
    return Prefill(encoded, encoded.embeds[:-1], None, attention=layers)


def seen(view: object, encoded: Encoded, attention: Tensor | None = None) -> Context:
    context = view.build_context(encoded, EYES, asked(encoded, attention))
    assert context.name == view.name
    columns = (context.ids, context.embeds, context.index, context.visual)
    assert {len(column) for column in columns} == {context.positions.shape[-1]}
    mine = context.index >= 0
    assert torch.equal(context.ids[mine], encoded.ids[context.index[mine]])
    assert context.index.max() < len(encoded.ids) - 1, "the last prompt token is the round's root"
    return context


def test_captions_stand_where_their_pictures_stood(monkeypatch):
    view = CaptionView((30, 31), ask=(), stop=())
    assert seen(view, prompt("tttt")).ids.tolist() == [20, 21, 22]
    captions = [[], [40, 41]]
    monkeypatch.setattr(CaptionView, "write_caption", lambda *_: captions.pop())
    context = seen(view, prompt("tvvvtvvt"))
    assert context.ids.tolist() == [20, 30, 31, 40, 41, 24, 30, 31]
    assert context.index.tolist() == [0, -1, -1, -1, -1, 4, -1, -1]


def test_a_drafter_that_reads_only_text_writes_no_captions():
    blind = SimpleNamespace(name="a language model", sees=False)
    models = Models(SimpleNamespace(), {"small": blind}, {"caption": (6,), "describe": (7,)})
    sentence = "a language model reads only text .* leave the view"
    refuses(sentence, CAPTION.build, models, CAPTION.settings())


def test_pooling_takes_every_picture_by_itself_and_odd_grids_too():
    encoded = prompt("t" + "v" * 15 + "v" * 4 + "tt", (image(1, 3, 5), image(16, 2, 2)))
    context = seen(PooledView(), encoded)
    assert len(context.ids) == 1 + 2 * 3 + 1 + 1
    assert context.index.tolist() == [0, 1, 2, 4, 6, 7, 9, 16, 20]
    assert torch.allclose(context.embeds[7], encoded.features[15:].mean(0) @ PROJECTOR, atol=1e-6)


def test_pooling_without_a_grid_changes_nothing_and_without_features_is_refused():
    encoded = prompt("tvvvvtt")
    assert torch.equal(seen(PooledView(), encoded).embeds, encoded.embeds[:-1])
    bare = replace(prompt("tvvvvtt", (image(1, 2, 2),)), features=None)
    refuses("leave this view out", PooledView().build_context, bare, EYES, None)


@pytest.mark.parametrize("axes", [1, 3])
def test_even_pruning_keeps_the_text_and_evenly_spaced_patches(axes: int):
    """On one axis positions leave no gaps; three axes keep theirs."""
    encoded = prompt("tt" + "v" * 20 + "ttt", (image(2, 4, 5),), axes)
    context = seen(pruned(drop_image=0.8), encoded)
    kept = [2 + i for i in (0, 6, 12, 19)]
    assert context.index.tolist() == [0, 1, *kept, 22, 23]
    if axes == 1:
        assert context.positions.tolist() == list(range(8)) and context.next_position == 8
    else:
        assert torch.equal(context.positions, encoded.positions[..., context.index])
        assert context.next_position == encoded.positions[..., -1].max()


def test_pictures_and_clips_have_their_own_rates():
    spans = (image(1, 2, 5), image(12, 4, 5, "video"))
    context = seen(
        pruned(drop_image=0.8, drop_video=0.9),
        prompt("t" + "v" * 10 + "t" + "v" * 20 + "tt", spans),
    )
    assert context.index.tolist() == [0, 1, 10, 11, 12, 31, 32]


@pytest.mark.parametrize(
    ("total", "rate", "keep"),
    [(1000, 0.9, 100), (10, 0.9, 1), (5, 0.9, 1), (1, 0.9, 1), (36, 0.8, 7), (36, 0, 36)],
)
def test_a_rate_of_pruning_keeps_that_share_of_the_tokens(total: int, rate: float, keep: int):
    assert kept_count(total, rate) == keep


def test_guided_pruning_takes_the_attended_then_evenly_from_the_rest():
    """Sum 20; 40 % is 8: the best two (5 + 4) reach it; of 8 others first, middle, last stay."""
    scores = torch.tensor([1.0, 5, 1, 1, 4, 1, 1, 1, 3, 2])
    assert guided_indices(scores, 5, 0.4).tolist() == [0, 1, 4, 5, 9]
    assert guided_indices(scores, 2, 0.4).tolist() == [1, 4]
    assert guided_indices(scores, 1, 0.4).tolist() == [1]
    assert guided_indices(scores, 10, 0.4).tolist() == list(range(10))
    assert guided_indices(torch.ones(4), 2, 0.0).tolist() == [0, 1], "no share takes the best one"


def test_guided_pruning_listens_to_the_question_only():
    """Rows before the last three (the question but its last token) are the picture's."""
    encoded = prompt("t" + "v" * 10 + "tttt", (image(1, 2, 5),))
    attention = torch.zeros(14, 14)
    attention[:11, 3] = 1.0
    attention[11:, 7] = 1.0
    context = seen(pruned(drop_image=0.9, layers=(0, 1)), encoded, attention)
    assert context.index[context.visual].tolist() == [7]


def test_guided_pruning_asks_the_target_for_its_attention():
    view = pruned(layers=(2, 5))
    assert view.aux_request.attention == (2, 5) and view.aux_request.rows[-1] == -1
    assert pruned().aux_request == AuxRequest()
    encoded = prompt("tvvvt")
    sentence = r"layers \[2, 5\].*guided=false"
    refuses(sentence, view.build_context, encoded, EYES, asked(encoded))
