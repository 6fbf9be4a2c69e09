"""Sessions of both backends against a slow twin that recomputes everything with the library's own forward."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from specvl_demo.core.tree import DraftTree, shape_of
from specvl_demo.core.types import Capture, Prompt
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.target import VLMTarget
from tests.conftest import VOCAB, tiny_llava, tiny_prompt

MODELS = {
    "qwen2": lambda: tiny_llava(),
    "llama": lambda: tiny_llava(decoder="llama"),
    "grouped": lambda: tiny_llava(kv_heads=2),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    return MODELS[request.param]()


class RecomputingTwin:
    """What a session must say, by one forward of the whole model over prompt, answer and path for every
    node."""

    def __init__(self, model: nn.Module, prompt: Prompt) -> None:
        self.model, self.prompt = model, prompt
        self.text = prompt.ids[:-1].tolist()

    @torch.no_grad()
    def score(self, tree: DraftTree) -> tuple[Tensor, Tensor]:
        logits, hidden = [], []
        for node in range(len(tree)):
            ids = torch.tensor([self.text + tree.tokens[tree.shape.path(node)].tolist()])
            inputs = {"pixel_values": self.prompt.inputs["pixel_values"]} if self.prompt.visual.any() else {}
            out = self.model(input_ids=ids, output_hidden_states=True, **inputs)
            logits.append(out.logits[0, -1])
            hidden.append(out.hidden_states[-1][0, -1])
        return torch.stack(logits), torch.stack(hidden)

    def commit(self, tree: DraftTree, path: Sequence[int]) -> None:
        self.text += tree.tokens[list(path)].tolist()


def random_tree(rng: random.Random, size: int, root: int) -> DraftTree:
    parent = (-1, *(rng.randrange(i) for i in range(1, size)))
    tokens = [root, *(rng.randrange(4, VOCAB) for _ in range(size - 1))]
    return DraftTree(torch.tensor(tokens), shape_of(parent))


@pytest.mark.parametrize("backend", ["lean", "hf"])
@pytest.mark.parametrize("pictures", [0, 1, 2])
def test_random_trees_score_and_commit_like_recomputing(
    model: nn.Module, backend: str, pictures: int
) -> None:
    prompt = tiny_prompt(pictures)
    target, twin = VLMTarget(VLM(model, "m", backend=backend)), RecomputingTwin(model, prompt)
    rng = random.Random(pictures)
    prefill = target.prefill(target.encode(prompt))
    session = target.open(prefill, 40, 16)
    root = int(prompt.ids[-1])
    for _ in range(4):
        tree = random_tree(rng, rng.randint(1, 9), root)
        scores = session.score(tree)
        logits, hidden = twin.score(tree)
        assert torch.allclose(scores.logits, logits, atol=1e-4)
        assert torch.allclose(scores.hidden, hidden, atol=1e-4)
        path = tree.shape.path(rng.randrange(len(tree)))
        session.commit(path)
        twin.commit(tree, path)
        assert session.length == len(twin.text)
        root = rng.randrange(4, VOCAB)


def test_both_backends_are_twins_down_to_what_they_capture(model: nn.Module) -> None:
    prompt = tiny_prompt(2)
    capture = Capture(layers=(0, 1, 3), attention=(0, 2), rows=(-1, -4, 3))
    states = []
    for backend in ("lean", "hf"):
        target = VLMTarget(VLM(model, "m", backend=backend))
        prefill = target.prefill(target.encode(prompt), capture)
        session = target.open(prefill, 8, 16, capture)
        scores = session.score(random_tree(random.Random(1), 7, 9))
        states.append((prefill, scores))
    (lean, lean_scores), (hf, hf_scores) = states
    assert torch.allclose(lean.hidden, hf.hidden, atol=1e-4)
    assert torch.allclose(lean_scores.logits, hf_scores.logits, atol=1e-4)
    assert lean.layers.keys() == hf.layers.keys() == lean_scores.layers.keys() == {0, 1, 3}
    assert lean.attention.keys() == hf.attention.keys() == {0, 2}
    for i in capture.layers:
        assert torch.allclose(lean.layers[i], hf.layers[i], atol=1e-4)
        assert torch.allclose(lean_scores.layers[i], hf_scores.layers[i], atol=1e-4)
    for layer in capture.attention:
        assert lean.attention[layer].shape == (3, len(prompt) - 1)
        assert torch.allclose(lean.attention[layer], hf.attention[layer], atol=1e-5)


def test_lanes_of_one_prefill_do_not_disturb_each_other(model: nn.Module) -> None:
    prompt = tiny_prompt(1)
    target = VLMTarget(VLM(model, "m"))
    prefill = target.prefill(target.encode(prompt))
    tree = random_tree(random.Random(0), 6, 9)
    alone = target.open(prefill, 8, 16).score(tree).logits
    first, second = target.open(prefill, 8, 16), target.open(prefill, 8, 16)
    other = random_tree(random.Random(5), 9, 11)
    first.score(other)
    first.commit(other.shape.path(4))
    assert torch.equal(second.score(tree).logits, alone)


def test_a_session_has_room_for_what_was_announced_and_no_more(model: nn.Module) -> None:
    prompt = tiny_prompt(0)
    target = VLMTarget(VLM(model, "m"))
    session = target.open(target.prefill(target.encode(prompt)), 4, 3)
    for _ in range(4):
        session.score(random_tree(random.Random(0), 3, 9))
        session.commit([0])
    with pytest.raises(ValueError, match="room"):
        session.score(random_tree(random.Random(0), 9, 9))
