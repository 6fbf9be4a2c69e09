"""What must hold for every family: answers, trees, views, spans, aux states. A new family must
pass these tests.

Tiny random models of the real classes with their real processors, in float32, so that every
identity is exact. A drafter is the target with noise on its weights: often right, not always.
"""

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from specvl_demo.core.tree import DraftTree, chain, shape_of
from specvl_demo.core.types import AuxRequest, Context, Encoded, Prompt
from specvl_demo.core.verification import accepted_path
from specvl_demo.decoders.batch_invariance import MAX_NODES
from specvl_demo.decoders.sequence import prefill
from specvl_demo.methods.ar import OneNode
from specvl_demo.methods.policies import BestFirst, BestFirstSettings
from specvl_demo.methods.sage import EntropyTree, SageSettings
from specvl_demo.methods.views import (
    CaptionView,
    FullView,
    PooledView,
    PrunedSettings,
    PrunedView,
    TextView,
)
from specvl_demo.question import Question
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.layouts import visual_runs
from specvl_demo.vlm.prompts import PromptBuilder
from specvl_demo.vlm.target import VLMTarget
from tests.contract.families.conftest import (
    SHOWN,
    TOKENS,
    Here,
    load,
    often,
    prompt_of,
    reference,
)
from tests.shared import zoo
from tests.shared.refusals import refuses
from tests.shared.tiny import rounds_of

pytest.importorskip("torchvision", reason="most processors of these families need torchvision")

shown = pytest.mark.parametrize("shown", SHOWN)
seen = pytest.mark.parametrize("shown", [name for name in SHOWN if name != "nothing"])

LOSSLESS = {
    "static tree": ("tree", {}),
    "pruned by the target's attention": ("specvlm", {"drop_image": 0.5, "drop_video": 0.5}),
    "four views": ("tabed", {"views": "multimodal+text-only+caption+pruned", "policy": "beam"}),
    "entropy tree, as it grows": ("sage", {"growth": "online", "drop_image": 0.3}),
}
WELL_INFORMED = ("static tree", "four views")
"""Methods whose drafter, the target with noise, sees all that the target sees: right at times."""


@shown
@pytest.mark.parametrize("here", often([*zoo.FAMILIES, *zoo.RECURRENT]), indirect=True)
def test_plain_decoding_is_what_generate_gives(here: Here, shown: str):
    assert len(set(reference(here, shown)[0])) > 4, (
        "an answer that repeats itself would prove little"
    )
    inner = here.target.vlm.model.base_model
    if hasattr(inner, "rope_deltas"):
        # Another request may have left something on the module, which must not be read.
        inner.rope_deltas = torch.tensor([[999]])
    here.answer("ar", shown)


@pytest.mark.parametrize(
    ("shown", "method"),
    [
        *itertools.product(("picture",), LOSSLESS),
        # What clips and several pictures change is how they are shown; the tests below hold every
        # view to it.
        *(("clip", method) for method in ("pruned by the target's attention", "four views")),
        ("two pictures", "four views"),
    ],
)
def test_lossless_methods_give_the_plain_answer(here: Here, shown: str, method: str):
    name, settings = LOSSLESS[method]
    rounds = rounds_of(here.answer(name, shown, **settings))
    assert any(len(round_.tree.tokens) > 1 for round_ in rounds), "nothing was ever drafted"
    if method in WELL_INFORMED:
        assert len(rounds) < TOKENS, "nothing drafted was ever accepted"


@seen
def test_a_pooled_picture_is_served_or_refused_in_a_sentence(here: Here, shown: str):
    """Where no features lie one to one under a family's visual tokens, nothing is averaged."""
    settings = {"views": "multimodal+pooled", "policy": "beam"}
    if here.pools:
        begin, *_ = here.answer("tabed", shown, **settings)
        seen_by = {part.view: part for part in begin.seen}
        assert 0 < seen_by["pooled"].n < seen_by["multimodal"].n
        return
    try:
        here.answer("tabed", shown, **settings)
    except ValueError as reason:
        assert "leave this view out" in str(reason) and "\n" not in str(reason)
        return
    # Visual tokens that form no grid stay as they are.
    assert not any(span.rows and span.cols for span in prompt_of(here, shown).spans)


