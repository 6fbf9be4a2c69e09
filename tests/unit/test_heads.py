"""Feature heads draft what their modules predict, row by row, from the target's own features."""

from __future__ import annotations

import pytest
import torch

from specvl_demo.core.tree import DraftTree, chain
from specvl_demo.core.types import Start, Verdict
from specvl_demo.methods.base import METHODS, Models, assemble, choose
from specvl_demo.methods.dream import compressed
from specvl_demo.methods.heads.blocks import Geometry
from specvl_demo.methods.heads.features import FeatureDrafter
from specvl_demo.vlm.encoder import VLM
from specvl_demo.vlm.target import VLMTarget
from tests.conftest import tiny_llava, tiny_prompt
from tests.heads import GEOMETRY, begun, built, random_module

KINDS = ("eagle2", "hivis", "dream")


def expected(
    module: torch.nn.Module, kind: str, start: Start, ids: list[int], hidden: torch.Tensor, n: int
) -> list:
    """Return the module's predictions for `ids` after the prompt, by step: what a chain drafts from
    their last token on.

    hidden: features of the prompt without its last token, then of all of ids but the last.
    """
    encoded, decoder = start.encoded, start.target_decoder
    embeds = torch.cat((encoded.embeds[:-1], decoder.embed(torch.tensor(ids))))
    keep = torch.ones(len(embeds), dtype=torch.bool)
    if kind == "hivis":
        keep[: len(encoded.visual)] = ~encoded.visual
    with torch.no_grad():
        if kind == "dream":
            at = torch.arange(len(embeds))[None]
            n_prompt = torch.tensor([len(encoded.ids) - 1])
            said = [o for o, _ in module(embeds[None], at, hidden[None], n_prompt, n)]
        else:
            e, f = embeds[keep][1:], hidden[keep[: len(hidden)]][: int(keep.sum()) - 1]
            said = [o for o, _ in module(e[None], f[None], n)]
    return [decoder.logits(o[0]) for o in said]


