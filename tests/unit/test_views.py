"""Views on a hand-made prompt: which positions stay, what replaces the others, where everything
maps back to.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from specvl_demo.core.types import Capture, Context, Encoded, Prefill, Prompt
from specvl_demo.methods.base import Models
from specvl_demo.methods.captions import CAPTION, CaptionView
from specvl_demo.methods.views import (
    PooledView,
    PrunedSettings,
    PrunedView,
    TextView,
    guided,
    kept_count,
)
from specvl_demo.records import Span

D, C = 6, 5
TABLE = torch.randn(100, D, generator=torch.Generator().manual_seed(0))
PROJECTOR = torch.randn(C, D, generator=torch.Generator().manual_seed(1))
EYES = SimpleNamespace(
    decoder=SimpleNamespace(embed=lambda ids: TABLE[ids]),
    project=lambda features: features @ PROJECTOR,
)
NEWLINE = 13


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
    """The target's prefill; attention [rows, P] of layers 0 and 1, the second three times the
    first.
    """
    layers = {} if attention is None else {0: attention, 1: attention * 3}
    return Prefill(encoded, encoded.embeds[:-1], None, attention=layers)


def seen(view: object, encoded: Encoded, attention: Tensor | None = None) -> Context:
    context = view.build_context(encoded, EYES, asked(encoded, attention))
    assert context.name == view.name
    assert (
        len(context.ids)
        == len(context.embeds)
        == len(context.index)
        == len(context.visual)
        == context.positions.shape[-1]
    )
    mine = context.index >= 0
    assert torch.equal(context.ids[mine], encoded.ids[context.index[mine]])
    assert context.index.max() < len(encoded.ids) - 1, "the last prompt token is the round's root"
    return context


def test_text_only_puts_one_newline_for_every_run() -> None:
    context = seen(TextView((NEWLINE,)), prompt("tvvvtvvt"))
    assert context.ids.tolist() == [20, NEWLINE, 24, NEWLINE]
    assert context.index.tolist() == [0, -1, 4, -1]
    assert context.positions.tolist() == [0, 1, 2, 3]
    assert context.next_position == 4
    assert not context.visual.any()
    assert torch.equal(context.embeds, TABLE[context.ids])
    assert seen(TextView((NEWLINE,)), prompt("ttttt")).ids.tolist() == [20, 21, 22, 23]


def test_captions_stand_where_their_pictures_stood() -> None:
    view = CaptionView(lambda encoded, encoder: [[40, 41], []], prefix=(30, 31))
    context = seen(view, prompt("tvvvtvvt"))
    assert context.ids.tolist() == [20, 30, 31, 40, 41, 24, 30, 31]
    assert context.index.tolist() == [0, -1, -1, -1, -1, 4, -1, -1]
    with pytest.raises(ValueError, match="returned 1 captions for 2 runs"):
        CaptionView(lambda encoded, encoder: [[40]], prefix=()).build_context(
            prompt("tvvtvt"), EYES, None
        )
    nothing = CaptionView(lambda *_: pytest.fail("nothing to describe"), prefix=(30,))
    assert seen(nothing, prompt("tttt")).ids.tolist() == [20, 21, 22]


def test_a_drafter_that_reads_only_text_writes_no_captions() -> None:
    blind = SimpleNamespace(name="a language model", sees=False)
    models = Models(SimpleNamespace(), {"small": blind}, {"caption": (6,), "describe": (7,)})
    with pytest.raises(ValueError, match=r"a language model reads only text .* leave the view"):
        CAPTION.build(models, CAPTION.settings())


def test_pooling_is_a_mean_of_blocks_before_the_projector() -> None:
    encoded = prompt("t" + "v" * 16 + "tt", (image(1, 4, 4),))
    context = seen(PooledView(), encoded)
    grid = encoded.features.view(4, 4, C)
    expected = torch.stack(
        [grid[r : r + 2, c : c + 2].mean((0, 1)) for r in (0, 2) for c in (0, 2)]
    )
    assert torch.allclose(context.embeds[1:5], expected @ PROJECTOR, atol=1e-6)
    assert context.index.tolist() == [0, 1, 3, 9, 11, 17]
    assert context.visual.tolist() == [False, True, True, True, True, False]
    assert context.positions.tolist() == list(range(6)) and context.next_position == 6


def test_pooling_takes_every_picture_by_itself_and_odd_grids_too() -> None:
    encoded = prompt("t" + "v" * 15 + "v" * 4 + "tt", (image(1, 3, 5), image(16, 2, 2)))
    context = seen(PooledView(), encoded)
    assert len(context.ids) == 1 + 2 * 3 + 1 + 1
    assert context.index.tolist() == [0, 1, 2, 4, 6, 7, 9, 16, 20]
    assert torch.allclose(context.embeds[7], encoded.features[15:].mean(0) @ PROJECTOR, atol=1e-6)


def test_pooling_without_a_grid_changes_nothing_and_without_features_is_refused() -> None:
    encoded = prompt("tvvvvtt")
    assert torch.equal(seen(PooledView(), encoded).embeds, encoded.embeds[:-1])
    bare = replace(prompt("tvvvvtt", (image(1, 2, 2),)), features=None)
    with pytest.raises(ValueError, match="leave this view out"):
        PooledView().build_context(bare, EYES, None)


@pytest.mark.parametrize("axes", [1, 3])
def test_even_pruning_keeps_the_text_and_evenly_spaced_patches(axes: int) -> None:
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


def test_pictures_and_clips_have_their_own_rates() -> None:
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
def test_how_many_stay(total: int, rate: float, keep: int) -> None:
    assert kept_count(total, rate) == keep


def test_guided_pruning_takes_the_attended_then_evenly_from_the_rest() -> None:
    """Sum 20; 40 % is 8: the two best (5 + 4) reach it; of the 8 others the first, middle, last are
    kept.
    """
    scores = torch.tensor([1.0, 5, 1, 1, 4, 1, 1, 1, 3, 2])
    assert guided(scores, 5, 0.4).tolist() == [0, 1, 4, 5, 9]
    assert guided(scores, 2, 0.4).tolist() == [1, 4]
    assert guided(scores, 1, 0.4).tolist() == [1]
    assert guided(scores, 10, 0.4).tolist() == list(range(10))
    assert guided(torch.ones(4), 2, 0.0).tolist() == [0, 1], (
        "no share at all still takes the best one"
    )


def test_guided_pruning_listens_to_the_question_only() -> None:
    """Rows before the last three (the question without its last token) belong to the picture and do
    not count."""
    encoded = prompt("t" + "v" * 10 + "tttt", (image(1, 2, 5),))
    attention = torch.zeros(14, 14)
    attention[:11, 3] = 1.0
    attention[11:, 7] = 1.0
    context = seen(pruned(drop_image=0.9, layers=(0, 1)), encoded, attention)
    assert context.index[context.visual].tolist() == [7]


def test_guided_pruning_asks_the_target_for_its_attention() -> None:
    view = pruned(layers=(2, 5))
    assert view.capture.attention == (2, 5) and view.capture.rows[-1] == -1
    assert pruned().capture == Capture()
    with pytest.raises(ValueError, match=r"layers \[2, 5\].*guided=false"):
        view.build_context(prompt("tvvvt"), EYES, asked(prompt("tvvvt")))
