"""From a target to its drafters, as commands do it: stopped, taken up, refused elsewhere."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from recipes import answers, stages
from recipes.drafters import KINDS
from recipes.tests.conftest import save_prompts
from recipes.trainer import Trainer, optimizers
from specvl_demo.core.engine import race
from specvl_demo.methods.base import choose
from specvl_demo.methods.heads.checkpoints import open_head
from specvl_demo.options import Sampling
from specvl_demo.pairs import Checkpoint
from specvl_demo.question import Question
from specvl_demo.records import gather_lanes
from specvl_demo.serving import choosing, loader, session
from specvl_demo.serving.custom import custom_pair
from specvl_demo.serving.loaded import LoadedPair
from specvl_demo.vlm import loading, shared_drafter
from specvl_demo.vlm.encoder import VLM
from tests.shared import pocketlike
from tests.shared.refusals import refuses

N, HELD_OUT = 4, 2
METHODS = ("dream", "eagle2", "hivis", "drafter")


@pytest.fixture
def pair(tmp_path: Path, monkeypatch) -> Path:
    """A folder with target/, drafter/ and prompts.jsonl, whose target gives short answers."""
    pocketlike.save_pair(tmp_path)
    monkeypatch.setattr(stages, "SHORTEST", 1)
    monkeypatch.setattr(stages, "LONGEST", 8)
    save_prompts(tmp_path, N + HELD_OUT)
    return tmp_path


def other_target(folder: Path) -> None:
    """Put other weights of the same shape where the target's lie."""
    for file in (folder / "drafter").glob("*.safetensors"):
        shutil.copy(file, folder / "target" / file.name)


def head(pair: Path, method: str, fresh: bool = False) -> dict:
    """`recipes METHOD` for the pair on a file of questions."""
    names = (f"run-{method}", f"head-{method}", "work", "answers.jsonl", "prompts.jsonl")
    places = stages.Places(*(pair / name for name in names))
    recipe = replace(KINDS[method].recipe, steps=3, batch=2, stage1=0.5)
    return stages.main(loaded(pair), KINDS[method], recipe, places, N, HELD_OUT, fresh=fresh)


def loaded(pair: Path) -> LoadedPair:
    return loader.load_pair(custom_pair(str(pair / "target")), roles=())


def test_questions_answered_together_get_the_answers_that_they_get_alone(pair: Path):
    """Of unlike lengths, greedy as from a race, and sampled: no row knows of the others."""
    ready = loaded(pair)
    lines = [
        {"prompt": "what is in picture 1", "images": ["a.png"] * n, **more}
        for n, more in ((1, {}), (0, {}), (2, {}), (1, {"temperature": 1.0}), (0, {}))
    ]
    prompts = [answers.prompt_of(ready.prompter, line, pair, 24) for line in lines]
    samplings = [Sampling(line.get("temperature", 0.0), seed=5) for line in lines]
    target = ready.models.target
    together = answers.answer(target, prompts, samplings, 24)
    for prompt, sampling, ids in zip(prompts, samplings, together, strict=True):
        assert answers.answer(target, [prompt], [sampling], 24) == [ids]
    for i in (0, 1, 2):
        question = replace(answers._question(lines[i], pair), max_new_tokens=24)
        request = session.make_request(ready, question, full=False)
        (lane,) = session.run_lanes(ready, request, [choosing.choose(ready.pair, "ar")])
        assert lane.token_ids == together[i]
    ended = {len(ids) for ids in together}
    assert len(ended) > 1, "rows that end early leave the batch"
    assert together[3] != together[0]


def test_drafters_learn_from_photographs(pair: Path, monkeypatch):
    """Given only a folder of captioned photographs: questions, answers and features are made from
    it. The drafter emits only tokens of its draft vocabulary, and the answer stays the target's;
    one trained without pictures is given no visual position.
    """
    names = [f"{i}.png" for i in range(10)]
    (pair / "photos").mkdir()
    for i, name in enumerate(names):
        Image.new("RGB", (80, 60), (25 * i, 90, 200 - 20 * i)).save(pair / "photos" / name)
    captions = "A brown dog is running on the green grass .", "A dog runs ."
    told = "\n".join(f"{name}\t{caption}" for name in names for caption in captions)
    (pair / "photos" / "captions.tsv").write_text(told)
    monkeypatch.setattr(stages, "LONGEST", 12)
    kind = KINDS["drafter"]
    recipe = replace(kind.recipe, steps=2, batch=2, layers=1, draft_vocab=40)
    common = {"answers": pair / "answers.jsonl", "data": pair / "photos"}
    custom = custom_pair(str(pair / "target"))
    run, out = pair / "run", pair / "small"
    places = stages.Places(run, out, pair / "work", **common)
    nothing = replace(places, data=None)
    with pytest.raises(ValueError, match="or a folder of captioned photographs with"):
        stages.main(loaded(pair), kind, recipe, nothing, N, HELD_OUT)
    target = loaded(pair)
    card = stages.main(target, kind, recipe, places, N, HELD_OUT)
    assert card["finished"] and card["data"] == "photos, answered by the target"
    lines = [json.loads(line) for line in (pair / "answers.jsonl").read_text().splitlines()]
    assert len(lines) == N and {name for line in lines for name in line["images"]} <= set(names)
    small = Checkpoint(str(places.out), 1e4, "", local=True)
    both = loader.load_pair(replace(custom, drafters={"small": small}))
    shown = (Image.new("RGB", (80, 60)),)
    asked = session.make_request(both, Question("what is this", shown, max_new_tokens=20))
    lanes = gather_lanes(race(session.make_lanes(both, asked, [choose("ar"), choose("chain")])))
    assert lanes[0].token_ids == lanes[1].token_ids
    may = set(both.models.drafter("small").model.draft_ids.tolist())
    drafted = {token for round_ in lanes[1].rounds for token in round_.tree.tokens[1:]}
    assert len(may) == 40 and drafted and drafted <= may
    visual = set(asked.prompt.visual.nonzero()[:, 0].tolist())
    (seen,) = lanes[1].begin.seen
    assert visual and visual <= set(seen.index)