@pytest.fixture(scope="module")
def grouped() -> VLMTarget:
    return VLMTarget(VLM(tiny_llava(kv_heads=2), "grouped"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("on", "geometry"), [("target", GEOMETRY), ("grouped", Geometry(64, 4, 2, 16, 1e-5, 1e6))]
)
@pytest.mark.usefixtures("unrounded")
@torch.inference_mode()
def test_a_chain_says_what_the_module_says(
    kind: str, on: str, geometry: Geometry, request: pytest.FixtureRequest
) -> None:
    """Two rounds: a fresh prompt, and after three accepted tokens; the chain's tokens are forced.
    Also with grouped keys and values."""
    target, module = request.getfixturevalue(on), random_module(kind, geometry)
    drafter = FeatureDrafter(built(module, kind, target.decoder, geometry, keep=1.0))
    prompt = tiny_prompt(2)
    start = begun(target, drafter, prompt)
    root, ids = int(prompt.ids[-1]), [11, 12, 13, 14, 15, 16, 17, 18]
    hidden = start.prefill.hidden
    for done in (0, 3):
        # Round `done`: the root is the last decided token, the next ids are drafted whatever the
        # head says.
        fed = [root, *ids][done:][:4]
        said = [drafter.extend(torch.tensor([token]), (i - 1,)) for i, token in enumerate(fed)]
        steps = expected(
            module, kind, start, [root, *ids][: done + 4], _padded(hidden, done + 3, start), 4
        )
        for i in range(4):
            wanted = steps[i][-4 + i]
            wanted = wanted.index_fill(
                -1, torch.tensor(start.vocabulary.banned), -torch.inf
            ).log_softmax(-1)
            torch.testing.assert_close(said[i][0], wanted, atol=2e-4, rtol=2e-4)
        tree = DraftTree(torch.tensor(fed), chain(3), rows=tuple(range(4)))
        scores = start.session.score(tree)
        verdict = Verdict([0, 1, 2], [*fed[1:3], ids[done + 2]], [False] * 2)
        start.session.commit(verdict.path)
        drafter.commit(tree, verdict, scores)
        hidden = torch.cat((hidden, scores.hidden[:3]))


def _padded(hidden: torch.Tensor, n_known: int, start: Start) -> torch.Tensor:
    """Features up to the root's predecessor, then rubbish: drafted rows must not read it."""
    rubbish = 50.0 * torch.ones(len(start.encoded.ids) - 1 + n_known - len(hidden), hidden.shape[1])
    return torch.cat((hidden, rubbish))


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_a_tree_says_what_its_chains_say(kind: str, target: object) -> None:
    """Every branch of a tree has the log-probabilities that a chain along it has."""
    module = random_module(kind)
    shape = ((-1,), (0, 0), (1, 1, 2), (3, 5, 4))
    tokens = torch.tensor([9, 21, 22, 23, 24, 25, 26, 27, 28])
    tree = FeatureDrafter(built(module, kind, target.decoder))
    begun(target, tree, tiny_prompt())
    rows, parents, first = [], [], 0
    for level in shape:
        at = level if level[0] < 0 else torch.tensor(level)
        rows.append(tree.extend(tokens[first : first + len(level)], at))
        parents += level
        first += len(level)
    said = torch.cat(rows)
    for node in range(len(parents)):
        path = [node]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        alone = FeatureDrafter(built(module, kind, target.decoder))
        begun(target, alone, tiny_prompt())
        for i, at in enumerate(path[::-1]):
            last = alone.extend(tokens[at : at + 1], (i - 1,))
        torch.testing.assert_close(said[node], last[0], atol=2e-4, rtol=2e-4)


@torch.inference_mode()
def test_hivis_touches_text_rows_only(target: object) -> None:
    """Its prefill does not grow with the picture, and no visual feature is ever read."""
    head = built(random_module("hivis"), "hivis", target.decoder)
    drafters = [FeatureDrafter(head), FeatureDrafter(head)]
    rows = []
    for drafter, pictures in zip(drafters, (1, 3), strict=True):
        start = begun(target, drafter, tiny_prompt(pictures))
        rows.append(drafter._stream.length)
        seen = drafter.seen()["text only"]
        assert not start.encoded.visual[seen].any()
        start.prefill.hidden[start.encoded.visual[:-1]] = torch.nan
        again = FeatureDrafter(head)
        again.begin(start)
        assert again.extend(start.encoded.ids[-1:], (-1,)).isfinite().any()
        assert not again.extend(torch.tensor([9]), (0,)).isnan().any()
    assert rows[0] == rows[1]


def test_compression_keeps_all_text_and_the_best_visual_tokens() -> None:
    visual = torch.tensor([False, True, True, True, True, False])
    importance = torch.tensor([9.0, 0.1, 0.4, 0.3, 0.2, 9.0])
    assert compressed(visual, importance, 0.5).tolist() == [0, 2, 3, 5]
    assert compressed(visual, importance, 0.1).tolist() == [0, 2, 5]
    assert compressed(visual, importance, 1.0).tolist() == [0, 1, 2, 3, 4, 5]
    assert compressed(torch.zeros(3, dtype=torch.bool), torch.ones(3), 0.5).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("own", "preset", "settings", "share"),
    [
        ({"keep": 0.5}, None, {}, 0.5),  # as it was trained, not as the paper's was
        ({"keep": 0.5}, None, {"keep": 1.0}, 1.0),
        ({}, None, {}, 0.75),  # a published head, as its paper says
        ({}, METHODS["dream"].presets["published-code"], {}, 1.0),
        ({}, None, {"keep": 0.5}, 0.5),
    ],
)
@torch.inference_mode()
def test_a_dream_head_looks_at_what_it_was_trained_for_unless_told(
    target: object,
    own: dict[str, float],
    preset: dict[str, float] | None,
    settings: dict[str, float],
    share: float,
) -> None:
    head = built(random_module("dream"), "dream", target.decoder, **own)
    choice = choose("dream", settings, preset)
    drafter = assemble(choice, Models(target, {"dream": head})).drafter
    start = begun(target, drafter, tiny_prompt(2))
    (seen,) = drafter.seen().values()
    assert int(start.encoded.visual[seen].sum()) == int(18 * share)
