"""Whole answers on tiny random models: every lossless method says what the target says, whatever its
settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from specvl_demo.core.types import Sampling
from specvl_demo.methods import METHODS
from specvl_demo.records import Begin, Round, validate_trace
from tests.conftest import EOS, tiny_prompt

MTCP = "multimodal+text-only+caption+pooled"
PROMPTS = {
    "picture": tiny_prompt(seed=1),
    "two pictures": tiny_prompt(2, seed=2),
    "text": tiny_prompt(0, 12, seed=3),
}
LOSSLESS: dict[str, tuple[str, dict[str, Any]]] = {
    "tabed": ("tabed", {}),
    "tabed kld": ("tabed", {"weights": "kld", "history": 4}),
    "tabed mtcp": ("tabed", {"views": MTCP, "weights": "kld", "caption_length": 6}),
    "tabed mtcp grid": ("tabed", {"views": MTCP, "caption_length": 6, "grid_steps": 4}),
    "tabed boosted": ("tabed", {"weights": "adaboost", "gamma": 3}),
    "tabed counting": ("tabed", {"weights": "block-efficiency", "history": 1}),
    "tabed beam 2": ("tabed", {"policy": "beam", "beams": 2}),
    "tabed beam 3": ("tabed", {"policy": "beam", "beams": 3, "gamma": 4}),
    "tabed static tree": ("tabed", {"policy": "static-tree"}),
    "tabed with pruned": ("tabed", {"views": "multimodal+pruned+text-only"}),
    "sage": ("sage", {}),
    "sage online": ("sage", {"growth": "online", "first": "entropy", "max_nodes": 10}),
    "sage immediate": ("sage", {"immediate": True}),
    "sage mean": ("sage", {"confidence": "mean", "order": "depth-first", "max_nodes": 12}),
    "sage accepted online": ("sage", {"confidence": "accepted", "growth": "online"}),
    "specvlm": ("specvlm", {}),
    "specvlm even": ("specvlm", {"guided": False, "drop_image": 0.5, "positions": "original"}),
    "specvlm small": ("specvlm", {"tree_nodes": 8, "positions": "compact", "drop_image": 0.3}),
    "self-drafting": ("specvlm", {"drafter": "self", "drop_image": 0.5}),
    "tabed's views, sage's tree": ("custom", {"views": "multimodal+text-only", "policy": "entropy-tree"}),
    "lvspec without looseness": ("lvspec", {"loose": 0.0, "shift": False}),
    "two branches without looseness": (
        "lvspec",
        {"loose": 0.0, "shift": False, "policy": "branches", "gamma": 4},
    ),
    "fly that never opens": ("fly", {"gate": 2.0}),
}


@pytest.fixture(scope="module")
def plain(answers: Callable[..., Any]) -> dict[str, list[int]]:
    return {name: answers("ar", prompt)[0] for name, prompt in PROMPTS.items()}


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("case", LOSSLESS)
def test_greedy_answers_are_the_targets(
    case: str, prompt: str, answers: Callable[..., Any], plain: dict[str, list[int]]
) -> None:
    method, settings = LOSSLESS[case]
    ids, records = answers(method, PROMPTS[prompt], settings)
    assert ids == plain[prompt]
    validate_trace(records)
    rounds = [r for r in records if isinstance(r, Round)]
    assert sum(r.n_relaxed for r in rounds) == 0


def test_the_fixture_tests_something(answers: Callable[..., Any], plain: dict[str, list[int]]) -> None:
    """Answers are long and varied, drafts are sometimes right and sometimes wrong."""
    for name, prompt in PROMPTS.items():
        assert len(plain[name]) >= 8 and len(set(plain[name])) >= 4, (name, plain[name])
        rounds = [r for r in answers("tabed", prompt)[1] if isinstance(r, Round)]
        accepted = [r.n_accepted for r in rounds]
        assert 0 < sum(accepted) < sum(r.n_drafted for r in rounds)


@pytest.mark.parametrize("case", ["tabed", "tabed mtcp", "sage", "sage online", "specvlm", "tabed beam 2"])
def test_seeded_sampling_says_what_plain_decoding_says(case: str, answers: Callable[..., Any]) -> None:
    method, settings = LOSSLESS[case]
    for seed in range(3):
        sampling = Sampling(0.8, top_p=0.95, seed=seed)
        expected = answers("ar", PROMPTS["picture"], sampling=sampling)[0]
        assert answers(method, PROMPTS["picture"], settings, sampling=sampling)[0] == expected


@pytest.mark.parametrize("name", [name for name, m in METHODS.items() if m.presets and m.drafter == "small"])
def test_every_preset_runs(name: str, models: Any) -> None:
    from specvl_demo.assemble import assemble
    from specvl_demo.core.engine import Lane, Shared, race
    from specvl_demo.methods import choose
    from tests.conftest import ask

    for preset in METHODS[name].presets.values():
        choice = choose(name, preset=preset)
        request = ask(models.target, PROMPTS["picture"], max_new_tokens=10)
        records = list(race([Lane(name, assemble(choice, models), Shared(request))]))
        validate_trace(records)
        assert records[0].settings == choice.settings


@pytest.mark.parametrize("case", ["tabed mtcp", "sage", "specvlm"])
def test_what_the_drafter_saw_is_told(case: str, answers: Callable[..., Any]) -> None:
    method, settings = LOSSLESS[case]
    begin = answers(method, PROMPTS["two pictures"], settings)[1][0]
    assert isinstance(begin, Begin)
    seen = {view.view: view for view in begin.seen}
    visual = range(begin.spans[0].start, begin.spans[-1].stop)
    kept = {name: sum(i in visual for i in view.index) for name, view in seen.items()}
    if method == "tabed":
        words = {name: view.words for name, view in seen.items() if view.words}
        # the fixture's lexicon spells ids; 5 is its newline, 6 and 7 stand before a caption
        assert words["text-only"] == "5 "
        assert words["caption"].startswith("6 7 ") and len(words["caption"].split()) > 2
        assert words.keys() == {"text-only", "caption"}
        assert kept == {"multimodal": 18, "text-only": 0, "caption": 0, "pooled": 8}
    else:
        assert kept["pruned"] == {"sage": 3, "specvlm": 1}[method]
        assert all(
            i not in visual or begin.spans[0].start <= i < begin.n_prompt for i in seen["pruned"].index
        )


def test_notes_of_tabed(answers: Callable[..., Any]) -> None:
    rounds = [r for r in answers("tabed", PROMPTS["picture"])[1] if isinstance(r, Round)]
    assert rounds[0].notes["weights"] == {"multimodal": 0.5, "text-only": 0.5}
    assert all(sum(r.notes["weights"].values()) == pytest.approx(1) for r in rounds)
    counted = 0
    for r in rounds:
        assert r.notes["counted"] == counted
        # accepted positions and the first mismatch; a full block of 5 has no draft distribution at its end
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
        assert max(r.tree.depth) <= notes["depth"]


def test_lvspec_relaxes_counts_and_says_which(answers: Callable[..., Any]) -> None:
    """Fully loose and deep drafts: tokens that the target alone would not say are accepted, and told as
    such."""
    ids, records = answers("lvspec", PROMPTS["picture"], {"loose": 1.0, "drop_image": 0.9})
    rounds = [r for r in records if isinstance(r, Round)]
    assert not records[0].lossless
    relaxed = [
        (r, t, n) for r in rounds for t, n in zip(r.tokens, r.path[1:], strict=False) if t.origin == "relaxed"
    ]
    assert relaxed and records[-1].totals.n_relaxed == len(relaxed)
    for r, token, node in relaxed:
        assert token.id == r.tree.tokens[node] and token.id != EOS
        assert node in r.notes["relaxed_nodes"] and node in r.notes["loosened"]
    for r in rounds:
        assert len(r.notes["relevance"]) == len(r.notes["nodes"])


def test_lvspec_of_a_text_prompt_is_strict(answers: Callable[..., Any], plain: dict[str, list[int]]) -> None:
    ids, records = answers("lvspec", PROMPTS["text"])
    assert ids == plain["text"]
    assert "no picture" in records[1].notes["strict"]


def test_lvspec_drafts_for_itself(answers: Callable[..., Any]) -> None:
    """The target with the whole picture always agrees with itself; with less of it, it need not."""
    whole = answers("lvspec", PROMPTS["picture"], {"drafter": "self", "views": "multimodal"})[1]
    assert whole[-1].totals.n_relaxed == 0
    rounds = [r for r in whole if isinstance(r, Round)]
    assert all(r.n_accepted == r.n_drafted for r in rounds)
    assert whole[0].models["drafter"] == whole[0].models["target"]


def test_loose_methods_refuse_sampling(answers: Callable[..., Any]) -> None:
    for method in ("lvspec", "fly"):
        with pytest.raises(ValueError, match="temperature"):
            answers(method, PROMPTS["picture"], sampling=Sampling(0.7))


@torch.inference_mode()
def test_all_views_in_one_batch_say_what_each_says_alone(models: Any) -> None:
    """Left padding, masks and positions of a row: five views through three rounds of trees, to 1e-5."""
    from specvl_demo import assemble as build
    from specvl_demo.core.mixture import mixture
    from specvl_demo.core.policies import static_tree
    from specvl_demo.core.types import Start, Verdict
    from specvl_demo.drafters.small_vlm import SmallVLM

    prompt, target = PROMPTS["two pictures"], models.target
    encoded = target.encode(prompt)
    views = [
        build.full_view(models),
        build.text_view(models),
        build.caption_view(models, 5),
        build.pooled_view(models, 2),
        build.pruned_view(models, 0.5, 0.5, False, 0.4, "original"),
    ]
    start = Start(
        prompt=prompt,
        encoded=encoded,
        prefill=target.prefill(encoded),
        encode=lambda eyes: eyes.encode(prompt),
        target_decoder=target.decoder,
        vocabulary=target.vocabulary,
        sampling=Sampling(),
        max_new_tokens=30,
        max_nodes=26,
    )
    together = SmallVLM(models.drafter("small"), views, mixture())
    alone = [SmallVLM(models.drafter("small"), [view]) for view in views]
    for drafter in (together, *alone):
        drafter.begin(start)
    lengths = {len(index) for index in together.seen().values()}
    assert len(lengths) >= 4, "views of different lengths, or padding is not tested"
    policy, root = static_tree(12), int(prompt.ids[-1])
    for accepted in (2, 0, 3):
        tree = policy.grow(together, torch.tensor([root]), 20)
        fed = [row for row in tree.rows if row >= 0]
        batched = together.views(fed)
        tokens = [int(tree.tokens[tree.rows.index(row)]) for row in fed]
        above = [tree.rows[tree.shape.parent[tree.rows.index(row)]] if row else -1 for row in fed]
        path = tree.shape.path(max(range(len(tree)), key=lambda n: (tree.shape.depth[n] == accepted, -n)))
        verdict = Verdict(
            path,
            [*(int(tree.tokens[n]) for n in path[1:]), 11 + accepted],
            [False] * (len(path) - 1),
            [0] * len(tree),
        )
        scores = type("Scores", (), {"logits": torch.randn(len(tree), target.decoder.vocab)})()
        for drafter, view in zip(alone, views, strict=True):
            said = [drafter.extend(torch.tensor(tokens[:1]), (-1,))]
            said += [
                drafter.extend(torch.tensor([t]), (p,)) for t, p in zip(tokens[1:], above[1:], strict=True)
            ]
            assert torch.allclose(torch.cat(said), batched[view.name], atol=1e-5)
            drafter.commit(tree, verdict, scores)
        together.commit(tree, verdict, scores)
        root = verdict.tokens[-1]


@torch.inference_mode()
def test_captions_are_the_drafters_own_greedy_words(models: Any) -> None:
    """The same as the library's generate on <prompt up to the picture> <question>, for each of two
    pictures."""
    from specvl_demo.drafters.captions import OwnCaptions

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

    from specvl_demo.drafters.captions import OwnCaptions

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