@pytest.mark.parametrize(
    ("shown", "policy"),
    [*((name, "chain") for name in SHOWN if name != "nothing"), ("picture", "static-tree")],
)
def test_a_drafter_that_is_the_target_is_never_corrected(here: Here, shown: str, policy: str):
    """Positions, masks and cache of the drafting side are right: its guess is the target's word."""
    records = here.answer("custom", shown, drafter="self", policy=policy)
    for round_ in rounds_of(records)[:-1]:
        # A random model may say a placeholder, which is never drafted.
        assert len(round_.tokens) == 6 or round_.tokens[-1].id in here.target.vlm.placeholders


@shown
def test_random_trees_score_what_the_library_scores(here: Here, shown: str):
    """Logits, not only ids, through trees whose accepted nodes lie anywhere."""
    prompt, (truth, logits) = prompt_of(here, shown), reference(here, shown)
    close = {"atol": 1e-4 * float(logits.abs().max()), "rtol": 1e-4}
    for target in here.targets:
        session = target.open(target.prefill(target.encode(prompt)), TOKENS, 16)
        rng, emitted = random.Random(0), []
        while len(emitted) < TOKENS:
            root = emitted[-1] if emitted else int(prompt.ids[-1])
            tree = wandering_tree(truth[len(emitted) :], root, rng)
            scores = session.score(tree)
            path = accepted_path(
                tree.shape, tree.tokens.tolist(), scores.logits.argmax(-1).tolist()
            )
            for node in path[: TOKENS - len(emitted)]:
                assert_close(scores.logits[node], logits[len(emitted)], **close)
                emitted.append(int(scores.logits[node].argmax()))
            session.commit(path)
        assert emitted == truth


def wandering_tree(truth: list[int], root: int, rng: random.Random, size: int = 10) -> DraftTree:
    """A branch that is right for a while, others that are not, in any order below their parents."""
    tokens, parent = [root], [-1]
    right = 0
    for token in truth[: rng.randrange(5)]:
        while rng.random() < 0.4:
            parent.append(rng.randrange(len(tokens)))
            tokens.append(rng.randrange(3, 200))
        parent.append(right)
        right = len(tokens)
        tokens.append(token)
    while len(tokens) < size:
        parent.append(rng.randrange(len(tokens)))
        tokens.append(rng.randrange(3, 200))
    return DraftTree(torch.tensor(tokens), shape_of(tuple(parent)))


CAPTIONS = [[21, 22, 23, 24 + i] for i in range(99)]


class SaidCaptions(CaptionView):
    """Captions that are known."""

    def write_caption(self, encoded: Encoded, encoder: Any, stop: int) -> list[int]:
        return CAPTIONS[[end for _, end in visual_runs(encoded.visual)].index(stop)]


@seen
def test_views_in_one_batch_say_what_the_library_says_of_each(here: Here, shown: str):
    """Full, text-only, captioned, pruned and pooled prompts in one batch, a branch after each."""
    vlm = here.models.drafter("small")
    prompt = prompt_of(here, shown)
    encoded = vlm.encode(prompt)
    prefix = here.models.words["caption"]
    views = [
        FullView(),
        TextView(here.models.words["newline"]),
        SaidCaptions(prefix, (), ()),
        PrunedView(PrunedSettings(0.5, 0.5)),
    ]
    if here.pools:
        views.append(PooledView())
    contexts = [view.build_context(encoded, vlm, None) for view in views]
    root, wrong, right, last = int(prompt.ids[-1]), 7, 11, 13
    room = max(len(context.ids) for context in contexts) + 8
    sequence = prefill(vlm.decoder, contexts, room).sequence

    def feed(*tokens: int) -> Tensor:
        return vlm.decoder.embed(torch.tensor(tokens)).expand(len(views), -1, -1)

    sequence.run_root(feed(root))
    sequence.extend(feed(wrong, right), [0, 0])
    said = vlm.decoder.logits(sequence.extend(feed(last), [2]))[:, -1]
    behind = [root, right, last]
    wanted = [
        _full(vlm, prompt.inputs, behind[1:]),
        _without(vlm, encoded, itertools.repeat(here.models.words["newline"]), behind),
        _without(vlm, encoded, ((*prefix, *caption) for caption in CAPTIONS), behind),
        _pruned(vlm, prompt.inputs, contexts[3], behind),
    ]
    if here.pools:
        wanted.append(_pooled(vlm, encoded, contexts[4], behind))
    scale = float(wanted[0].abs().max())
    for view, mine, theirs in zip(views, said, wanted, strict=True):
        assert_close(mine, theirs, atol=1e-4 * scale, rtol=1e-4, msg=view.name)


