"""The recipes of EAGLE-2, HiViS and DREAM run end to end on tiny random targets."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from recipes import features
from recipes.__main__ import TRAININGS, standards
from recipes.answers import example
from recipes.drafters import KINDS
from recipes.drafters import run as drafters
from recipes.drafters.base import Batch, Learner, Recipe, draft_vocabulary
from recipes.features import Example, Store
from specvl_demo.core.types import Prompt
from specvl_demo.methods.ar import OneNode
from specvl_demo.methods.heads.checkpoints import open_head
from specvl_demo.methods.heads.features import FeatureDrafter
from specvl_demo.methods.policies import Chain, ChainSettings
from specvl_demo.question import Question
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.prompts import PromptBuilder
from specvl_demo.vlm.target import VLMTarget
from tests.shared import zoo
from tests.shared.heads import begun, decode
from tests.shared.refusals import refuses
from tests.shared.tiny import tiny_llava, tiny_prompt

METHODS = ("eagle2", "hivis", "dream")
SERVED = ("llava", "qwen2.5-vl")
LENGTH, N = 14, 4


class Asked:
    """A tiny target with a few prompts and its greedy answers."""

    def __init__(self, family: str) -> None:
        torch.manual_seed(0)
        with torch.no_grad():
            if family == "deep":  # enough layers for EAGLE-3 to read three of them
                self.model, inputs = tiny_llava(layers=8, vocab=300), dict(tiny_prompt().inputs)
            else:
                self.model, processor = zoo.build(family)
                asked = Question("what is this thing in the picture ?", (zoo.picture(0),))
                inputs = dict(PromptBuilder(processor, self.model).prompt(asked).inputs)
        self.model.eval().requires_grad_(False)
        self.model.generation_config.eos_token_id = None
        self.target = VLMTarget(VLM(self.model, f"tiny {family}"))
        self.prompts: list[Prompt] = []
        self.answers: list[list[int]] = []
        for i in range(20):
            # A random target may say a placeholder; such an answer is cut, perhaps to nothing.
            prompt = asking(i, inputs, self.target)
            ids, _ = decode(self.target, None, OneNode(), prompt, max_new_tokens=LENGTH)
            said = list(takewhile(lambda token: token not in self.target.vocabulary.banned, ids))
            if len(said) >= LENGTH // 2 and len(self.prompts) < N:
                self.prompts.append(prompt)
                self.answers.append(said)
        assert len(self.prompts) == N

    def examples(self) -> Iterator[Example]:
        for prompt, said in zip(self.prompts, self.answers, strict=True):
            yield example(prompt, said)


def asking(i: int, inputs: dict[str, torch.Tensor], target: VLMTarget) -> Prompt:
    """The family's picture with another question after it."""
    ids = inputs["input_ids"].clone()
    ids[0, -6:] = torch.randint(60, 290, (6,), generator=torch.Generator().manual_seed(100 + i))
    visual = torch.isin(ids[0], torch.tensor(target.vlm.placeholders))
    given = {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return Prompt(ids[0], visual, given)


@pytest.fixture(scope="module", params=SERVED)
def asked(request: pytest.FixtureRequest) -> Asked:
    return Asked(request.param)


@pytest.fixture(scope="module")
def llava() -> Asked:
    return Asked("llava")


@pytest.fixture(scope="module")
def deep() -> Asked:
    return Asked("deep")


def store_of(asked: Asked, method: str, folder: Path) -> Store:
    needs = KINDS[method].needs
    return features.build(asked.model, asked.examples(), folder / method, needs, {"target": "tiny"})


CPU = torch.device("cpu")


def recipe_of(method: str, **changes: object) -> Recipe:
    short = {"steps": 6, "batch": 3, "stage1": 0.5, "lr": 5e-3}
    return replace(KINDS[method].recipe, **short | changes)


@pytest.mark.parametrize("method", METHODS)
def test_two_steps_lower_the_loss_and_the_weights_draft(method: str, asked: Asked, tmp_path: Path):
    """Two steps on one batch: its loss falls; the exported folder loads and stays lossless."""
    store = store_of(asked, method, tmp_path)
    recipe = recipe_of(method, steps=2, batch=4, stage1=0.0)
    run = _run(method, recipe, asked, store, tmp_path / "run")
    everything = run.learner.batch([store[i] for i in range(len(store))])
    losses = [_loss(run.learner, everything, recipe.self_feeding)]
    run.fit(store)
    losses.append(_loss(run.learner, everything, recipe.self_feeding))
    assert losses[1] < losses[0]
    drafters.export(run, tmp_path / "head", {"target": "tiny", "data": "four prompts"})
    head = open_head(tmp_path / "head", asked.target.decoder, method)
    plain, _ = decode(asked.target, None, OneNode(), asked.prompts[0])
    chain = Chain(ChainSettings(4))
    ids, rounds = decode(asked.target, FeatureDrafter(head), chain, asked.prompts[0])
    assert ids == plain and len(rounds[0].tree.tokens) == 5
    where = asked.model, store, CPU, tmp_path / "head"
    again = drafters.learner_for(KINDS[method], recipe, *where)
    assert _loss(again, everything, recipe.self_feeding) == pytest.approx(losses[1], rel=0.02)
    with pytest.raises(ValueError, match="cannot continue from this drafter"):
        drafters.learner_for(KINDS[method], replace(recipe, ffn=8), *where)


def _run(method: str, recipe: Recipe, asked: Asked, store: Store, folder: Path) -> drafters.Run:
    learner = drafters.learner_for(KINDS[method], recipe, asked.model, store, CPU)
    return drafters.Run(learner, folder, Accelerator(cpu=True))


def _loss(learner: Learner, batch: Batch, passes: int) -> float:
    with torch.no_grad():
        return learner.loss(batch, passes, learner.module)[0].item()


@pytest.mark.parametrize("method", ["dream"])
def test_an_interrupted_run_ends_with_the_same_weights(method: str, llava: Asked, tmp_path: Path):
    """Stopped and taken up by a new process: bit for bit the run that was not stopped."""
    store, recipe = store_of(llava, method, tmp_path), recipe_of(method)
    weights = []
    for stops in ((None,), (2, 4, None)):
        folder = tmp_path / f"run-{len(stops)}"
        for stop in stops:
            run = _run(method, recipe, llava, store, folder)
            run.resume()
            assert run.fit(store, stop_at=stop) == (stop is None)
        weights.append(run.learner.module.state_dict())
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name
    assert [json.loads(line)["step"] for line in (folder / "log.jsonl").open()] == [6]


def test_stores_hold_the_targets_features(asked: Asked, tmp_path: Path):
    """Last hidden states are those of the engine's prefill; a text store has no visual row."""
    full, text = store_of(asked, "dream", tmp_path), store_of(asked, "hivis", tmp_path)
    for i, (prompt, said) in enumerate(zip(asked.prompts, asked.answers, strict=True)):
        rows, n = full[i], len(prompt)
        encoded = asked.target.encode(prompt)
        hidden = asked.target.prefill(encoded).hidden
        torch.testing.assert_close(rows.features[: n - 1], hidden, atol=2e-2, rtol=2e-2)
        embeds = encoded.embeds[encoded.visual].float()
        torch.testing.assert_close(rows.embeds, embeds, atol=2e-2, rtol=2e-2)
        assert rows.ids.tolist() == [*prompt.ids.tolist(), *said]
        assert rows.ids[rows.answer].tolist() == said
        assert len(rows.importance) == int(prompt.visual.sum())
        assert (rows.importance > 0).any()
        hidden_away = features.text_only(rows)
        for name in ("ids", "answer", "visual"):
            assert torch.equal(getattr(text[i], name), getattr(hidden_away, name)), name
        # Eager attention, which DREAM's store needs, rounds otherwise.
        torch.testing.assert_close(text[i].features, hidden_away.features, atol=1e-2, rtol=1e-2)
        assert not text[i].visual.any() and not len(text[i].embeds)


def test_a_store_goes_on_where_it_was_stopped(llava: Asked, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(features, "SHARD", 1)
    folder, needs, about = tmp_path / "store", KINDS["hivis"].needs, {"target": "tiny"}

    def stopped() -> Iterator[Example]:
        for i, one in enumerate(llava.examples()):
            if i == 2:
                raise KeyboardInterrupt
            yield one

    with pytest.raises(KeyboardInterrupt):
        features.build(llava.model, stopped(), folder, needs, about)
    assert len(list(folder.glob("*.safetensors"))) == 2
    again = features.build(llava.model, llava.examples(), folder, needs, about)
    whole = store_of(llava, "hivis", tmp_path)
    assert len(again) == len(whole) == 4
    for i in range(4):
        assert torch.equal(again[i].features, whole[i].features)
    with pytest.raises(ValueError, match="features of something else"):
        features.build(llava.model, llava.examples(), folder, needs, {"target": "another"})


@torch.inference_mode()
def check_twin(learner: Learner, store: Store, drafter: FeatureDrafter, questions: Asked) -> None:
    """A module's log-probabilities after a prompt and three more tokens are its drafter's."""
    batch, prompt = learner.batch([store[0]]), questions.prompts[0]
    at, tokens = batch.first, torch.tensor([int(prompt.ids[-1]), *questions.answers[0]])
    outputs = learner.module(*batch.inputs, 4, at)
    logits = torch.stack([learner.guess(out[0, i or at]) for i, (out, _) in enumerate(outputs)])
    start = begun(questions.target, drafter, prompt)
    drafted = [drafter.extend(tokens[i : i + 1], (i - 1,))[0] for i in range(4)]
    logits[:, list(start.vocabulary.banned)] = -torch.inf
    torch.testing.assert_close(torch.stack(drafted), logits.log_softmax(-1), atol=5e-2, rtol=2e-2)


@pytest.mark.parametrize("method", (*METHODS, "eagle3", "dflash"))
def test_measured_acceptance_is_what_the_engine_gets(
    method: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch
):
    """Sixty steps have an effect; the module says what its published head drafts; the simulation
    on features gives, round for round, the same as decoding with a chain. EAGLE-3 emits only the
    words of its draft vocabulary.
    """
    monkeypatch.setattr("specvl_demo.decoders.kernels.pack_integers", lambda weight, bits: None)
    wide = method == "eagle3"
    deep = wide or method == "dflash"
    asked: Asked = request.getfixturevalue("deep" if deep else "llava")
    store = store_of(asked, method, tmp_path)
    recipe = recipe_of(method, steps=60, batch=4, draft_vocab=24 if wide else 0)
    run = _run(method, recipe, asked, store, tmp_path / "run")
    run.fit(store)
    drafters.export(run, tmp_path / "head", {"target": "tiny"})
    head = open_head(tmp_path / "head", asked.target.decoder, method)
    if method in METHODS:
        check_twin(run.learner, store, head.new_drafter(), asked)
    report = drafters.accepted(run.learner, store, length=3)
    n_rounds = n_tokens = 0
    for prompt, said in zip(asked.prompts, asked.answers, strict=True):
        chain = Chain(ChainSettings(3))
        ids, rounds = decode(
            asked.target, head.new_drafter(), chain, prompt, max_new_tokens=len(said)
        )
        assert ids == said
        n_rounds, n_tokens = n_rounds + len(rounds), n_tokens + len(ids)
    assert report["tokens"] == n_tokens and report["rounds"] == pytest.approx(n_rounds, abs=1)
    assert report["tau"] > (1.3 if wide else 1.5)
    card = json.loads((tmp_path / "head" / "card.json").read_text())
    assert card["steps"] == 60 and card["finished"] and card["recipe"]["seed"] == recipe.seed
    assert (tmp_path / "head" / "README.md").read_text().startswith("# ")
    if wide:
        known = draft_vocabulary(store, 24, asked.target.decoder.vocab).sort().values
        assert len(known) == 24 and {t for answer in asked.answers for t in answer} & set(
            known.tolist()
        )
        assert torch.equal(run.learner.module.published()["d2t"] + torch.arange(24), known)
        refuses("3 layers are too few", features.levels_of, 3)


def test_the_filter_ends_hopeless_chains(llava: Asked, tmp_path: Path):
    """A row lives while its predecessor does and had the target's token among its likeliest."""
    store = store_of(llava, "hivis", tmp_path)
    learner = _run("hivis", recipe_of("hivis", survive=1), llava, store, tmp_path / "run").learner
    alive = torch.tensor([[False, True, True, True, True]])
    q = torch.eye(4)[[0, 1, 2, 3]]
    target = torch.tensor([0, 3, 2, 3])
    stays = learner._survivors(alive, alive[:, 1:], q, target, 1)
    assert stays.tolist() == [[False, False, True, False, True]]


def test_dream_learns_the_calmest_layer():
    """Of every token, the input of the layer whose attention there has the least entropy."""
    sharp, flat = torch.eye(3)[None, None], torch.full((1, 1, 3, 3), 1 / 3)
    mixed = torch.cat((sharp[:, :, :2], flat[:, :, :1]), 2)
    seen = features.Seen(
        inputs={1: torch.full((1, 3, 2), 1.0), 2: torch.full((1, 3, 2), 2.0)},
        weights={1: mixed, 2: torch.where(mixed == sharp, flat, sharp)},
    )
    assert seen.calmest([1, 2])[:, 0].tolist() == [1.0, 1.0, 2.0]
    assert list(features.chosen_layers(32)) == list(range(1, 11))
    assert list(features.chosen_layers(2)) == [1]


def test_batches_are_the_same_for_every_process(llava: Asked, tmp_path: Path):
    store = store_of(llava, "eagle2", tmp_path)
    picks, again, others = (
        [drafters.Picker(store, 2, seed)(step) for step in range(6)] for seed in (5, 5, 6)
    )
    assert picks == again and picks[:2] != others[:2]
    assert sorted(picks[0] + picks[1]) == [0, 1, 2, 3], "an epoch takes every conversation once"


def test_every_recipe_that_is_offered_has_its_settings():
    assert {"drafter", "eagle2", "dflash"} < TRAININGS.keys() and "mtp" not in TRAININGS
    for name in TRAININGS:
        standards(name)
