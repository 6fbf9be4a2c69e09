"""Where pictures and frames are among a prompt's visual tokens, for every layout that families use.

Given a processor, its output, and what is shown in which order, returns spans in the order of the
prompt, none if the counts do not add up. Cases are layouts, not families: grids in the inputs
(Qwen), tiles (Idefics, InternVL; one per picture: LLaVA, Gemma), sizes with joined tiles
(LLaVA-NeXT, OneVision), sizes in rows with breaks (Pixtral), pooled frames with a closing token
(OneVision's clips).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from torch import Tensor

from specvl_demo.records import Span

Kind = Literal["image", "video"]
_Part = tuple[int | None, int | None, int]
"""Rows, columns and tokens of what is shown, or of a tile of it."""


@dataclass(frozen=True)
class MediaSize:
    """One picture or clip.

    Attributes:
        height, width: Of its frames, in pixels.
        frames: Their number; 1 for a picture.
        as_clip: Whether it goes to the model as a clip, else frame by frame as pictures.
    """

    kind: Kind
    height: int
    width: int
    frames: int = 1
    as_clip: bool = False


class _GridPiece(NamedTuple):
    kind: Kind
    media: int
    frame: int
    rows: int | None
    cols: int | None
    tokens: int


def media_spans(
    processor: Any,
    inputs: dict[str, Any],
    visual: Tensor,
    sizes: Sequence[MediaSize],
    words: int = 0,
) -> tuple[Span, ...]:
    """Return the spans of everything shown.

    Args:
        visual: [n] bool, the positions of visual tokens.
        words: Visual tokens after every picture's patches that represent no place in it.
    """
    at = visual.nonzero().flatten().tolist()
    pieces = list(_grid_pieces(processor, inputs, len(at), sizes)) if sizes else []
    if words:
        pieces = [part for piece in pieces for part in _split_words(piece, words)]
    if sum(piece.tokens for piece in pieces) != len(at):
        return ()
    made = []
    start = 0
    for piece in pieces:
        mine = at[start : start + piece.tokens]
        start += piece.tokens
        whole = mine[-1] + 1 - mine[0] == len(mine)
        # Rows with breaks between them do not form a grid.
        rows, cols = (piece.rows, piece.cols) if whole else (None, None)
        made.append(Span(piece.kind, piece.media, piece.frame, mine[0], mine[-1] + 1, rows, cols))
    return tuple(made)


def _split_words(piece: _GridPiece, words: int) -> tuple[_GridPiece, _GridPiece]:
    """Split a piece into its square of patches and the `words` tokens after it."""
    side = math.isqrt(piece.tokens - words)
    patches = piece._replace(rows=side, cols=side, tokens=piece.tokens - words)
    return patches, piece._replace(rows=None, cols=None, tokens=words)


def _grid_pieces(
    processor: Any, inputs: dict[str, Any], n_visual: int, sizes: Sequence[MediaSize]
) -> Iterator[_GridPiece]:
    still = _picture_grids(processor, inputs, n_visual, sizes)
    steps = iter(inputs["video_grid_thw"].tolist() if "video_grid_thw" in inputs else ())
    pooled = iter(
        _token_grids(processor.video_processor, inputs["video_position_ids"])
        if "video_position_ids" in inputs
        else ()
    )
    for media, item in enumerate(sizes):
        if item.as_clip and "video_grid_thw" in inputs:
            merge = processor.video_processor.merge_size
            n_steps, height, width = next(steps, (0, 0, 0))
            part = _grid(height // merge, width // merge)
            # Several frames may share one step in time; the span then represents the first of them.
            parts = [(step * item.frames // n_steps, part) for step in range(n_steps)]
        elif item.as_clip and "video_position_ids" in inputs:
            parts = [(frame, next(pooled)) for frame in range(item.frames)]
        elif item.as_clip and "pixel_values_videos" in inputs:
            side = math.ceil(math.isqrt(processor.num_image_tokens) / 2)
            parts = [(frame, _grid(side, side)) for frame in range(item.frames)]
            parts.append((item.frames - 1, (None, None, 1)))
        else:
            parts = [(frame, part) for frame in range(item.frames) for part in next(still, ())]
        for frame, part in parts:
            yield _GridPiece(item.kind, media, frame, *part)


def _picture_grids(
    processor: Any,
    inputs: dict[str, Any],
    n_visual: int,
    sizes: Sequence[MediaSize],
) -> Iterator[list[_Part]]:
    """Yield every picture's parts, in order; clips as tiles count too."""
    pixels = inputs.get("pixel_values")
    if "image_grid_thw" in inputs:
        merge = processor.image_processor.merge_size
        for steps, height, width in inputs["image_grid_thw"].tolist():
            yield [_grid(height // merge, width // merge)] * steps
    elif "image_position_ids" in inputs:
        for part in _token_grids(processor.image_processor, inputs["image_position_ids"]):
            yield [part]
    elif pixels is not None and "image_sizes" in inputs and pixels.ndim == 5:
        # How many tokens joined tiles make is told only here, where serving programs ask too.
        stills = [item for item in sizes for _ in range(0 if item.as_clip else item.frames)]
        shapes = [(item.height, item.width) for item in stills]
        for count in processor._get_num_multimodal_tokens(image_sizes=shapes)["num_image_tokens"]:
            yield [(None, None, count)]
    elif "image_sizes" in inputs:
        patch = processor.patch_size * processor.spatial_merge_size
        for height, width in inputs["image_sizes"].tolist():
            yield [_grid(height // patch, width // patch)]
    elif pixels is not None:
        n_tiles = math.prod(pixels.shape[:-3])
        tiles = [1] * sum(item.frames for item in sizes)
        if n_tiles != len(tiles):
            tiles = [n for item in sizes for n in [_n_tiles(processor, item)] * item.frames]
        if sum(tiles) != n_tiles:
            return
        count = n_visual // n_tiles
        side = math.isqrt(count) if math.isqrt(count) ** 2 == count else None
        for n in tiles:
            yield [(side, side, count)] * n


def _grid(rows: int, cols: int) -> _Part:
    return rows, cols, rows * cols


def _token_grids(processor: Any, positions: Tensor) -> list[_Part]:
    """Return every picture's part.

    positions: The places (x, y) of its patches [pictures, patches, 2]; -1 is padding.
    """
    size = (positions.amax(1) + 1) // processor.pooling_kernel_size
    return [_grid(rows, cols) for cols, rows in size.tolist()]


def _n_tiles(processor: Any, item: MediaSize) -> int:
    """Return into how many tiles a picture is split; frames of a clip are not."""
    if item.as_clip:
        return 1
    n_patches = processor.image_processor.get_number_of_image_patches(item.height, item.width, {})
    return max(1, n_patches if isinstance(n_patches, int) else n_patches[0])


def token_runs(visual: Tensor) -> list[tuple[bool, int, int]]:
    """Return (visual, start, stop) of every run of positions of one kind, in order."""
    edges = [0, *(visual.diff().nonzero().flatten() + 1).tolist(), len(visual)]
    return [(bool(visual[start]), start, stop) for start, stop in itertools.pairwise(edges)]


def visual_runs(visual: Tensor) -> list[tuple[int, int]]:
    """Return [start, stop) of every run of visual positions."""
    return [(start, stop) for kind, start, stop in token_runs(visual) if kind]