def _full(vlm: VLM, inputs: dict[str, Any], behind: list[int]) -> Tensor:
    """Run the library on the whole prompt followed by tokens."""
    longer = {k: v for k, v in inputs.items() if k not in ("input_ids", "attention_mask")}
    more = torch.tensor([behind])
    for key in ("mm_token_type_ids", "token_type_ids"):
        if key in longer:
            longer[key] = torch.cat((longer[key], torch.zeros_like(more)), 1)
    ids = torch.cat((inputs["input_ids"], more), 1)
    return vlm.model(input_ids=ids, attention_mask=torch.ones_like(ids), **longer).logits[0, -1]


def _without(
    vlm: VLM, encoded: Encoded, instead: Iterable[tuple[int, ...]], behind: list[int]
) -> Tensor:
    """The library on a prompt without a picture, with words in place of each run of its tokens."""
    ids, inside, words = [], False, iter(instead)
    for token, visual in zip(encoded.ids.tolist()[:-1], encoded.visual.tolist()):
        ids += next(words) if visual and not inside else () if visual else (token,)
        inside = visual
    tensor = torch.tensor([ids + behind])
    types = {key: torch.zeros_like(tensor) for key in ("mm_token_type_ids", "token_type_ids")}
    accepted = {k: v for k, v in types.items() if k in vlm.model.forward.__code__.co_varnames}
    return vlm.model(input_ids=tensor, attention_mask=torch.ones_like(tensor), **accepted).logits[
        0, -1
    ]


def _pruned(vlm: VLM, inputs: dict[str, Any], context: Context, behind: list[int]) -> Tensor:
    """The library's decoder on what the view kept, at positions worked out here."""
    given = _given_to_decoder(vlm, inputs)
    keep = context.index
    assert 0 < int(context.visual.sum()) < int(inputs_visual(vlm, inputs).sum())
    x = torch.cat((given["inputs_embeds"][:, keep], vlm.decoder.embed(torch.tensor([behind]))), 1)
    after = torch.arange(len(behind))
    if given.get("position_ids") is not None and given["position_ids"].ndim == 3:
        # Three axes understand gaps: what stays, stays where it was.
        old = given["position_ids"][-3:]
        last = old[:, :, -1:]
        positions = torch.cat((old[:, :, keep], last + after), -1)
    else:
        positions = torch.arange(x.shape[1])[None]
    more = {}
    if "deepstack_visual_embeds" in given and given["deepstack_visual_embeds"] is not None:
        visual = inputs_visual(vlm, inputs)
        rows = (visual.cumsum(0) - 1)[keep[context.visual]]
        more["deepstack_visual_embeds"] = [e[rows] for e in given["deepstack_visual_embeds"]]
        more["visual_pos_masks"] = torch.cat(
            (context.visual, torch.zeros(len(behind), dtype=torch.bool))
        )[None]
    typed = next((key for key in ("token_type_ids", "mm_token_type_ids") if key in inputs), "")
    if "gemma" in vlm.model.config.model_type and typed:
        # Gemma builds its own mask if it gets the positions of a picture.
        types = torch.cat((context.visual.long(), torch.zeros(len(behind), dtype=torch.long)))[None]
        ones = torch.ones_like(types)
        out = vlm.model(
            inputs_embeds=x, position_ids=positions, attention_mask=ones, **{typed: types}
        )
        return out.logits[0, -1]
    return _decoded(vlm, inputs_embeds=x, position_ids=positions, **more)