def test_heads_follow_their_target(pair: Path):
    """All methods train on one store; what another target made is refused."""
    cards = [head(pair, method) for method in METHODS]
    assert all(card["finished"] for card in cards) and len({c["weights"] for c in cards}) == 1
    stores = {"held-out-dream", "train-dream"}
    assert {path.name for path in (pair / "work").iterdir()} == {"answers-held-out.jsonl", *stores}
    target = loading.load_model(pair / "target", loading.LoadPlan(), "target")
    for method in ("dream", "eagle2", "hivis"):
        open_head(pair / f"head-{method}", VLM(target, "target").decoder, method)
    small = shared_drafter.load_drafter(pair / "head-drafter", target)
    assert small.get_input_embeddings().weight is target.get_input_embeddings().weight
    assert len(small.get_decoder().layers) == 2 and len(target.get_decoder().layers) == 3
    ids = torch.arange(5, 9)[None]
    assert not torch.equal(small(input_ids=ids).logits, target(input_ids=ids).logits)
    other_target(pair)
    refuses("run-hivis has a run with other weights; pass --fresh", head, pair, "hivis")
    refuses("train-dream has features of other weights; delete it", head, pair, "hivis", fresh=True)
    shutil.rmtree(pair / "work")
    refuses(r"answers.jsonl has answers of other weights", head, pair, "hivis", fresh=True)
    (pair / "answers.jsonl").unlink()
    card = head(pair, "hivis", fresh=True)
    assert card["weights"] != cards[0]["weights"]
    assert head(pair, "hivis") == card, "the same target goes on from where it was"


def test_a_line_that_was_cut_off_is_said_again(tmp_path: Path):
    path = tmp_path / "answers.jsonl"
    rows = [{"seed": i, "weights": "abc", "answers": ["yes"]} for i in range(2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"seed": 2, "wei')
    assert answers.written(path, "abc") == 2 and len(path.read_text().splitlines()) == 2
    refuses("other weights", answers.written, path, None)


def test_a_checkpoint_is_complete_or_the_one_before(tmp_path: Path, monkeypatch):
    """A run stopped while it saves continues from the last complete checkpoint."""

    class Stopped(Exception):
        """Stands for the machine being switched off in the middle of writing."""

    def run(folder: Path) -> tuple[torch.nn.Linear, Trainer]:
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 3)
        opts = optimizers([(layer, 1.0)], 1e-2, 1e-2)
        identity = {"lr": 1e-2, "steps": 4}
        return layer, Trainer("tiny", folder, identity, {"layer": layer}, opts, 4, 0.5)

    def fit(layer: torch.nn.Linear, trainer: Trainer) -> torch.Tensor:
        def loss(x: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
            value = layer(x).square().mean()
            return value, {"loss": value.item()}

        trainer.train(lambda step: iter(torch.eye(3).repeat(3, 1)[step:]), loss, save_every_s=0.0)
        return layer.weight

    whole = fit(*run(tmp_path / "whole"))
    save = torch.save

    def half_written(data: dict, path: Path) -> None:
        save(data, path)
        if data["step"] == 3:
            path.write_bytes(b"half")
            raise Stopped

    monkeypatch.setattr(torch, "save", half_written)
    with pytest.raises(Stopped):
        fit(*run(tmp_path / "parts"))
    monkeypatch.setattr(torch, "save", save)
    layer, trainer = run(tmp_path / "parts")
    assert trainer.resume() and trainer.step == 2
    assert torch.equal(fit(layer, trainer), whole) and trainer.last_log()["step"] == 4


def test_a_loss_that_is_not_finite_ends_the_run_before_it_changes_a_weight(tmp_path: Path):
    layer = torch.nn.Linear(3, 3)
    before = layer.weight.detach().clone()
    opts = optimizers([(layer, 1.0)], 1e-2, 1e-2)

    def loss(x: torch.Tensor) -> tuple[torch.Tensor, dict[str, float]]:
        return layer(x).mean() / 0, {}

    refuses(
        "--lr",
        Trainer("tiny", tmp_path, {}, {"layer": layer}, opts, 4, 0.5).train,
        lambda step: iter(torch.eye(3)),
        loss,
    )
    assert torch.equal(layer.weight, before)