def _decoded(vlm: VLM, **inputs: Any) -> Tensor:
    """The library's logits behind the last row."""
    hidden = vlm.model.get_decoder()(**inputs).last_hidden_state
    return vlm.model.get_output_embeddings()(hidden[0, -1])


def _pooled(vlm: VLM, encoded: Encoded, context: Context, behind: list[int]) -> Tensor:
    """The library's decoder on a picture whose features were averaged over 2 x 2, by hand."""
    inner, side = vlm.model.base_model, encoded.prompt.spans[0].rows
    pictures = encoded.features.view(-1, side, side, encoded.features.shape[-1])
    small = torch.stack(
        [
            pictures[:, r : r + 2, c : c + 2].mean((1, 2))
            for r in range(0, side, 2)
            for c in range(0, side, 2)
        ],
        1,
    )
    x = vlm.decoder.embed(torch.cat((context.ids, torch.tensor(behind)))).clone()
    x[: len(context.ids)][context.visual] = inner.multi_modal_projector(small).flatten(0, 1)
    return _decoded(vlm, inputs_embeds=x[None])


def inputs_visual(vlm: VLM, inputs: dict[str, Any]) -> Tensor:
    return torch.isin(inputs["input_ids"][0], torch.tensor(vlm.placeholders))


class _Caught(Exception):
    pass


def _given_to_decoder(vlm: VLM, inputs: dict[str, Any]) -> dict[str, Any]:
    """What the library would give its decoder."""
    given = {}

    def catch(_: Any, args: Any, kwargs: dict[str, Any]) -> None:
        given.update(kwargs)
        raise _Caught

    hook = vlm.model.get_decoder().register_forward_pre_hook(catch, with_kwargs=True)
    with pytest.raises(_Caught):
        vlm.model(**inputs)
    hook.remove()
    return given


@seen
def test_captured_states_and_attention_are_the_librarys(here: Here, shown: str):
    prompt, layer = prompt_of(here, shown), 2
    wish = AuxRequest(layers=(0, layer), attention=(1, layer), rows=(-1, -3))
    here.library.set_attn_implementation("eager")
    try:
        out = here.library(**prompt.inputs, output_attentions=True, output_hidden_states=True)
    finally:
        here.library.set_attn_implementation("sdpa")
    n = len(prompt) - 1
    for target in here.targets:
        mine = target.prefill(target.encode(prompt), wish)
        assert_close(mine.hidden, out.hidden_states[-1][0, :n], atol=2e-4, rtol=1e-3)
        # The library returns the input of an inner layer before DeepStack adds to it.
        for i in (0,) if here.name.startswith("qwen3") else wish.layers:
            assert_close(mine.layers[i], out.hidden_states[i][0, :n], atol=2e-4, rtol=1e-3)
        for i in wish.attention:
            wanted = out.attentions[i][0].mean(0)[[n - 1, n - 3], :n]
            assert_close(mine.attention[i], wanted, atol=1e-5, rtol=1e-4)


@seen
def test_every_visual_token_belongs_to_what_is_shown(here: Here, shown: str):
    prompt = prompt_of(here, shown)
    covered = torch.zeros_like(prompt.visual)
    for span in prompt.spans:
        covered[span.start : span.stop] = True
        assert span.kind == ("video" if shown == "clip" else "image")
        if span.rows:
            n_visual = int(prompt.visual[span.start : span.stop].sum())
            assert span.rows * span.cols == span.stop - span.start == n_visual
    assert bool((covered | ~prompt.visual).all()), "a visual token that shows nothing"
    assert {span.media for span in prompt.spans} == set(range(2 if shown == "two pictures" else 1))
    if shown == "clip":
        frames = [span.frame for span in prompt.spans]
        assert frames == sorted(frames) and max(frames) in (2, 3)


@seen
@pytest.mark.parametrize("method", ["chain", "tabed", "sage"])
def test_a_drafter_that_cuts_pictures_otherwise_drafts_all_the_same(shown: str, method: str):
    """It gets a prompt from its own processor; what it saw is told in the target's positions."""
    here = load("smolvlm")
    model, processor = zoo.build("smolvlm-other-cut")
    drafter = VLM(model, "another cut", again=PromptBuilder(processor, model).rebuild)
    begin, *_ = here.answer(method, shown, replace(here.models, drafters={"small": drafter}))
    prompt = prompt_of(here, shown)
    for seen_by in begin.seen:
        if seen_by.view in ("multimodal", "pruned"):
            text = {i for i in seen_by.index if i >= 0 and not prompt.visual[i]}
            assert text == set((~prompt.visual[:-1]).nonzero().flatten().tolist())
            assert any(prompt.visual[i] for i in seen_by.index if i >= 0)


def test_a_prompt_that_would_be_misread_is_refused():
    """Without its token types Qwen2.5-VL silently falls back to text positions for a picture."""
    here = load("qwen2.5-vl")
    prompt = prompt_of(here, "picture")
    untyped = {key: value for key, value in prompt.inputs.items() if key != "mm_token_type_ids"}
    with pytest.raises((ValueError, RuntimeError, TypeError, AttributeError)):
        here.target.vlm.encode(replace(prompt, inputs=untyped))
    longer = torch.cat((prompt.ids, prompt.ids[-1:]))
    visual = torch.isin(longer, torch.tensor(here.target.vlm.placeholders))
    refuses("expanded", here.target.vlm.encode, replace(prompt, ids=longer, visual=visual))


INVARIANT = ["llava", "llava-onevision", "qwen2.5-vl", "qwen3-vl", "gemma3", "gemma4"]
INVARIANT += ["glm4v", "smolvlm", "internvl"]
IN_FLOAT16 = ("llava", "qwen2.5-vl")


@pytest.mark.parametrize("name", often(INVARIANT))
def test_trees_say_what_plain_steps_say_bit_for_bit(name: str):
    for dtype in (torch.bfloat16, torch.float16) if name in IN_FLOAT16 else (torch.bfloat16,):
        model, processor = zoo.build(name)
        target = VLMTarget(VLM(model.to(dtype), name, backend="hf"), batch_invariant=True)
        assert target.min_invariant_rows is not None and target.exactness(26) == "exact"
        prompter = PromptBuilder(processor, model)
        for kind in ("nothing", "picture", "two pictures"):
            check_plain_steps(target, prompter.prompt(Question("what is this ?", SHOWN[kind]())))


def check_plain_steps(target: VLMTarget, prompt: Prompt) -> None:
    """Compare every node along an answer, in random trees, with the plain steps."""
    begun = target.prefill(target.encode(prompt))
    plain, said, logits = target.open(begun, TOKENS, 1), [int(prompt.ids[-1])], []
    for _ in range(TOKENS):
        logits.append(plain.score(DraftTree(torch.tensor(said[-1:]), chain(0))).logits[0])
        said.append(int(logits[-1].argmax()))
        plain.commit([0])
    session, rng, done = target.open(begun, TOKENS, 40), random.Random(0), 0
    while done < TOKENS:
        tree = wandering_tree(said[done + 1 : TOKENS], said[done], rng, rng.choice((3, 10, 33)))
        scores = session.score(tree)
        path = accepted_path(tree.shape, tree.tokens.tolist(), scores.logits.argmax(-1).tolist())[
            : TOKENS - done
        ]
        for node in path:
            assert torch.equal(scores.logits[node], logits[done])
            done += 1
        session.commit(path)


def test_a_policy_that_feeds_more_than_its_trees_hold_reads_what_plain_steps_read():
    model, processor = zoo.build("llava")
    target = VLMTarget(VLM(model.to(torch.bfloat16), "llava", backend="hf"), batch_invariant=True)
    prompt = PromptBuilder(processor, model).prompt(Question("what is this ?", ()))
    begun, plain = target.prefill(target.encode(prompt)), OneNode().max_nodes
    online = EntropyTree(SageSettings(growth="online"))
    for policy in (online, BestFirst(BestFirstSettings(60, 10, 9))):
        assert policy.max_fed > MAX_NODES and target.exactness(policy.max_nodes) == "exact"
        spans = [
            target.open(begun, TOKENS, nodes)._sequence.cache.buffer_rows
            for nodes in (plain, policy.max_nodes)
        ]
        assert spans[0] == spans[1]
